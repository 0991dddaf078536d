"""The blocks of code on pages of Markdown, as tests read them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

SHELL = ("", "sh", "bash", "shell")
"""Languages of blocks that are typed at a shell."""


class Block(NamedTuple):
    section: str
    """The heading above it."""
    line: int
    """The page's, on which it begins."""
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
    """Each with the lines that it goes on with after a backslash; comments of their own are left out."""
    joined = re.sub(r"\\\n\s*", "", block.text)
    return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
