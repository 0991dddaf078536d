"""The benchmark of error and cost of sums of floats: `make bench NAMES=precision`."""
