"""The benchmark of tensors with blocks of zeros: `make bench NAMES=sparse`."""
