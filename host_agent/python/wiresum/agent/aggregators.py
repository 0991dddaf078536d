"""A worker's memberships at all aggregators of its job: one, or several.

An aggregator is a switch with a join service of its own, and none knows of the others: the job has a number, a key, a
lease and rounds at each. Only the workers know that all aggregators serve one job. This rests on three rules:

- Every worker is at the same aggregators, in the same order: collectives are dealt over them without talking. The order
  is alphabetical, by name. Workers that call them differently find out in their first sum (session.py).
- Joining goes from one to the next in that order, for all jobs, so that two jobs which want the same aggregators do not
  each hold one and wait for the other.
- A worker attends wherever it has joined, from the moment of joining. So an end of the job at one aggregator is known
  to all workers, also to those that still wait for a place at the next, and each then leaves them all, and says why.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from wiresum.agent.config import LOCAL, AgentConfig
from wiresum.agent.diagnosis import describe
from wiresum.agent.errors import JoinError, SwitchUnreachableError, WiresumError
from wiresum.agent.fallback import Fallback
from wiresum.agent.joining import Interruption
from wiresum.agent.membership import Membership
from wiresum.agent.orders import Abort
from wiresum.agent.statistics import TrafficStats
from wiresum.agent.way_out import default_threads, ports_address, way_out
from wiresum.agent.world import WORLD, World
from wiresum.join import Admission, JoinReply
from wiresum.join.lanes import lanes_of_mtu

Bind = Callable[[str, int, tuple[int, int]], int]
"""Binds so many consecutive UDP ports at an address of this host, from the first to the last if these are not 0, and
returns the first. Binding precedes joining, since a join request names the ports."""


class Paths(Protocol):
    """The worker's data paths to the aggregators, by their indices. Any thread may call any method, also before all
    aggregators are joined."""

    def progress(self, aggregator: int) -> TrafficStats | None:
        """Returns the traffic for a heartbeat; None if this worker is stopped."""
        ...

    def traffic(self, aggregator: int) -> TrafficStats: ...

    def halt(self, aggregator: int, slots: int) -> bytes:
        """As in life.py; the job has so many slots there."""
        ...

    def move(self, aggregator: int, grant: JoinReply, roles: bytes) -> None: ...


@dataclass(frozen=True)
class Aggregator:
    """An aggregator that was joined."""

    switch: str
    """Control endpoints of the aggregator and its standbys."""
    address: str
    """This worker's own address towards the aggregator."""
    membership: Membership


class Aggregators:
    """All joined aggregators, made by `join`. Any thread may call any method."""

    def __init__(self, interruption: Interruption, on_ended: Callable[[WiresumError], None]) -> None:
        self.ended: WiresumError | None = None
        """The reason why the job has ended at one of the aggregators."""
        self._joined: list[Aggregator] = []
        self._abort = Abort()
        self._interruption = interruption
        self._lock = threading.Lock()
        self._on_ended = on_ended

    @classmethod
    def join(
        cls,
        config: AgentConfig,
        *,
        job_name: str,
        rank: int,
        world_size: int,
        bind: Bind,
        on_ended: Callable[[WiresumError], None],
        paths: Paths,
        admission: Admission = Admission.QUEUE,
        interruption: Interruption | None = None,
        fallback: Fallback | None = None,
        world: World = WORLD,
    ) -> Aggregators:
        """Returns when the job has been granted by all aggregators of the configuration. If one of them refuses, those
        before it have been left. Raises a `JoinError`, the job's end meanwhile, what `bind` raises, or what
        `interruption` says. `on_ended` is called at most once, in another thread, perhaps before this returns, when the
        job has ended at any aggregator for a reason that is not ours. `fallback` is for a job with one aggregator."""
        if config.switch == LOCAL:
            raise JoinError(
                f"cannot join job '{job_name}': WIRESUM_SWITCH=local is for PyTorch, whose rank 0 starts a switch. "
                f"Start one with `wiresum switch`, and name it",
                code="FAILED_PRECONDITION",
            )
        give_up_at = world.clock.now() + config.join_timeout_s
        parts = config.aggregators
        threads = config.threads or (default_threads(len(parts)) if config.transport_kind == "udp" else 1)
        ways = [way_out(part) for part in parts]
        joined = cls(interruption or Interruption(), on_ended)
        try:
            for part, (address, _) in zip(parts, ways, strict=True):
                port = bind(ports_address(part, address), threads, part.port_range)
                membership = Membership.join(
                    replace(part, join_timeout_s=_in_tenths(give_up_at - world.clock.now())),
                    job_name=job_name,
                    rank=rank,
                    world_size=world_size,
                    address=address,
                    port=port,
                    threads_max=threads,
                    lanes_max=config.lanes or min(lanes_of_mtu(mtu_bytes) for _, mtu_bytes in ways),
                    agreed=config.agreed,
                    admission=admission,
                    interruption=joined._interruption,
                    fallback=fallback,
                    abort=joined._abort,
                    world=world,
                )
                joined._add(Aggregator(part.switch, address, membership), paths)
            joined._check(job_name)
        except BaseException:
            joined.leave()
            raise
        return joined

    def __len__(self) -> int:
        return len(self._joined)

    def __iter__(self) -> Iterator[Aggregator]:
        """Iterates in the order in which collectives are dealt over the aggregators."""
        return iter(self._joined)

    def diagnose(self, tensor: int) -> str:
        """Returns a sentence on who lags in the collective with this tag. Does not raise."""
        diagnoses, silent = {}, []
        for aggregator in self._joined:
            try:
                diagnoses[aggregator.membership.where] = aggregator.membership.diagnose()
            except SwitchUnreachableError as error:
                silent.append(str(error))
        return "; ".join(silent) if silent else describe(diagnoses, tensor)

    def own_stop(self) -> str:
        """Returns a sentence if this process itself was stopped lately; otherwise ""."""
        return next(filter(None, (aggregator.membership.own_stop() for aggregator in self._joined)), "")

    def abort(self, reason: str) -> None:
        """Ends the job for everybody. Does not raise."""
        for aggregator in self._joined:
            aggregator.membership.abort(reason)

    def leave(self) -> None:
        """Leaves all aggregators. Idempotent, bounded, does not raise."""
        for aggregator in self._joined:
            aggregator.membership.leave()
        self._on_ended = lambda _: None  # the old one refers to our owner

    def _add(self, aggregator: Aggregator, paths: Paths) -> None:
        index = len(self._joined)
        self._joined.append(aggregator)
        aggregator.membership.attend(
            on_ended=self._hear,
            progress=functools.partial(paths.progress, index),
            traffic=functools.partial(paths.traffic, index),
            halt=lambda: paths.halt(index, aggregator.membership.grant.slots),
            move=functools.partial(paths.move, index),
        )

    def _hear(self, error: WiresumError) -> None:
        """The first end is the cause; later ones follow from it."""
        with self._lock:
            if self.ended is not None:
                return
            self.ended = error
        self._interruption.interrupt(error)
        self._on_ended(error)

    def _check(self, job_name: str) -> None:
        """Raises a `JoinError` if the grants do not go together."""
        self._interruption.check()
        lanes = {aggregator.membership.grant.lanes for aggregator in self._joined}
        if len(lanes) > 1:
            said = ", ".join(f"{a.membership.grant.lanes} at {a.membership.where}" for a in self._joined)
            raise JoinError(
                f"cannot join job '{job_name}': its packets would not be of one size ({said} words). Set "
                f"WIRESUM_LANES={min(lanes)} at all workers",
                code="FAILED_PRECONDITION",
            )


def _in_tenths(seconds: float) -> float:
    """Rounds up, for people."""
    return max(0.1, math.ceil(10 * seconds) / 10)
