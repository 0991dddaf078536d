"""What gradients cost that are the same for any number of workers."""
