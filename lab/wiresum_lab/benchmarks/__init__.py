"""Benchmarks. Each compares with other systems in one run, and says with --help what it does."""
