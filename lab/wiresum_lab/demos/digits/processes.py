"""Processes that cannot outlive the demo.

torchrun puts its workers into sessions of their own, so that neither the terminal's Ctrl-C nor a signal to torchrun's
process group reaches all of them. So the demo asks Linux to adopt every descendant whose parent dies (a "subreaper"):
whatever was started below us is found by walking our children, and is ended by its process id.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

PR_SET_CHILD_SUBREAPER = 36
# torchrun passes SIGTERM on and collects its workers; past this, it and they are killed.
TERMINATE_S_MAX = 8.0
KILL_S_MAX = 5.0
POLL_S = 0.05


class Processes:
    """Starts processes; on leaving the `with` block, none of them nor of their descendants is left."""

    def __enter__(self) -> Processes:
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot adopt orphaned workers: prctl(PR_SET_CHILD_SUBREAPER) failed")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A second Ctrl-C while we clean up would leave half of them running.
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self.stop_all()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def start(self, command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Runs `command` with its output in `log`, away from the terminal's signals: stopping it is our business."""
        with log.open("wb") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def stop_all(self) -> None:
        """Asks our children to end, then kills what is left, orphans too. Returns when every one has been collected."""
        for number, seconds_max in ((signal.SIGTERM, TERMINATE_S_MAX), (signal.SIGKILL, KILL_S_MAX)):
            give_up_at = time.monotonic() + seconds_max
            signalled: set[int] = set()
            while collect() and time.monotonic() < give_up_at:
                # First our children alone: torchrun must be the one that ends its workers, or it reports a failure.
                targets = descendants() if number == signal.SIGKILL else children()
                for process in targets - signalled:
                    signalled.add(process)
                    with suppress(ProcessLookupError):
                        os.kill(process, number)
                time.sleep(POLL_S)


def collect() -> bool:
    """Takes the exit codes of children that have ended, adopted ones too. Is any left? Popen copes with a code taken
    from under it. A process counts until the last of its threads is gone, which its state in /proc does not tell."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        return False
    return True


def children() -> set[int]:
    return {process for process, parent in parents().items() if parent == os.getpid()}


def descendants() -> set[int]:
    parent_of = parents()
    found = {os.getpid()}
    while more := {process for process, parent in parent_of.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def parents() -> dict[int, int]:
    """The parent of each process on this machine."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            # The name in parentheses may hold anything, so the fields are counted from behind it.
            found[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    return found
