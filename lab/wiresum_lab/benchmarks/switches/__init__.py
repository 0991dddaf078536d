"""Benchmarks of a job at several software switches: side by side, or in a tree."""
