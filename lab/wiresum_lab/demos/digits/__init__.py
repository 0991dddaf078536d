"""Training on handwritten digits over both backends: `make demo`."""
