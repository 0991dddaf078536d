"""Ranks of a benchmark, one for each worker of a star, driven in step; and the switches and launchers that they need.

A rank is a process that connects to a Unix socket, which network namespaces share, and which does not use the links.
The rank sends its number, and then carries out commands. A command is a line with a name and arguments, all of them
words; the answer is a line of JSON. The rank ends when the socket is closed. `rank.py` is the other end in Python,
`benchmarks/against_gloo_and_mpi/mpi.c` in C. Ranks of several systems may run side by side, so that repetitions can be
interleaved: ranks that are not being measured wait for a line and take no processor time.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from wiresum_lab.namespaces.links import MTU_BYTES
from wiresum_lab.namespaces.star import MANAGEMENT_DEVICE, STAR_DEVICE, Host, Star
from wiresum_lab.patience import PATIENCE_S, TimedOutError
from wiresum_lab.processes import POLL_S, Program, ProgramError, cpu_seconds, wiresum

GLOO = "gloo"
"""The name of Gloo's group. Gloo is very slow where packets are lost, as the dense benchmark shows, so other benchmarks
leave it out there."""
START_TIMEOUT_S = 2 * PATIENCE_S
STOP_TIMEOUT_S = PATIENCE_S / 6
COMMAND_TIMEOUT_S = 5 * PATIENCE_S
LOG_LINES_SHOWN = 20
STORE_PORT = 29_501

AnyRanks = TypeVar("AnyRanks", bound="Ranks")


class RanksError(ProgramError):
    """Ranks failed, or did not answer; the text has the end of their log."""


class RanksTimeoutError(RanksError, TimedOutError):
    """Ranks did not answer in time."""


@dataclass(frozen=True)
class Site:
    """The hosts of ranks, of the switch and of the launcher."""

    workers: Sequence[Host]
    switch: Host
    manager: Host
    mtu: int = MTU_BYTES

    @classmethod
    def of_star(cls, star: Star) -> Site:
        return cls(star.workers, star.switch, star.manager, mtu=star.link.mtu)


class Ranks:
    """As many ranks as a site has workers, and their services, from construction to `close`."""

    def __init__(self, name: str, site: Site, logs: Path, start: Callable[[Any], object]) -> None:
        """Calls `start` with these ranks, to start the processes; then waits for all ranks."""
        self.name, self.site, self.size = name, site, len(site.workers)
        self._logs = logs
        self.folder = Path(tempfile.mkdtemp(prefix="wiresum-ranks-"))
        """A folder for temporary files, which `close` removes."""
        self._processes: list[Program] = []
        self._services: list[Program] = []
        self._channels: dict[int, _Channel] = {}
        self.socket_path = self.folder / "control"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.socket_path))
        self._listener.listen(self.size)
        try:
            start(self)
            self._await_ranks()
        except BaseException:
            self.abandon()
            raise

    def __enter__(self: AnyRanks) -> AnyRanks:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def start(self, name: str, command: Sequence[str], at: Host, variables: Mapping[str, str] | None = None) -> Program:
        """Starts a rank, or a launcher of ranks, which must end by itself when the socket is closed."""
        return self._started(self._processes, name, command, at, variables)

    def start_service(self, name: str, at: Host, *arguments: str) -> Program:
        """Starts a command of `wiresum` beside the ranks, which `close` ends."""
        return self._started(self._services, name, wiresum(*arguments), at)

    def start_switch(self, at: Host, *options: str, name: str = "switch", control: str = "") -> str:
        """Starts a switch, and returns the endpoint at which workers join."""
        control = control or at.control_endpoint
        self.start_service(name, at, "switch", "--bind", at.address, "--control", control, "--insecure", *options)
        return control

    def start_torch(
        self,
        module: str,
        *arguments: str,
        variables: Callable[[Host], Mapping[str, str]] = lambda _: {},
        port: int = STORE_PORT,
    ) -> None:
        """Starts a rank at each worker, with the environment that PyTorch expects. Ranks meet over the management
        network; `port` is that of their store."""
        for rank, worker in enumerate(self.site.workers):
            common = {
                "RANK": str(rank),
                "LOCAL_RANK": str(self.site.workers[:rank].count(worker)),
                "LOCAL_WORLD_SIZE": str(self.site.workers.count(worker)),
                "WORLD_SIZE": str(self.size),
                "MASTER_ADDR": self.site.workers[0].management_address,
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": MANAGEMENT_DEVICE,
            }
            command = [sys.executable, "-m", module, str(self.socket_path), *arguments]
            self.start(f"rank{rank}", command, worker, {**common, **variables(worker)})

    def command(self, *words: object, timeout_s: float = COMMAND_TIMEOUT_S) -> list[Any]:
        """Sends a command to all ranks, and returns their answers in order of ranks. Raises a `RanksError` without
        them."""
        line = " ".join(map(str, words))
        with contextlib.suppress(BrokenPipeError):
            for channel in self._channels.values():
                channel.write_line(line)
        give_up_at = time.monotonic() + timeout_s
        answers: dict[int, Any] = {}
        with selectors.DefaultSelector() as selector:
            for rank, channel in self._channels.items():
                selector.register(channel.socket, selectors.EVENT_READ, rank)
            while len(answers) < self.size:
                self._check(give_up_at, f"{self.size - len(answers)} of {self.size} ranks do not answer {line!r}")
                for key, _ in selector.select(0.2):
                    if answer := self._channels[key.data].read_line():
                        answers[key.data] = json.loads(answer)
        return [answers[rank] for rank in range(self.size)]

    def service_cpu_s(self) -> float | None:
        """Processor time of the services so far, in seconds; None if there are none."""
        return sum(cpu_seconds(service.pid) for service in self._services) if self._services else None

    def process_ids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def close(self) -> None:
        """Closes the sockets, so that ranks leave by themselves, and then stops the services."""
        for channel in self._channels.values():
            channel.socket.close()
        self._listener.close()
        give_up_at = time.monotonic() + STOP_TIMEOUT_S
        while any(process.exit_code is None for process in self._processes) and time.monotonic() < give_up_at:
            time.sleep(POLL_S)
        for process in self._processes:
            process.kill()
        for service in self._services:
            service.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def abandon(self) -> None:
        """Kills all processes at once, for a system that failed or hangs."""
        for process in [*self._processes, *self._services]:
            process.kill()
        self.close()

    def _await_ranks(self) -> None:
        """Waits until every rank has sent its number."""
        give_up_at = time.monotonic() + START_TIMEOUT_S
        pending: list[_Channel] = []
        while len(self._channels) < self.size:
            self._check(give_up_at, f"{len(self._channels)} of {self.size} ranks have started")
            self._listener.settimeout(0.1)
            with contextlib.suppress(TimeoutError):
                pending.append(_Channel(self._listener.accept()[0]))
            for channel in list(pending):
                if line := channel.read_line():
                    self._channels[int(line)] = channel
                    pending.remove(channel)

    def _started(
        self,
        those: list[Program],
        name: str,
        command: Sequence[str],
        at: Host,
        variables: Mapping[str, str] | None = None,
    ) -> Program:
        log = self._logs / f"{self.name}-{name}.log"
        those.append(Program(command, log, variables, at=at.popen, name=f"{self.name}: {name}"))
        return those[-1]

    def _check(self, give_up_at: float, doing: str) -> None:
        for process in [*self._processes, *self._services]:
            if process.exit_code is not None:
                what = f"{process.name} ended with status {process.exit_code} while {doing}"
                raise RanksError(f"{what}.\n{self._longest_log().tail(LOG_LINES_SHOWN)}")
        if time.monotonic() > give_up_at:
            tail = self._longest_log().tail(LOG_LINES_SHOWN)
            raise RanksTimeoutError(f"{self.name}: {doing}, and the time is up.\n{tail}")

    def _longest_log(self) -> Program:
        """The program whose log most probably has the cause of a failure: the longest log."""
        return max([*self._processes, *self._services], key=lambda program: program.log.stat().st_size)


def start_on_star(name: str, star: Star, logs: Path, module: str, *arguments: str) -> Ranks:
    """Ranks that can use both Wiresum, with a switch in the star's centre or at its aggregators, and Gloo. They run
    `module` with the star's device and these arguments."""
    hosts = star.aggregators or [star.switch]

    def start(ranks: Ranks) -> None:
        controls = [ranks.start_switch(host, name=f"switch{index}") for index, host in enumerate(hosts)]
        control = "+".join(controls)
        ranks.start_torch(module, STAR_DEVICE, *arguments, variables=lambda worker: worker.variables(control))

    return Ranks(name, Site.of_star(star), logs, start)


class _Channel:
    """A socket that carries lines."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._buffer = b""

    def write_line(self, line: str) -> None:
        self.socket.settimeout(10.0)
        self.socket.sendall(line.encode() + b"\n")

    def read_line(self) -> str | None:
        """A complete line; None if there is none yet, or the other side is gone."""
        self.socket.settimeout(0.0)
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            self._buffer += self.socket.recv(1 << 20)
        line, newline, rest = self._buffer.partition(b"\n")
        if not newline:
            return None
        self._buffer = rest
        return line.decode()
