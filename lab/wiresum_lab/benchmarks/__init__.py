"""Compared with other systems in one run; each says what it does with --help."""
