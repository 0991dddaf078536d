"""How sums scale, in the simulated network: `make bench NAMES=scale`."""
