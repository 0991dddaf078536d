"""Doubles of parts of the product, for tests."""
