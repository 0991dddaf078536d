"""Programs as processes with logs. Callers wait until a program is ready; every program is ended with its block.

with SwitchProcess(folder) as switch, Program(wiresum("top", switch.endpoint), folder / "top.log") as top:
    wait_until(lambda: "jobs" in top.said(), "it shows the jobs")
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from wiresum_lab.patience import PATIENCE_S, TimedOutError

STOP_S_MAX = PATIENCE_S / 6
"""How long a program may take to end by itself before it is killed."""
POLL_S = 0.02
LOG_LINES_SHOWN = 40

T = TypeVar("T")
AnyProgram = TypeVar("AnyProgram", bound="Program")
Launch = Callable[..., "subprocess.Popen[Any]"]
"""The type of a function that starts a command, with the options of `subprocess.Popen`."""


class ProgramError(RuntimeError):
    """A program failed; the text has the reason, and the end of its log."""


class ProgramTimedOutError(ProgramError, TimedOutError):
    """A program did not get ready in time."""


def wiresum(*arguments: str) -> list[str]:
    """A command line of `wiresum`, for this interpreter."""
    return [sys.executable, "-m", "wiresum.cli", *arguments]


class SwitchAt(NamedTuple):
    """Name and ports of a software switch on loopback."""

    name: str
    p4runtime: int
    """TCP port of the switch's P4Runtime server."""
    data: int
    """The switch's first UDP port."""


def controller_config(
    *,
    listen: int,
    switches: Sequence[SwitchAt],
    slots: int,
    lanes: int = 360,
    tls: str = "",
    audit: str = "",
    metrics: int = 0,
    more: str = "",
) -> str:
    """The configuration of a controller with software switches, all on loopback. `tls` is the folder of its
    certificate, which it uses towards the switches, too; `audit` is a file; `more` has further tables."""
    security = f'[security]\ntls = "{tls}"\n' if tls else ""
    security += f'audit = "{audit}"\n' if audit else ""
    served = f'metrics = "127.0.0.1:{metrics}"\n' if metrics else ""
    text = f'[controller]\nlisten = "127.0.0.1:{listen}"\nstate = "state"\n{served}\n{security}'
    for switch in switches:
        text += f"""
[[switch]]
name = "{switch.name}"
kind = "software"
p4runtime = "127.0.0.1:{switch.p4runtime}"
address = "127.0.0.1"
port = {switch.data}
lanes = {lanes}
slots = {slots}
{f'tls = "{tls}"' if tls else ""}
"""
    return text + more


def here(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Starts a command on this machine, in a session of its own. It dies with the thread that started it."""
    # setpriv in place of preexec_fn, with which Python would run fork handlers, and lose a KeyboardInterrupt in them.
    return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *command], start_new_session=True, **options)


def outcome(process: subprocess.Popen[str]) -> str:
    """The output of a process, which must succeed."""
    said, errors = process.communicate(timeout=2 * PATIENCE_S)
    assert process.returncode == 0, errors
    return said


def end(process: subprocess.Popen[Any]) -> None:
    """Kills a process with pipes."""
    process.kill()
    process.communicate(timeout=2 * PATIENCE_S)


class Program:
    """A process, from construction to `stop`."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        variables: Mapping[str, str] | None = None,
        *,
        at: Launch = here,
        name: str = "",
        append: bool = False,
    ) -> None:
        """`variables` are added to those of this process. `name` is the program's name in errors, the log's name unless
        given. `append` keeps the contents of the log."""
        self.log, self.name = log, name or log.stem
        self._log_begin = log.stat().st_size if append and log.exists() else 0
        self.was_stopped = False
        """Whether `stop` or `kill` has ended the program."""
        with log.open("ab" if append else "wb") as output:
            self.process = at(
                command,
                env=os.environ | (variables or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self: AnyProgram) -> AnyProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        """The program's exit code; None while it runs."""
        return self.process.poll()

    def said(self) -> str:
        """The program's output so far."""
        return self.log.read_bytes()[self._log_begin :].decode(errors="replace")

    def await_text(self, pattern: str) -> re.Match[str]:
        """Waits until the output matches a regular expression. Otherwise stops the program and raises
        `ProgramError`."""
        return self.await_ready(lambda: re.search(pattern, self.said(), re.MULTILINE))

    def await_ready(self, ready: Callable[[], T | None]) -> T:
        try:
            return wait_until(ready, f"{self.name} is ready", PATIENCE_S, self.check, error=self.timed_out)
        except BaseException:
            self.stop()
            raise

    def check(self) -> None:
        """Raises `ProgramError` if the program has ended."""
        if self.exit_code is not None:
            raise self._error(f"{self.name} ended with exit code {self.exit_code}")

    def stop(self) -> None:
        """Ends the program by SIGTERM, and after STOP_S_MAX by `kill`. Idempotent."""
        if self.exit_code is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S_MAX)
        self.kill()

    def kill(self) -> None:
        """Kills the program, and the other processes of its session if it has one of its own. Idempotent."""
        if self.was_stopped:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait(STOP_S_MAX)
        self.was_stopped = True

    def tail(self, lines: int = LOG_LINES_SHOWN) -> str:
        """The last lines of the log."""
        return "\n".join(
            [f"--- the end of {self.log} ---", *self.log.read_text(errors="replace").splitlines()[-lines:]]
        )

    def _error(self, text: str) -> ProgramError:
        return ProgramError(f"{text}\n{self.tail()}")

    def timed_out(self, text: str) -> ProgramTimedOutError:
        return ProgramTimedOutError(f"{text}\n{self.tail()}")


class SwitchProcess(Program):
    """A `wiresum switch` that serves joins, at free ports of `address`."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        variables: Mapping[str, str] | None = None,
        address: str = "127.0.0.1",
        at: Launch = here,
    ) -> None:
        command = wiresum("switch", "--control", f"{address}:0", "--port", "0", *arguments)
        super().__init__(command, folder / "switch.log", variables, at=at)
        self.endpoint = self.await_text(r"ready: control (\S+:\d+)")[1]


@contextlib.contextmanager
def on_core(core: int) -> Iterator[None]:
    """Pins programs that are started in the block to this core."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def stop_all(programs: Sequence[Program]) -> None:
    """Stops all programs, at the same time: all get SIGTERM before the first wait."""
    for program in programs:
        program.process.terminate()
    for program in programs:
        program.stop()


def wait_until(
    condition: Callable[[], T | None],
    what: str,
    patience_s: float = PATIENCE_S,
    meanwhile: Callable[[], object] = lambda: None,
    *,
    error: Callable[[str], BaseException] = TimedOutError,
) -> T:
    """Waits for a condition, and returns its first true value; 0 and an empty list are false. `meanwhile` is called
    after each try, and may raise an error to end the wait. Raises `error` with a text on `what` after `patience_s`."""
    give_up_at = time.monotonic() + patience_s
    while not (found := condition()):
        meanwhile()
        if time.monotonic() > give_up_at:
            raise error(f"after {patience_s:.0f} s this was still not so: {what}")
        time.sleep(POLL_S)
    return found


def has_ended(process: int) -> bool:
    """Whether or not somebody has asked for its status."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def cpu_seconds(process: int) -> float:
    """User and system time of all present and former threads of a process."""
    # The clock number of another process's CPU time, as clock_getcpuclockid(3) computes it.
    return time.clock_gettime((~process << 3) | 2)


def resident_kib(process: int, which: str = "VmRSS") -> int:
    """The physical memory of a process; its peak if `which` is VmHWM."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{which}:"))


PORTS = range(21_008, 29_008)
"""Ports for programs: below Linux's ephemeral ports, and apart from the lab's fixed ones."""
_BLOCK = 16  # the ports of a switch
_left: list[int] = []
"""Ports of the newest block that have not been given yet."""
os.register_at_fork(after_in_child=_left.clear)


def unused_port(count: int = 1) -> int:
    """The first of `count` consecutive ports, at most 16, that are free for TCP and UDP. Until this process ends, no
    other process gets them from this function."""
    assert count <= _BLOCK
    if count > 1:
        return _unused_block()[0]
    if not _left:
        _left.extend(_unused_block())
    return _left.pop()


def _unused_block() -> range:
    blocks = list(range(PORTS.start, PORTS.stop, _BLOCK))
    random.SystemRandom().shuffle(blocks)  # parallel tests may have the same seed
    for first in blocks:
        block = range(first, first + _BLOCK)
        with socket.socket(socket.AF_UNIX) as reservation, contextlib.suppress(OSError):
            reservation.bind(f"\0wiresum-lab-ports-{first}")
            for port, kind in itertools.product(block, (socket.SOCK_STREAM, socket.SOCK_DGRAM)):
                with socket.socket(socket.AF_INET, kind) as tried:
                    tried.bind(("", port))
            # The reservation lasts until this process ends: while it restarts a program, others might take the ports.
            reservation.detach()
            return block
    raise OSError(f"no {_BLOCK} ports in a row are free between {PORTS.start} and {PORTS.stop}")
