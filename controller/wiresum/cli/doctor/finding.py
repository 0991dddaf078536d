"""What a check found, as text for people and as JSON for scripts. Pure."""

from __future__ import annotations

import dataclasses
import enum
import functools
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from wiresum.cli.text import visible

LINE_CHARACTERS = 110
INDENT = " " * 11


class Level(enum.Enum):
    OK = "ok"
    NOTE = "note"
    """Nothing is wrong, but the finding may explain something."""
    WARNING = "warning"
    """The job works, but slowly, or not for long."""
    PROBLEM = "problem"
    """The job does not work."""


COLOURS = {Level.OK: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.PROBLEM: "red"}


@dataclass(frozen=True)
class Finding:
    level: Level
    check: str
    """A short name for scripts, equal in all versions."""
    what: str
    why: str = ""
    """Why the finding matters."""
    advice: str = ""
    """What to do."""

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"level": self.level.value}

    def text(self) -> str:
        lines = _wrapped(f"  {self.level.value:<8} ", self.what)
        lines += _wrapped(f"{INDENT}why: ", self.why) if self.why else []
        lines += _wrapped(f"{INDENT}do:  ", self.advice) if self.advice else []
        return "\n".join(lines)


ok = functools.partial(Finding, Level.OK)
note = functools.partial(Finding, Level.NOTE)
warning = functools.partial(Finding, Level.WARNING)
problem = functools.partial(Finding, Level.PROBLEM)


def passed(findings: Iterable[Finding]) -> bool:
    return all(finding.level is not Level.PROBLEM for finding in findings)


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        visible(text),
        LINE_CHARACTERS,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
