"""Jobs of several workers in this process that may lose their service, against the real service with switches that only
record what they are told. The data path is a double: positions that it says, and moves that it is told."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable
from concurrent import futures
from pathlib import Path

from wiresum import join as messages
from wiresum.agent.absence import Absence
from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import WiresumError
from wiresum.agent.membership import Membership, _End
from wiresum.agent.statistics import TrafficStats
from wiresum.controller import JoinServer, Limits
from wiresum.controller.store import Store
from wiresum_lab.doubles.controller import RecordingDriver
from wiresum_lab.processes import PATIENCE_S, unused_port, wait_until

SLOTS = 16
LIMITS = Limits(heartbeat_interval_ms=100, heartbeat_lost_ms=10_000, connection_lost_ms=1000, reattach_ms=300)


class DataPath:
    """Of one worker."""

    def __init__(self, *ahead: int, first: int = 7) -> None:
        """`ahead`: the slots where it is a round ahead of workers that are not."""
        self.ahead, self.first = ahead, first
        self.halted = 0
        self.moves: list[tuple[messages.JoinReply, bytes]] = []
        self.errors: list[WiresumError] = []
        self.fails = ""
        self.answered = False
        self._packets = 0

    def traffic(self) -> TrafficStats:
        """It has always sent more since the last call."""
        self._packets += 1
        return TrafficStats(packets_sent=self._packets, bytes_received=self._packets if self.answered else 0)

    def halt(self) -> bytes:
        self.halted += 1
        return struct.pack(f">{SLOTS}I", *(self.first + (slot in self.ahead) for slot in range(SLOTS)))

    def move(self, grant: messages.JoinReply, roles: bytes) -> None:
        if self.fails:
            raise ValueError(self.fails)
        self.moves.append((grant, roles))


class Service:
    """One that is killed and started again, at one port; without `state`, a folder, it forgets its jobs."""

    def __init__(self, limits: Limits = LIMITS, state: Path | None = None) -> None:
        self.port = unused_port()
        self.endpoint = f"127.0.0.1:{self.port}"
        self._limits, self._state = limits, state
        self._driver = RecordingDriver()
        self._server: JoinServer | None = None
        self._store: Store | None = None

    def start(self) -> Service:
        if self._state is None:
            self._driver = RecordingDriver()
        else:
            self._store = Store(self._state)
            self._store.begin()
        self._server = JoinServer(self._driver, self._limits, store=self._store)
        self._server.start("127.0.0.1", self.port)
        return self

    def kill(self) -> None:
        """Nobody is told."""
        if self._server is not None:
            self._server.stop(0.0, keep_jobs=True)
            self._server = None
        if self._store is not None:
            self._store.close()
            self._store = None

    def stop(self) -> None:
        """All are told."""
        assert self._server is not None
        self._server.stop(0.5)
        self._server = None

    def jobs(self) -> list[messages.JobReport]:
        """None while it does not serve yet."""
        with contextlib.suppress(RuntimeError):
            return list(self._server.report().jobs) if self._server is not None else []
        return []


class FallbackOf:
    """A service that is started when a worker wants it."""

    def __init__(self, service: Service) -> None:
        self.service, self.target = service, service.endpoint
        self.opened = self.closed = 0
        self._lock = threading.Lock()

    def open(self, grant: messages.JoinReply) -> None:
        with self._lock:
            self.opened += 1
            if self.opened == 1:
                assert grant.slots == SLOTS
                self.service.start()

    def serves(self) -> bool:
        return self.opened > 0

    def close(self) -> None:
        self.closed += 1


class Job:
    """Its workers are in this process; each attends."""

    def __init__(
        self, switch: str, paths: list[DataPath], fallback: FallbackOf | None = None, **fields: object
    ) -> None:
        self.config = AgentConfig(switch=switch, join_timeout_s=PATIENCE_S, slots=SLOTS, **fields)  # type: ignore[arg-type]
        self.paths, self._fallback = paths, fallback
        with futures.ThreadPoolExecutor(len(paths)) as pool:
            self.members = list(pool.map(self._join, range(len(paths))))
        for member, path in zip(self.members, paths, strict=True):
            member.attend(
                on_ended=path.errors.append, progress=lambda: 1, traffic=path.traffic, halt=path.halt, move=path.move
            )
        self.secret = self.members[0].grant.members_secret

    def _join(self, rank: int) -> Membership:
        return Membership.join(
            self.config,
            job_name="a-job",
            rank=rank,
            world_size=len(self.paths),
            address="127.0.0.1",
            port=5000 + 16 * rank,
            threads_max=2,
            lanes_max=100,
            can_move=True,
            fallback=self._fallback,
        )

    def await_moves(self, times: int) -> list[bytes]:
        """Returns the roles of the last."""
        wait_until(
            lambda: all(len(path.moves) >= times for path in self.paths), f"{times} moves", PATIENCE_S, self.check
        )
        grants = [path.moves[-1][0] for path in self.paths]
        assert len({grant.key for grant in grants}) == 1
        assert {grant.members_secret for grant in grants} == {self.secret}, "it is still the job's"
        before = [member._events for member in self.members]
        wait_until(
            lambda: all(member._events > events for member, events in zip(self.members, before, strict=True)),
            "all attend",
            PATIENCE_S,
            self.check,
        )
        return [path.moves[-1][1] for path in self.paths]

    def check(self) -> None:
        assert [path.errors for path in self.paths] == [[]] * len(self.paths)

    def await_errors(self) -> list[WiresumError]:
        wait_until(lambda: all(path.errors for path in self.paths), "all have ended")
        return [path.errors[0] for path in self.paths]

    def leave(self) -> None:
        for member in self.members:
            member.leave()


class CutOff:
    """A worker that reaches no service, until `over`."""

    def __init__(self, member: Membership, *, halts: bool = True) -> None:
        """`halts`: it takes its service for gone."""
        self._cause = "connection refused" if halts else "silence"
        self._member, self._attend = member, member._attend_until_broken
        member._attend_until_broken = self._refused  # type: ignore[method-assign]
        self._over = threading.Event()
        member._hang_up()

    def _refused(self, absence: Absence) -> _End | None:
        if self._over.wait(0.05):
            return self._attend(absence)
        absence.cause = self._cause
        return None

    def over(self) -> None:
        self._over.set()


Start = Callable[..., Job]
"""A fixture: of a job that leaves when the test ends."""
