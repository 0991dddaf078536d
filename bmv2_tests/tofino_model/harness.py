"""The model's test harness: a process that reads commands as lines, and answers in lines.

It has no prompt, so each batch of commands is followed by an invalid command. When the harness complains about that, it
has finished the batch. All its output goes through one pipe, in order; packets that leave are in a file of their own,
each as a line of port and bytes.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import IO

BINARIES = {1: "tofino_test_harness", 2: "jbay_test_harness"}
"""By generation of Tofino; the second was first called JBay."""
START_TIMEOUT_S = 300
REPLY_TIMEOUT_S = 60
TAIL_LINES = 20
"""How many of the last lines of output an error shows."""
READ_BYTES = 1 << 16

_COMPLAINT = re.compile(r"<stdin>:\d+: (?!Unknown command synchronize-)")
_PACKET = re.compile(r"([0-9]+) ([0-9A-F]*)")


class HarnessError(RuntimeError):
    """The harness ended, did not answer, or complained about a command."""


class Harness:
    """One process with one chip. Only pipe 0 is loaded: three more pipes would be three times the work."""

    def __init__(self, binary: str, program: Path) -> None:
        """`program`: a folder with the chip's binary and context.json. Raises `HarnessError` if it does not start."""
        self._folder = Path(tempfile.mkdtemp(prefix="wiresum-model-"))
        log = self._folder / "packets"
        log.touch()
        self._packets: IO[str] = log.open(encoding="ascii")
        self._said = b""
        self._lines: list[str] = []
        self._numbers = count()
        # -T: log where entries are written when the program is loaded. -r: do not set up all tables anew for each
        # file that is loaded later.
        command = [binary, "--observation-log", str(log), "-l0", str(program), "-T", "table:1", "-r", "-"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self._folder
        )
        assert self._process.stdout is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        try:
            self._synchronize(START_TIMEOUT_S)
        except HarnessError:
            self.close()
            raise

    def run(self, commands: Sequence[str]) -> list[str]:
        """Runs commands; gives the output. Raises `HarnessError` if the harness complains about one."""
        self._write(commands)
        said = self._synchronize(REPLY_TIMEOUT_S)
        if complaints := [line for line in said if _COMPLAINT.match(line)]:
            raise HarnessError(f"the harness complains about {'; '.join(commands)[:400]}: {'; '.join(complaints)}")
        return said

    def packets(self) -> list[tuple[int, bytes]]:
        """Port and bytes of each packet that has left since the last call. The caller has waited for them."""
        return [(int(port), bytes.fromhex(content)) for port, content in _PACKET.findall(self._packets.read())]

    def file(self, name: str, content: bytes) -> Path:
        """A file that exists as long as the harness."""
        path = self._folder / name
        path.write_bytes(content)
        return path

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout, self._packets):
            assert pipe is not None
            pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, commands: Sequence[str]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("".join(f"{command}\n" for command in commands).encode("ascii"))
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._error("the harness has ended") from None

    def _synchronize(self, timeout_s: float) -> list[str]:
        """All output before the complaint about the invalid command."""
        word = f"synchronize-{next(self._numbers)}-"
        self._write([word])
        said: list[str] = []
        while not (said and f"Unknown command {word}" in said[-1]):
            said.append(self._line(timeout_s))
        return said[:-1]

    def _line(self, timeout_s: float) -> str:
        assert self._process.stdout is not None
        while b"\n" not in self._said:
            if not self._selector.select(timeout_s):
                raise self._error(f"the harness has said nothing for {timeout_s:.0f} s")
            more = os.read(self._process.stdout.fileno(), READ_BYTES)
            if not more:
                raise self._error("the harness has ended")
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        text = line.decode("ascii", "replace").rstrip()
        self._lines = [*self._lines[-TAIL_LINES:], text]
        return text

    def _error(self, what: str) -> HarnessError:
        return HarnessError(f"{what}; the last that it said:\n" + "\n".join(self._lines))
