"""The study of how sums scale, in the simulated network: `make bench NAMES=scale`."""
