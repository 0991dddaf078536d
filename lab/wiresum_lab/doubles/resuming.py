"""Jobs of several workers that may lose their service, in the virtual time of virtual_network.py. The data path is a
double: it returns positions when it halts, and records moves."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from wiresum import join as messages
from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import WiresumError
from wiresum.agent.membership import Membership
from wiresum.agent.orders import Abort
from wiresum.agent.statistics import TrafficStats
from wiresum_lab.doubles.virtual_network import Host, Network, Service

SLOTS = 16
JOIN_TIMEOUT_S = 60.0
_SETTINGS = {"join_timeout_s": JOIN_TIMEOUT_S, "slots": SLOTS, "share": False}


class DataPath:
    """The data path of one worker."""

    def __init__(self, *ahead: int, first: int = 7) -> None:
        """In the slots `ahead` the worker waits for round first + 1, in the others for round `first`."""
        self.ahead, self.first = ahead, first
        self.halted = 0
        self.moves: list[tuple[messages.JoinReply, bytes]] = []
        self.errors: list[WiresumError] = []
        self.fails: dict[str, Exception] = {}
        """Errors that `halt` or `move` raises, by the method's name."""
        self.answered = False
        self._packets = 0

    def traffic(self) -> TrafficStats:
        """The traffic, with one packet more in each call."""
        self._packets += 1
        return TrafficStats(packets_sent=self._packets, bytes_received=self._packets if self.answered else 0)

    def halt(self) -> bytes:
        self.halted += 1
        if "halt" in self.fails:
            raise self.fails["halt"]
        return struct.pack(f">{SLOTS}I", *(self.first + (slot in self.ahead) for slot in range(SLOTS)))

    def move(self, grant: messages.JoinReply, roles: bytes) -> None:
        if "move" in self.fails:
            raise self.fails["move"]
        self.moves.append((grant, roles))


class FallbackOf:
    """A fallback service, which starts when the first worker opens it."""

    def __init__(self, service: Service) -> None:
        self.service, self.target, self.trouble = service, service.endpoint, ""
        self.opened = self.closed = 0
        self.users: set[int] = set()
        """Ranks of workers that have opened it, and not closed it since."""

    def of(self, rank: int) -> _FallbackOfOne:
        return _FallbackOfOne(self, rank)

    def open(self, grant: messages.JoinReply) -> None:
        self.opened += 1
        if self.opened == 1:
            assert grant.slots == SLOTS
            self.service.start()

    def serves(self) -> bool:
        return self.opened > 0 and not self.trouble


class _FallbackOfOne:
    """The view that one worker has of a fallback service, which it shares with the other workers."""

    def __init__(self, shared: FallbackOf, rank: int) -> None:
        self._shared, self._rank, self.target = shared, rank, shared.target
        self.serves = shared.serves

    @property
    def trouble(self) -> str:
        return self._shared.trouble

    def open(self, grant: messages.JoinReply) -> None:
        self._shared.users.add(self._rank)
        self._shared.open(grant)

    def close(self) -> None:
        self._shared.users.discard(self._rank)
        self._shared.closed += 1


class Job:
    """A job whose workers attend, each from a host of its own."""

    def __init__(
        self, network: Network, switch: str, paths: list[DataPath], fallback: FallbackOf | None = None, **fields: object
    ) -> None:
        """Joins all workers. `fields` are of the configuration, but `can_move` and `addresses`, which are for the
        workers. `beside` is the job of the same workers at the aggregator before this one, if there is one."""
        self.network, self.paths, self.fallback = network, paths, fallback
        self._can_move = bool(fields.pop("can_move", True))
        self._addresses: Any = fields.pop("addresses", ["127.0.0.1"] * len(paths))
        beside: Any = fields.pop("beside", None)
        self.config = AgentConfig(switch=switch, **(_SETTINGS | fields))  # type: ignore[arg-type]
        self.hosts = beside.hosts if beside is not None else [Host(network) for _ in paths]
        self._aborts = beside._aborts if beside is not None else [Abort() for _ in paths]
        self.members: list[Membership] = network.run(*(partial(self._join, rank) for rank in range(len(paths))))
        for member, path in zip(self.members, paths, strict=True):
            halt, move = (path.halt, path.move) if self._can_move else (None, None)
            member.attend(
                on_ended=path.errors.append,
                progress=lambda: TrafficStats(round_newest=1),
                traffic=path.traffic,
                halt=halt,
                move=move,
            )
        self.secret = self.members[0].grant.members_secret

    def _join(self, rank: int) -> Membership:
        return Membership.join(
            self.config,
            job_name="a-job",
            rank=rank,
            world_size=len(self.paths),
            address=self._addresses[rank],
            port=5000 + 16 * rank,
            threads_max=2,
            lanes_max=100,
            can_move=self._can_move,
            fallback=self.fallback.of(rank) if self.fallback is not None else None,
            abort=self._aborts[rank],
            world=self.hosts[rank],
        )

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


Start = Callable[..., Job]
"""The type of a fixture that starts jobs, which leave when the test ends."""
