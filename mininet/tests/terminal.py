"""`make mininet` on a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
from collections.abc import Sequence
from pathlib import Path

from wiresum_lab.patience import PATIENCE_S, TimedOutError

QUIET_S_MAX = 4 * PATIENCE_S
"""Without a word on the terminal: a training in Mininet may take so long."""
PROMPT = "mininet> "


class Terminal:
    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        self._ours, theirs = pty.openpty()
        environment = os.environ | {"TERM": "dumb", "COLUMNS": "400"}
        self.process = subprocess.Popen(
            arguments, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self._waiting = select.poll()  # select() takes no descriptor above 1023, and a long test run has opened more
        self._waiting.register(self._ours, select.POLLIN)

    def until_prompt(self) -> str:
        """What it shows up to the next prompt, or to its end."""
        shown = ""
        while not shown.endswith(PROMPT):
            if not self._waiting.poll(1000 * QUIET_S_MAX):
                raise TimedOutError(f"there was no prompt, but\n{shown}")
            try:
                shown += os.read(self._ours, 65536).decode(errors="replace")
            except OSError:  # the program has ended
                break
        return shown

    def type(self, line: str) -> str:
        os.write(self._ours, f"{line}\n".encode())
        return self.until_prompt()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        os.close(self._ours)
