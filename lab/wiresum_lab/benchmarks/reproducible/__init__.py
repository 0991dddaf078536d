"""The benchmark of gradients that are the same for any number of workers: `make bench NAMES=reproducible`."""
