"""How sums scale, in the simulated network: `make scale`."""
