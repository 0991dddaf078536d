"""The demo that trains on handwritten digits over both backends: `make demo`."""
