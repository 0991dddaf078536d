"""Runs a network in a PID namespace of its own ("world"); the kernel ends all processes in it with the first one.

Mininet's hosts are shells, and nothing tracks the processes that users start in them. When the first process of a PID
namespace ends, even by SIGKILL, the kernel ends all others, and network namespaces without processes vanish with their
interfaces. Other instances of Mininet are not affected.

    supervisor (this machine)            first process (the world)
        starts unshare(1)          ->    builds the network, opens the prompt
        passes SIGTERM on          ->    ends it
        is killed                  ->    is killed (pdeathsig, --kill-child), and all with it
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

FIRST = 1
END_S_MAX = 30.0
POLL_S = 0.2


def is_inside() -> bool:
    """True if this is the first process of a world."""
    return os.getpid() == FIRST


def run(argv: Sequence[str]) -> int:
    """Runs a Python program as the first process of a world. Returns its exit code."""
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    # Ctrl-C also reaches the world, which handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ending: list[float] = []
    with subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "--", *unshare, sys.executable, *argv], restore_signals=True
    ) as child:

        def pass_on(number: int, _: object) -> None:
            ending.append(time.monotonic() + END_S_MAX)
            _signal_first(child.pid, number)

        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, pass_on)
        while True:
            try:
                return child.wait(POLL_S)
            except subprocess.TimeoutExpired:
                if ending and time.monotonic() > ending[0]:
                    _signal_first(child.pid, signal.SIGKILL)


def _signal_first(unshare: int, number: int) -> None:
    """Signals the world's first process, the only child of unshare, which itself takes no SIGTERM."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for child in Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split():
            os.kill(int(child), number)
