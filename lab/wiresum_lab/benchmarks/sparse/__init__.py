"""Tensors with blocks of zeros."""
