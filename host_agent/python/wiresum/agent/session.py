"""A worker's membership in one job: the control side (gRPC) and the native data path, as one object."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from wiresum.agent import _native, causes
from wiresum.agent.aggregators import Aggregator, Aggregators
from wiresum.agent.causes import TOO_LARGE, Causes
from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import CollectiveTimeoutError, SessionClosedError, WiresumError
from wiresum.agent.statistics import SessionStats, TrafficStats, session_stats_of
from wiresum.agent.way_out import spin_us_of

Dtype = _native.Dtype
Form = _native.Form
Scaling = _native.Scaling
Status = _native.Status

FLOATING = (Dtype.F32, Dtype.F16, Dtype.BF16)
# For what every operation passes through: looking a member up through its class takes EnumType several steps.
_RAW, _UNSCALED, _BLOCK_EXPONENT, _OK = Dtype.RAW, Scaling.NONE, Scaling.BLOCK_EXPONENT, Status.OK

EXACT_ELEMENTS_MAX = {"auto": 4096, "exact": 2**64 - 1, "block": 0}
"""By AgentConfig.precision: the longest sum of floats that is rounded once (docs/numerics.md has the figures)."""
NATIVE_WAIT_S = 1.0
"""How long a wait without a deadline asks for at once; native code bounds it, so that Python sees its signals."""


class Region(NamedTuple):
    """A run of elements in memory. Addresses, 0 for none: without a source this worker contributes zeros,
    without a destination it drops the sum. See host_agent/src/worker/collective.hpp for how the collectives
    are made of regions."""

    source: int
    destination: int
    elements: int


class Operation:
    """A collective that was submitted. The memory of its regions must stay valid until it is done."""

    __slots__ = ("_session", "native")

    def __init__(self, session: Session, native: _native.Operation) -> None:
        self._session = session
        self.native = native

    @property
    def token(self) -> int:
        """Its own among the session's operations."""
        return self.native.token

    @property
    def number(self) -> int:
        """The same at all workers, unless they call different collectives: 16 bits, as on the wire."""
        return self.native.tensor & 0xFFFF

    def done(self) -> bool:
        return self.native.done

    @property
    def error(self) -> WiresumError | None:
        """Why it failed; None if it did not. Valid once done."""
        return self._session._error_of(self.native)

    def wait(self, timeout_s: float | None = None) -> None:
        """Waits until it is done. Raises the WiresumError that ended it; TimeoutError if only this wait ran out."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.native.wait(NATIVE_WAIT_S if deadline is None else deadline - time.monotonic()):
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"the collective was not complete after {timeout_s} s")
        if (error := self.error) is not None:
            raise error


class Session:
    """One process's membership in one job. Make it with `Session.join`; any thread may use it."""

    def __init__(
        self, aggregators: Aggregators, native: _native.Session, *, job_name: str, rank: int, sparse: bool
    ) -> None:
        grants = [aggregator.membership.grant for aggregator in aggregators]
        self.job_name = job_name
        self.rank = rank
        self.world_size: int = grants[0].workers
        self.lanes: int = grants[0].lanes
        self.threads: int = sum(grant.threads for grant in grants)
        self.failure: WiresumError | None = None
        self._aggregators = aggregators
        self._causes = Causes(aggregators, job_name)
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
            data_path = _open_data_path(config, aggregators, rank)
            session = cls(aggregators, data_path, job_name=job_name, rank=rank, sparse=config.sparse)
        except BaseException:
            aggregators.leave()
            raise
        try:
            aggregators.attend(on_ended=session._on_ended, progress=session._round_newest, traffic=session._traffic)
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
        bits: int = 32,
        scaling: Scaling | None = None,
        fixed_scale: float = 1.0,
        average: bool = False,
        signature: int = 0,
        may_be_sparse: bool = False,
        timeout_s: float | None = None,
        notify: bool = True,
    ) -> Operation:
        """Starts a collective; every worker must submit the same ones in the same order. No regions: a barrier.

        `form` has what most of the arguments mean. With `notify`, `wait_completed` will hand the operation out once it
        is done.
        """
        if (failure := self.failure) is not None:
            raise failure
        form = self.form(
            dtype=dtype,
            bits=bits,
            scaling=scaling,
            fixed_scale=fixed_scale,
            average=average,
            signature=signature,
            may_be_sparse=may_be_sparse,
        )
        native = self._native.submit(regions, form, timeout_s=-1.0 if timeout_s is None else timeout_s, notify=notify)
        return Operation(self, native)

    def form(
        self,
        *,
        dtype: Dtype,
        bits: int = 32,
        scaling: Scaling | None = None,
        fixed_scale: float = 1.0,
        average: bool = False,
        signature: int = 0,
        may_be_sparse: bool = False,
    ) -> Form:
        """A collective without its memory, for native code that submits by itself (capi.hpp).

        `scaling` defaults to none for integers and bytes, and for floats to what AgentConfig.precision says: exact, or
        block floating point in `bits` bits an element; RAW counts as 8 bits.
        `signature` (16 bits) describes the call, so that workers which call different collectives find out.
        With `may_be_sparse`, which all workers must say alike and which needs everybody's contribution to every region,
        blocks that are zero at all workers may be left out (docs/sparse.md); the sums are the same.
        """
        if scaling is None:
            scaling = _BLOCK_EXPONENT if dtype in FLOATING else _UNSCALED
        return Form(
            dtype=dtype,
            lane_bits=8 if dtype is _RAW else bits,
            scaling=scaling,
            fixed_scale=fixed_scale,
            divisor=float(self.world_size) if average else 1.0,
            signature=signature & 0xFFFF,
            may_be_sparse=may_be_sparse and self._sparse,
        )

    @property
    def native(self) -> _native.Session:
        """For native code (capi.hpp)."""
        return self._native

    def notify(self, operation: Operation) -> None:
        """`wait_completed` will hand the operation out, too, though it was submitted otherwise."""
        self._native.notify(operation.native)

    def wait_completed(self, timeout_s: float) -> list[Operation]:
        """Operations that have completed since the last call, each once; sleeps up to half a second for the first."""
        return [Operation(self, native) for native in self._native.take_completed(timeout_s)]

    def stats(self) -> SessionStats:
        return session_stats_of(self._native.stats(), [aggregator.switch for aggregator in self._aggregators])

    def abort(self, reason: str) -> None:
        """Ends the job for everybody, with `reason`. Pending and later operations here fail with it, too."""
        if self._fail(WiresumError(reason)):
            self._aggregators.abort(reason)

    def diverge(self, number: int) -> None:
        """Ends the job for everybody, since others have not called the collective of this number, but something that
        the data path does not see."""
        error = self._causes.of_divergence(number)
        if self._fail(error):
            self._aggregators.abort(str(error))

    def close(self) -> None:
        """Leaves the job. What is still pending fails with SessionClosedError. Idempotent."""
        self._fail(SessionClosedError(f"the session of job '{self.job_name}' was closed"))
        self._native.close()
        self._aggregators.leave()

    def _greet(self) -> None:
        """The first all-reduce (engine/greeting.hpp)."""
        greeting = _native.Greeting(self._native, int(causes.GREETING_TIMEOUT_S * 1e9))
        try:
            Operation(self, greeting.operation).wait()
            self._greeted = True
        except CollectiveTimeoutError as error:
            raise self._causes.of_unanswered_greeting(self.stats().aggregators) from error
        if (wrong := greeting.wrong()) is not None:
            raise self._causes.of_wrong_greeting(*wrong)

    def _round_newest(self, aggregator: int) -> int:
        """Asked for with each heartbeat, and so it is here that a packet which can never leave is noticed, and the
        failure of a collective that nobody waits for."""
        if (failed := self._native.failed) is not None:
            self._error_of(failed)
        state = self.stats().aggregators[aggregator]
        if state.transport_error in TOO_LARGE:
            error = self._causes.of_shrunken_path(aggregator)
            if error is not None and self._fail(error):
                self._aggregators.abort(str(error))
        return state.round_newest

    def _traffic(self, aggregator: int) -> TrafficStats:
        return self.stats().aggregators[aggregator]

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
        states = self.stats().aggregators
        error = self._causes.of_status(operation.status, operation.tensor, states, greeted=self._greeted)
        if self._fail(error):
            self._aggregators.abort(str(error))


def _open_data_path(config: AgentConfig, aggregators: Aggregators, rank: int) -> _native.Session:
    parts = [_native_aggregator(aggregator) for aggregator in aggregators]
    threads = sum(aggregator.membership.grant.threads for aggregator in aggregators)
    return _native.Session(
        parts,
        rank=rank,
        spin_s=spin_us_of(config, threads) * 1e-6,
        offload=config.offload,
        transport=config.transport,
        device=config.device,
        exact_elements_max=EXACT_ELEMENTS_MAX[config.precision],
    )


def _native_aggregator(aggregator: Aggregator) -> _native.Aggregator:
    grant = aggregator.membership.grant
    group = grant.results_group
    assert isinstance(aggregator.ports, _native.Ports), "it was this process that bound them"
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
