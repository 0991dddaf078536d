"""Drop-in replacements for Horovod over Wiresum. `wiresum.horovod.torch` replaces `horovod.torch`."""
