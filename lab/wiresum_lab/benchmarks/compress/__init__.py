"""The benchmark of training with compressed gradients: `make bench NAMES=compress`."""
