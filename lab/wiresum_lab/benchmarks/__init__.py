"""Benchmarks. Each compares with other systems in one run; --help explains it."""
