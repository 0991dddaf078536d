"""Reads blocks of code from pages of Markdown, for tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

SHELL = ("", "sh", "bash", "shell")
"""Languages of blocks with commands for a shell."""


class Block(NamedTuple):
    section: str
    """The heading above the block."""
    line: int
    """The line of the page at which the block's text begins."""
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    section, begin, language, lines = "", 0, "", list[str]()
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if begin and line.startswith("```"):
            found.append(Block(section, begin, language, "\n".join(lines)))
            begin = 0
        elif begin:
            lines.append(line)
        elif match := re.match(r"```(\w*)$", line):
            begin, language, lines = number + 1, match[1], []
        elif match := re.match(r"#+ (.*)", line):
            section = match[1]
    return found


def commands(block: Block) -> list[str]:
    """The commands of a block. Lines that end with a backslash are joined with the next; lines of comments are left
    out."""
    joined = re.sub(r"\\\n\s*", "", block.text)
    return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
