"""The other end of `star_ranks.py`: how a rank hears what to do, and answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any


def serve(commands: Mapping[str, Callable[..., Any]]) -> None:
    """Says hello, then carries out one line after the other: a command's name and its arguments, all of them words. It
    answers with what the command returns as JSON, or "ready" if that is nothing. Until the input ends."""
    print("hello", flush=True)
    for line in sys.stdin:
        name, *arguments = line.split()
        answer = commands[name](*arguments)
        print("ready" if answer is None else json.dumps(answer), flush=True)
