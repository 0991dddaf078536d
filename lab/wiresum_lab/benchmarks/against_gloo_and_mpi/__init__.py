"""Wiresum, Gloo and Open MPI, side by side."""
