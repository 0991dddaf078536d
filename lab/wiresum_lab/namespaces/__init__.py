"""Stars of network namespaces, with or without racks, and with exact links, for benchmarks and tests."""
