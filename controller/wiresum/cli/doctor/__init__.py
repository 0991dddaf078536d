"""`wiresum doctor`: a module for each subject that the command checks, and one for the command itself."""

from wiresum.cli.doctor.command import doctor

__all__ = ["doctor"]
