"""The ranks of one system under test, driven in step from the benchmark.

Ranks of several systems live side by side, so that repetitions can be interleaved; those that are not being measured
wait for a line on their Unix socket and take no processor time. See `allreduce_rank.py` for the messages.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
LOG_TAIL_BYTES = 2000


class CohortError(RuntimeError):
    """A system under test failed; the text has the end of its log."""


class CohortTimeoutError(CohortError):
    """A system under test did not finish a repetition in the time it had."""


@dataclass(frozen=True)
class Repetition:
    """One all-reduce. The clock runs from the first rank's start to the last rank's end."""

    seconds: float
    cpu_seconds_worker: float
    """Mean over ranks of the processor time that the rank's process took."""
    cpu_seconds_switch: float | None
    wrong_elements: int
    retransmissions: int | None


class Cohort:
    """N ranks and, for some systems, a service (a switch, a launcher) that runs beside them."""

    def __init__(self, name: str, ranks: int, socket_path: Path, log_folder: Path) -> None:
        self.name = name
        self.ranks = ranks
        self.switch_pid: int | None = None
        self._log_folder = log_folder
        self._processes: list[subprocess.Popen[str]] = []
        self._channels: dict[int, _Channel] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket_path = socket_path
        self._listener.bind(str(socket_path))
        self._listener.listen(ranks)

    def log(self, process_name: str) -> Path:
        return self._log_folder / f"{self.name}-{process_name}.log"

    def adopt(self, process: subprocess.Popen[str]) -> None:
        """Takes over a started process: its early end is an error, and `close` ends it."""
        self._processes.append(process)

    def process_ids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def await_ranks(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Returns when every rank has said hello."""
        deadline_s = time.monotonic() + timeout_s
        pending: list[_Channel] = []
        while len(self._channels) < self.ranks:
            self._check_alive(deadline_s, f"{len(self._channels)} of {self.ranks} ranks have started")
            self._listener.settimeout(0.1)
            with contextlib.suppress(TimeoutError):
                pending.append(_Channel(self._listener.accept()[0]))
            for channel in list(pending):
                if line := channel.read_line(0.0):
                    self._channels[int(line.split()[1])] = channel
                    pending.remove(channel)

    def repeat(self, lane_bits: int, elements: int, repetition: int, timeout_s: float) -> Repetition:
        """One all-reduce of every rank, after all have their tensors."""
        self._command(f"prepare {lane_bits} {elements} {repetition}", START_TIMEOUT_S)
        switch_cpu_s = self._switch_cpu_s()
        answers = [[int(word) for word in line.split()[1:]] for line in self._command("go", timeout_s)]
        starts_ns, ends_ns, cpus_ns, wrong, retransmissions = zip(*answers, strict=True)
        return Repetition(
            seconds=(max(ends_ns) - min(starts_ns)) / 1e9,
            cpu_seconds_worker=sum(cpus_ns) / len(cpus_ns) / 1e9,
            cpu_seconds_switch=None if switch_cpu_s is None else (self._switch_cpu_s() or 0.0) - switch_cpu_s,
            wrong_elements=sum(wrong),
            retransmissions=sum(retransmissions) if min(retransmissions) >= 0 else None,
        )

    def latency_s(self, elements: int, count: int, timeout_s: float) -> float:
        """Median time of a small all-reduce, one after the other, as the slowest rank saw it."""
        answers = self._command(f"latency {elements} {count}", timeout_s)
        return max(int(line.split()[1]) for line in answers) / 1e9

    def close(self) -> None:
        for channel in self._channels.values():
            with contextlib.suppress(OSError):
                channel.write_line("quit")
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        # The ranks leave by themselves; a service is asked to, once they have.
        for process in reversed(self._processes):
            if process.pid == self.switch_pid:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for channel in self._channels.values():
            channel.close()
        self._listener.close()
        self.socket_path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Ends everything at once: for a system that failed or hangs."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        self.close()

    def __enter__(self) -> Cohort:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _command(self, line: str, timeout_s: float) -> list[str]:
        """Sends a line to all ranks and returns their answers, in order of rank."""
        with contextlib.suppress(BrokenPipeError):
            for channel in self._channels.values():
                channel.write_line(line)
        deadline_s = time.monotonic() + timeout_s
        answers: dict[int, str] = {}
        with selectors.DefaultSelector() as selector:
            for rank, channel in self._channels.items():
                selector.register(channel.socket, selectors.EVENT_READ, rank)
            while len(answers) < self.ranks:
                self._check_alive(
                    deadline_s, f"{self.ranks - len(answers)} of {self.ranks} ranks do not answer {line!r}"
                )
                for key, _ in selector.select(0.2):
                    if answer := self._channels[key.data].read_line(0.0):
                        answers[key.data] = answer
        return [answers[rank] for rank in range(self.ranks)]

    def _check_alive(self, deadline_s: float, doing: str) -> None:
        for process in self._processes:
            if process.poll() is not None:
                raise CohortError(
                    f"{self.name}: a process ended with status {process.returncode} while {doing}.{self._log_tails()}"
                )
        if time.monotonic() > deadline_s:
            raise CohortTimeoutError(f"{self.name}: {doing}, and the time is up.{self._log_tails()}")

    def _log_tails(self) -> str:
        """The end of the longest log: that is where the trouble is told."""
        logs = sorted(self._log_folder.glob(f"{self.name}-*.log"), key=lambda log: log.stat().st_size)
        if not logs or logs[-1].stat().st_size == 0:
            return ""
        text = logs[-1].read_text(errors="replace")[-LOG_TAIL_BYTES:]
        return f"\nThe end of {logs[-1]}:\n{text.rstrip()}"

    def _switch_cpu_s(self) -> float | None:
        return None if self.switch_pid is None else process_cpu_seconds(self.switch_pid)


def process_cpu_seconds(pid: int) -> float:
    """User and system time of all threads that a process has or had, to the nanosecond."""
    # The clock number of another process's CPU time, as clock_getcpuclockid(3) computes it.
    return time.clock_gettime((~pid << 3) | 2)


class _Channel:
    """Lines over a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._buffer = b""

    def write_line(self, line: str) -> None:
        self.socket.settimeout(10.0)
        self.socket.sendall(line.encode() + b"\n")

    def read_line(self, timeout_s: float) -> str | None:
        """A whole line, or None if there is none yet (or the other side is gone)."""
        self.socket.settimeout(timeout_s)
        with contextlib.suppress(TimeoutError, BlockingIOError, ConnectionResetError):
            self._buffer += self.socket.recv(4096)
        line, newline, rest = self._buffer.partition(b"\n")
        if not newline:
            return None
        self._buffer = rest
        return line.decode()

    def close(self) -> None:
        self.socket.close()
