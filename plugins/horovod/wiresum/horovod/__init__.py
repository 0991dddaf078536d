"""Drop-ins for Horovod over Wiresum. `wiresum.horovod.torch` stands in for `horovod.torch`."""
