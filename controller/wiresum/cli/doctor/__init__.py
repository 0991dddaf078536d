"""`wiresum doctor`: a module for each subject that it looks at, and one that puts them together."""

from wiresum.cli.doctor.command import doctor

__all__ = ["doctor"]
