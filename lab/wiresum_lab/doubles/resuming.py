"""Jobs of several workers that may lose their service, in the virtual time of virtual_network.py. The data path is a
double: it returns positions when it halts, and records moves."""

from __future__ import annotations

import itertools
import math
import socket
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from wiresum import join as messages
from wiresum.agent.child_switch import STOP_S_MAX
from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import WiresumError
from wiresum.agent.fallback import Fallback, Home, _registry
from wiresum.agent.membership import Membership
from wiresum.agent.orders import Abort
from wiresum.agent.statistics import TrafficStats
from wiresum.controller.driver import Endpoint
from wiresum.controller.service.served_jobs import ServedJobs
from wiresum.join.served import unpack
from wiresum.switch.parent import ORPHAN_S_MAX
from wiresum_lab.clocks.for_threads import Task
from wiresum_lab.doubles.controller import switch
from wiresum_lab.doubles.virtual_network import SIZES, Host, Network, Running, Service

JOB, SLOTS = "a-job", 16
JOIN_TIMEOUT_S = 60.0
_SETTINGS = {"join_timeout_s": JOIN_TIMEOUT_S, "slots": SLOTS, "share": False}


class DataPath:
    """The data path of one worker."""

    def __init__(self, *ahead: int, first: int = 7) -> None:
        """In the slots `ahead` the worker waits for round first + 1, in the others for round `first`."""
        self.ahead, self.first = ahead, first
        self.halted = 0
        self.stands_still = False
        self.moves: list[tuple[messages.JoinReply, bytes]] = []
        self.errors: list[WiresumError] = []
        self.fails: dict[str, Exception] = {}
        """Errors that `halt` or `move` raises, by the method's name."""
        self.answered = False
        self._packets = 0

    def attend(self, member: Membership, on_ended: Callable[[WiresumError], None] | None = None) -> None:
        """As this worker's data path. `on_ended`: None adds the error to `errors`."""
        member.attend(
            on_ended=on_ended or self.errors.append,
            progress=lambda: TrafficStats(round_newest=1),
            traffic=self.traffic,
            halt=self.halt,
            move=self.move,
        )

    def traffic(self) -> TrafficStats:
        """The traffic, with one packet more in each call while it does not stand still."""
        self._packets += not self.stands_still
        return TrafficStats(packets_sent=self._packets, bytes_received=self._packets if self.answered else 0)

    def halt(self) -> bytes:
        self.halted += 1
        if "halt" in self.fails:
            raise self.fails["halt"]
        self.stands_still = True
        return struct.pack(f">{SLOTS}I", *(self.first + (slot in self.ahead) for slot in range(SLOTS)))

    def move(self, grant: messages.JoinReply, roles: bytes) -> None:
        if "move" in self.fails:
            raise self.fails["move"]
        self.moves.append((grant, roles))
        self.stands_still = False


class Paths:
    """The data paths of one worker to all aggregators, by which nothing has come."""

    def __init__(self, traffic: Callable[[int], TrafficStats] = lambda _: TrafficStats(round_newest=1)) -> None:
        self.traffic = self.progress = traffic
        self.done: list[tuple[str, int]] = []
        """What they were told, and of which aggregator."""

    def halt(self, aggregator: int, slots: int) -> bytes:
        self.done.append(("halt", aggregator))
        return struct.pack(f">{slots}I", *[1] * slots)

    def move(self, aggregator: int, grant: messages.JoinReply, roles: bytes) -> None:
        self.done.append(("move", aggregator))


class Child:
    """The switch that rank 0 starts, in virtual time: a run of a service."""

    def __init__(self, of: FallbackOf, command: list[str], served: bytes) -> None:
        options = dict(itertools.pairwise(command))
        sizes = replace(SIZES, slots=int(options["--slots"]), lanes_max=int(options["--lanes"]))
        self.data = ("127.0.0.1", next(of.network.ports))
        self._of, self._network, self._served = of, of.network, ServedJobs()
        self._run: Running | None = None
        self._has_ended = False
        self.tell(served)
        at = Endpoint(*self.data)
        of.service.sizes, of.service.switches = sizes, lambda: [switch("fallback", sizes, endpoint=at)]
        of.network.start_task(self._begin(of.start_s()), "fallback's child")

    def _begin(self, after_s: float) -> Task:
        """`after_s`: infinite if it never gets ready, and negative if it ends in place of that."""
        yield lambda: self._has_ended, self._network.now() + abs(after_s)
        if self._has_ended or after_s < 0 or self._of.is_orphan:
            self._has_ended = True
            return
        self._run = self._of.service.start().running
        self._run.served = self._served
        yield lambda: not self.runs, math.inf
        self._of.on_end(self._run)

    @property
    def runs(self) -> bool:
        return self._run.runs if self._run is not None else not self._has_ended

    @property
    def is_ready(self) -> bool:
        return self._run is not None and self.runs

    def tell(self, served: bytes) -> None:
        self._served.replace(unpack(served) or [])

    def said(self) -> str:
        return "it still starts" if self.runs else "status 1"

    def stop(self) -> None:
        """As its parent does, which may have to kill it."""
        self._has_ended = True
        if self._of.is_orphan or self._run is None or not self._run.runs:
            return
        if self._network.wait_for(self._run.is_thawed, self._network.now() + STOP_S_MAX):
            self._of.service.stop()
        else:
            self._of.service.kill()


class FallbackOf:
    """A job's fallback. All of it is real but the child that rank 0 starts."""

    def __init__(self, service: Service) -> None:
        self.service, self.network, self.target = service, service.network, service.endpoint
        self.children: list[Child] = []
        """Those that were started, of which one runs at a time."""
        self.start_s: Callable[[], float] = float
        """Seconds until the next child is ready: `Child._begin`."""
        self.on_end: Callable[[Running], object] = bool
        """Called with its run when a child that was ready has ended."""
        self.is_orphan = False
        """Whether rank 0's process has died."""
        self.told: list[str] = []
        """What another process was told that had the port."""
        self._squatter: Running | None = None
        self._ends: list[Fallback] = []
        self._home: Home | None = None

    def of(self, rank: int, config: AgentConfig, host: Host) -> Fallback:
        home = None
        if rank == 0:
            home = self._home = Home(self.target, 0, host, self._start)
            home._held = socket.socket()  # virtual ports need not be held
            home._use()
        self._ends.append(Fallback(replace(config, fallback=self.target), JOB, home, host))
        return self._ends[-1]

    @property
    def is_open(self) -> bool:
        """Whether rank 0 wants it to serve."""
        return self._home is not None and bool(self._home._users)

    @property
    def is_barred(self) -> bool:
        """Whether rank 0 can start none."""
        return self.is_orphan or self._squatter is not None

    @property
    def child_runs(self) -> bool:
        return any(child.runs for child in self.children)

    @property
    def is_given_back(self) -> bool:
        return self.target not in _registry.homes

    def _start(self, command: list[str], _held: object, served: bytes) -> Child:
        if self.is_barred:
            raise OSError("no process can be started")
        assert not self.child_runs, "one runs at a time"
        self.children.append(Child(self, command, served))
        return self.children[-1]

    def squat(self) -> None:
        """Another process takes the port, with a switch that serves anybody."""
        self._squatter = self.service.start().running
        for name in ("take_join", "take_stream"):
            setattr(self._squatter, name, lambda *_, name=name: self.told.append(name))

    def unsquat(self) -> None:
        if self._squatter is not None:
            self.service.kill()
            self._squatter = None

    def orphan(self) -> None:
        """Rank 0's process dies, and its child ends when its jobs have, or some seconds later."""
        self.is_orphan = True
        if self.service.endpoint in self.network.services and self._squatter is None:
            self.network.start(partial(self._end_orphan, self.service.running), "orphan")

    def _end_orphan(self, running: Running) -> None:
        self.network.wait_for(lambda: not self.service.jobs(), self.network.now() + ORPHAN_S_MAX)
        self.network.wait_for(running.is_thawed, math.inf)
        if running.runs:
            self.service.stop()

    def give_back(self) -> None:
        """The job is over."""
        for each in self._ends:
            each.give_back()


class Job:
    """A job whose workers attend, each from a host of its own."""

    def __init__(
        self, network: Network, switch: str, paths: list[DataPath], fallback: FallbackOf | None = None, **fields: object
    ) -> None:
        """Joins all workers. `fields` are of the configuration, but `addresses`, which are the workers'. `beside` is
        the job of the same workers at the aggregator before this one, if there is one."""
        self.network, self.paths, self.fallback = network, paths, fallback
        self._addresses: Any = fields.pop("addresses", ["127.0.0.1"] * len(paths))
        beside: Any = fields.pop("beside", None)
        self.config = AgentConfig(switch=switch, **(_SETTINGS | fields))  # type: ignore[arg-type]
        self.hosts = beside.hosts if beside is not None else [Host(network) for _ in paths]
        self._aborts = beside._aborts if beside is not None else [Abort() for _ in paths]
        self.members: list[Membership] = network.run(*(partial(self._join, rank) for rank in range(len(paths))))
        for member, path in zip(self.members, paths, strict=True):
            path.attend(member)
        self.secret = self.members[0].grant.members_secret

    def _join(self, rank: int) -> Membership:
        fallback = self.fallback.of(rank, self.config, self.hosts[rank]) if self.fallback is not None else None
        member = Membership.join(
            self.config,
            job_name=JOB,
            rank=rank,
            world_size=len(self.paths),
            address=self._addresses[rank],
            port=5000 + 16 * rank,
            threads_max=2,
            lanes_max=100,
            fallback=fallback,
            abort=self._aborts[rank],
            world=self.hosts[rank],
        )
        if fallback is not None:
            fallback.know(member.grant)
        return member

    def await_moves(self, times: int) -> list[bytes]:
        """Waits until every worker has moved so many times. Returns the roles of each worker in its last move."""
        wait = self.network.wait_until
        wait(lambda: all(len(path.moves) >= times for path in self.paths), f"{times} moves", meanwhile=self.check)
        grants = [path.moves[-1][0] for path in self.paths]
        assert len({grant.key for grant in grants}) == 1
        assert {grant.members_secret for grant in grants} == {self.secret}, "it is still the job's"
        self.await_heard()
        return [path.moves[-1][1] for path in self.paths]

    def await_heard(self) -> None:
        """Waits until each worker has heard from its service again."""
        before = [member.heard for member in self.members]
        self.network.wait_until(
            lambda: all(member.heard > events for member, events in zip(self.members, before, strict=True)),
            "all attend",
            meanwhile=self.check,
        )

    def check(self) -> None:
        assert [path.errors for path in self.paths] == [[]] * len(self.paths)

    def await_errors(self) -> list[WiresumError]:
        self.network.wait_until(lambda: all(path.errors for path in self.paths), "all have ended")
        return [path.errors[0] for path in self.paths]

    def leave(self) -> None:
        self.network.run(*(member.leave for member in self.members))
        if self.fallback is not None:
            self.fallback.give_back()


Start = Callable[..., Job]
"""The type of a fixture that starts jobs, which leave when the test ends."""
