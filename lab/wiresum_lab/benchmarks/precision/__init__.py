"""What sums of floats err and cost."""
