"""Benchmarks of compressed gradients: `make bench NAMES='time-to-loss memory'`."""
