"""How a job's tree of switches is shown. Pure."""

from __future__ import annotations


def switches_of(root: str, count: int) -> str:
    """For a table: the root, and how many there are below it. Empty: the job has none."""
    return f"{root}+{count - 1}" if count > 1 else root
