"""The benchmark of training with each precision: `make bench NAMES=gradients`."""
