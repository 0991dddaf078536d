"""The benchmark of the cost of a packet: `make bench NAMES=packets`."""
