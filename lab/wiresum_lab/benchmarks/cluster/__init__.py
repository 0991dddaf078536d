"""Benchmarks of the join service and the controller."""
