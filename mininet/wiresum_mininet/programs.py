"""Programs that run in a node of Mininet, each with a log of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mininet.node import Node

START_S_MAX = 60.0
STOP_S_MAX = 10.0
POLL_S = 0.05
LOG_LINES_SHOWN = 20


class NetworkError(RuntimeError):
    """Something of the network does not run; the text says what, why, and where its log is."""


class Program:
    """A process in a node, from its start to `stop`. It does not outlive the thread that started it."""

    def __init__(
        self, node: Node, argv: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.host = str(node.name)
        self.name = f"{Path(argv[0]).name} of {node.name}"
        self.log = log
        with log.open("w") as output:
            # Mininet's popen, in the node's namespace; the process that it gives becomes the program itself.
            self.process: subprocess.Popen[str] = node.popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *argv],
                env=os.environ | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.process.poll()

    def await_ready(self, ready: Callable[[], bool]) -> None:
        """Raises `NetworkError` if it ends before, or takes too long."""
        give_up_at = time.monotonic() + START_S_MAX
        while not ready():
            if self.exit_code is not None:
                raise NetworkError(f"{self.name} ended with exit code {self.exit_code} at its start\n{self.tail()}")
            if time.monotonic() > give_up_at:
                raise NetworkError(f"{self.name} was not ready within {START_S_MAX:.0f} s\n{self.tail()}")
            time.sleep(POLL_S)

    def await_text(self, text: str) -> None:
        """Until its log has it."""
        self.await_ready(lambda: text in self.log.read_text(errors="replace"))

    def stop(self) -> None:
        """Idempotent. Politely at first."""
        if self.exit_code is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def tail(self, lines: int = LOG_LINES_SHOWN) -> str:
        """The end of its log."""
        return "\n".join(
            [f"--- the end of {self.log} ---", *self.log.read_text(errors="replace").splitlines()[-lines:]]
        )
