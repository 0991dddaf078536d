"""Error and cost of sums of floats."""
