"""A worker's membership in one job: the control side (gRPC) and the native data path, as one object."""

from __future__ import annotations

import array
import os
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from wiresum.agent import _native
from wiresum.agent.aggregators import Aggregator, Aggregators
from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import (
    CollectiveTimeoutError,
    DivergedError,
    SessionClosedError,
    SwitchUnreachableError,
    WiresumError,
)
from wiresum.agent.statistics import SessionStats, session_stats_of
from wiresum.agent.way_out import IPV4_UDP_HEADER_BYTES, default_spin_us

Dtype = _native.Dtype
Scaling = _native.Scaling
Status = _native.Status

FLOATING = (Dtype.F32, Dtype.F16, Dtype.BF16)
# For what every operation passes through: looking a member up through its class takes EnumType several steps.
_RAW, _UNSCALED, _BLOCK_EXPONENT, _OK = Dtype.RAW, Scaling.NONE, Scaling.BLOCK_EXPONENT, Status.OK

EXACT_ELEMENTS_MAX = {"auto": 4096, "exact": 2**64 - 1, "block": 0}
"""By AgentConfig.precision: the longest sum of floats that is rounded once (docs/numerics.md has the figures)."""
NATIVE_WAIT_S = 1.0
"""How long a wait without a deadline asks for at once; native code bounds it, so that Python sees its signals."""
HELLO_TIMEOUT_S = 10.0
# Enough chunks that each engine thread sends full packets (SchedulerConfig::chunks_per_thread_min).
HELLO_CHUNKS_PER_THREAD = 16


class Region(NamedTuple):
    """A run of elements in memory. Addresses, 0 for none: without a source this worker contributes zeros,
    without a destination it drops the sum. See host_agent/src/worker/collective.hpp for how the collectives
    are made of regions."""

    source: int
    destination: int
    elements: int


class Operation:
    """A collective that was submitted. The memory of its regions must stay valid until it is done."""

    __slots__ = ("_native", "_session")

    def __init__(self, session: Session, native: _native.Operation) -> None:
        self._session = session
        self._native = native

    @property
    def token(self) -> int:
        """Its own among the session's operations."""
        return self._native.token

    def done(self) -> bool:
        return self._native.done

    @property
    def error(self) -> WiresumError | None:
        """Why it failed; None if it did not. Valid once done."""
        return self._session._error_of(self._native)

    def wait(self, timeout_s: float | None = None) -> None:
        """Waits until it is done. Raises the WiresumError that ended it; TimeoutError if only this wait ran out."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._native.wait(NATIVE_WAIT_S if deadline is None else deadline - time.monotonic()):
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"the collective was not complete after {timeout_s} s")
        if (error := self.error) is not None:
            raise error


class Session:
    """One process's membership in one job. Make it with `Session.join`; any thread may use it."""

    def __init__(self, aggregators: Aggregators, native: _native.Session, *, job_name: str, sparse: bool) -> None:
        grants = [aggregator.membership.grant for aggregator in aggregators]
        self.job_name = job_name
        self.rank: int = grants[0].worker
        self.world_size: int = grants[0].workers
        self.lanes: int = grants[0].lanes
        self.threads: int = sum(grant.threads for grant in grants)
        self.failure: WiresumError | None = None
        self._aggregators = aggregators
        self._native = native
        self._sparse = sparse
        self._failure_lock = threading.Lock()
        self._greeted = False

    @classmethod
    def join(cls, config: AgentConfig, *, job_name: str, rank: int, world_size: int, queue: bool = True) -> Session:
        """Joins the job at all aggregators that the configuration names, opens the data path, and proves that full-size
        packets pass it both ways. Without `queue` the job does not wait for slots that other jobs have: a JoinError
        with the code RESOURCE_EXHAUSTED.

        Raises JoinError if the job will not have us, SwitchUnreachableError if control or data do not get through.
        """
        aggregators = Aggregators.join(config, job_name=job_name, rank=rank, world_size=world_size, queue=queue)
        try:
            data_path = _open_data_path(config, aggregators)
            session = cls(aggregators, data_path, job_name=job_name, sparse=config.sparse)
        except BaseException:
            aggregators.leave()
            raise
        try:
            aggregators.attend(on_ended=session._on_ended, progress=session._round_newest)
            session._greet()
        except BaseException:
            session.close()
            raise
        return session

    def submit(
        self,
        regions: Sequence[Region],
        *,
        dtype: Dtype,
        lane_bits: int = 32,
        scaling: Scaling | None = None,
        fixed_scale: float = 1.0,
        average: bool = False,
        signature: int = 0,
        may_be_sparse: bool = False,
        timeout_s: float | None = None,
        notify: bool = True,
    ) -> Operation:
        """Starts a collective; every worker must submit the same ones in the same order. No regions: a barrier.

        `scaling` defaults to none for integers and bytes, and for floats to what AgentConfig.precision says: exact, or
        block floating point in lanes of `lane_bits`; RAW counts as 8-bit lanes.
        `signature` (16 bits) describes the call, so that workers which call different collectives find out.
        With `may_be_sparse`, which all workers must say alike and which needs everybody's contribution to every region,
        blocks that are zero at all workers may be left out (docs/sparse.md); the sums are the same.
        With `notify`, `wait_completed` will hand the operation out once it is done.
        """
        if (failure := self.failure) is not None:
            raise failure
        if scaling is None:
            scaling = _BLOCK_EXPONENT if dtype in FLOATING else _UNSCALED
        native = self._native.submit(
            regions,
            dtype=dtype,
            lane_bits=8 if dtype is _RAW else lane_bits,
            scaling=scaling,
            fixed_scale=fixed_scale,
            divisor=float(self.world_size) if average else 1.0,
            signature=signature & 0xFFFF,
            may_be_sparse=may_be_sparse and self._sparse,
            timeout_s=-1.0 if timeout_s is None else timeout_s,
            notify=notify,
        )
        return Operation(self, native)

    def wait_completed(self, timeout_s: float) -> list[Operation]:
        """Operations that have completed since the last call, each once; sleeps up to half a second for the first."""
        return [Operation(self, native) for native in self._native.take_completed(timeout_s)]

    def stats(self) -> SessionStats:
        return session_stats_of(self._native.stats(), [aggregator.switch for aggregator in self._aggregators])

    def abort(self, reason: str) -> None:
        """Ends the job for everybody, with `reason`. Pending and later operations here fail with it, too."""
        if self._fail(WiresumError(reason)):
            self._aggregators.abort(reason)

    def close(self) -> None:
        """Leaves the job. What is still pending fails with SessionClosedError. Idempotent."""
        self._fail(SessionClosedError(f"the session of job '{self.job_name}' was closed"))
        self._native.close()
        self._aggregators.leave()

    def _greet(self) -> None:
        """A first all-reduce of full packets through every thread: finds a blocked port or a small MTU at once, and
        workers whose chunks do not meet at the same aggregators, as each chunk's numbers are its own."""
        chunks = range(1, HELLO_CHUNKS_PER_THREAD * self.threads + 1)
        values = _in_chunks([chunk * (self.rank + 1) for chunk in chunks], self.lanes)
        address, words = values.buffer_info()
        hello = self.submit([Region(address, address, words)], dtype=Dtype.I32, timeout_s=HELLO_TIMEOUT_S, notify=False)
        try:
            hello.wait()
            self._greeted = True
        except CollectiveTimeoutError as error:
            raise SwitchUnreachableError(self._why_data_does_not_pass()) from error
        everybody = self.world_size * (self.world_size + 1) // 2
        expected = _in_chunks([chunk * everybody for chunk in chunks], self.lanes)
        if values != expected:
            wrong = next(index for index, pair in enumerate(zip(values, expected, strict=True)) if pair[0] != pair[1])
            raise WiresumError(
                f"the first sum came back wrong ({values[wrong]}, expected {expected[wrong]}): {self._why_wrong()}"
            )

    def _why_wrong(self) -> str:
        altered = "something between worker and switch alters packets"
        if len(self._aggregators) == 1:
            return altered
        return (
            "all workers must call the aggregators by the same names in WIRESUM_SWITCH, and not one by an address and "
            f"another by a host name. If they do, {altered}"
        )

    def _why_data_does_not_pass(self) -> str:
        parts = list(zip(self._aggregators, self.stats().aggregators, strict=True))
        for aggregator, stats in parts:
            if stats.transport_error:
                return f"{_data_ports(aggregator)} cannot be used: {os.strerror(stats.transport_error)}"
        for aggregator, stats in parts:
            if stats.results == 0:
                return self._why_nothing_comes(aggregator)
        where = " and ".join(_data_ports(aggregator) for aggregator, _ in parts)
        return f"only part of what was sent to {where} came back: do all workers reach it?"

    def _why_nothing_comes(self, aggregator: Aggregator) -> str:
        packet_bytes = 4 * self.lanes + _native.HEADER_BYTES + IPV4_UDP_HEADER_BYTES
        return (
            f"the control connection works, but nothing came back from {_data_ports(aggregator)} in "
            f"{HELLO_TIMEOUT_S:.0f} s. Does a firewall block UDP, or does a link on the way not pass IP packets of "
            f"{packet_bytes} bytes (WIRESUM_LANES makes them smaller)?" + _doubt_about_multicast(aggregator)
        )

    def _round_newest(self, aggregator: int) -> int:
        return self.stats().aggregators[aggregator].round_newest

    def _on_ended(self, error: WiresumError) -> None:
        self._fail(error)

    def _fail(self, error: WiresumError) -> bool:
        """The first failure stays: it is the cause. Was this it?"""
        with self._failure_lock:
            if self.failure is not None:
                return False
            self.failure = error
        self._native.abort()
        return True

    def _error_of(self, operation: _native.Operation) -> WiresumError | None:
        if not operation.done or operation.status is _OK:
            return None
        if self.failure is None:
            self._fail_with_status(operation)
        return self.failure

    def _fail_with_status(self, operation: _native.Operation) -> None:
        """The data path itself gave up: say why, here and to the others."""
        sequence = operation.tensor & 0xFFFF
        if operation.status is Status.DIVERGED:
            error: WiresumError = DivergedError(
                f"rank {self.rank} of job '{self.job_name}': "
                + (
                    f"the workers call different collectives at number {sequence}. All ranks must call the same "
                    "collectives, with the same sizes and types, in the same order"
                    if self._greeted
                    else f"the first sum is of chunks that do not belong together: {self._why_wrong()}"
                )
            )
        elif operation.status is Status.TIMED_OUT:
            error = CollectiveTimeoutError(
                f"rank {self.rank} of job '{self.job_name}': collective number {sequence} ran out of time. "
                + self._aggregators.diagnose(operation.tensor)
            )
        else:
            error = WiresumError(f"rank {self.rank} of job '{self.job_name}': the collective was aborted")
        if self._fail(error):
            self._aggregators.abort(str(error))


def _in_chunks(numbers: Sequence[int], lanes: int) -> array.array[int]:
    """Full packets, each with a number of its own in all lanes."""
    values = array.array("i")
    for number in numbers:
        values.extend([number] * lanes)
    return values


def _doubt_about_multicast(aggregator: Aggregator) -> str:
    group = aggregator.membership.grant.results_group
    if group is None:
        return ""
    return (
        f" The switch sends results to the multicast group {group.address}: does the network carry that from it to "
        "this worker (IGMP snooping needs a querier)? A switch without --multicast sends to each worker"
    )


def _data_ports(aggregator: Aggregator) -> str:
    grant = aggregator.membership.grant
    first = grant.switch_endpoint.port
    return f"the switch's data ports (UDP {grant.switch_endpoint.address}:{first}..{first + grant.threads - 1})"


def _open_data_path(config: AgentConfig, aggregators: Aggregators) -> _native.Session:
    parts = [_native_aggregator(aggregator) for aggregator in aggregators]
    threads = sum(aggregator.membership.grant.threads for aggregator in aggregators)
    spin_us = config.spin_us if config.spin_us >= 0 else default_spin_us(threads)
    return _native.Session(
        parts,
        spin_s=spin_us * 1e-6,
        offload=config.offload,
        transport=config.transport,
        device=config.device,
        exact_elements_max=EXACT_ELEMENTS_MAX[config.precision],
    )


def _native_aggregator(aggregator: Aggregator) -> _native.Aggregator:
    grant = aggregator.membership.grant
    group = grant.results_group
    return _native.Aggregator(
        ports=aggregator.ports,
        job=grant.job,
        key=grant.key,
        worker=grant.worker,
        workers=grant.workers,
        lanes=grant.lanes,
        slots=grant.slots,
        threads=grant.threads,
        own_address=aggregator.address,
        switch_address=grant.switch_endpoint.address,
        switch_port=grant.switch_endpoint.port,
        group_address=group.address if group else "",
        group_port=group.port if group else 0,
    )
