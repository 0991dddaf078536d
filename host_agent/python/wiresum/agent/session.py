"""A worker's membership in one job, for Python. Its life is in host_agent/src/session/session.hpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from wiresum.agent import _native
from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import WiresumError
from wiresum.agent.job_membership import JobMembership
from wiresum.agent.statistics import Moved, SessionStats, session_stats_of
from wiresum.join import Admission

Dtype = _native.Dtype
Element = _native.Element
Form = _native.Form
Operation = _native.Operation
Operator = _native.Operator
Scaling = _native.Scaling

Reduction: TypeAlias = tuple[Element, Operator]
"""A type and an operator of host_agent/src/numeric/reduction.hpp."""

SCALED = (Dtype.F32, Dtype.F16, Dtype.BF16)
FLOATING = (*SCALED, Dtype.E4M3, Dtype.E5M2)
# Every operation uses these: looking a member up through its class takes EnumType several steps.
_RAW, _UNSCALED, _BLOCK_EXPONENT = Dtype.RAW, Scaling.NONE, Scaling.BLOCK_EXPONENT


class Region(NamedTuple):
    """A run of elements in memory, by addresses. Without a source (None) this worker contributes zeros, and without a
    destination it drops the sum. The address 0 is where no memory is: `submit` refuses it, unless the region is empty.
    host_agent/src/worker/collective.hpp says how the collectives are made of regions."""

    source: int | None
    destination: int | None
    elements: int


class Session:
    """One process's membership in one job. Make it with `Session.join`; any thread may use it."""

    def __init__(self, native: _native.Session, membership: JobMembership, job_name: str) -> None:
        self.native = native
        """The native session, for native code (capi.hpp)."""
        self.job_name = job_name
        self.rank = native.rank
        self.world_size = native.world_size
        self.lanes = native.lanes
        self.threads = native.threads
        self._membership = membership
        self._sparse = native.sparse

    @classmethod
    def join(
        cls,
        config: AgentConfig,
        *,
        job_name: str,
        rank: int,
        world_size: int,
        admission: Admission = Admission.QUEUE,
    ) -> Session:
        """Joins the job at all aggregators that the configuration names, opens the data path, and proves that full-size
        packets pass it both ways. A job with an `admission` other than QUEUE does not wait for slots that other jobs
        have: it gets a JoinError with the code RESOURCE_EXHAUSTED. A FURTHER job is not the program's first: it takes
        few slots, unless the configuration says how many, and leaves a part of the switch to other programs.

        Raises JoinError if the job will not have us, SwitchUnreachableError if control or data do not get through.
        """
        membership = JobMembership(config, job_name=job_name, rank=rank, world_size=world_size, admission=admission)
        return cls(_native.Session.join(membership, job_name), membership, job_name)

    @property
    def members_secret(self) -> bytes:
        """A secret of the job's workers, the same at all, and known to no others: it can authenticate messages between
        them."""
        return self._membership.members_secret

    @property
    def service(self) -> str:
        """The endpoint that serves the job now, host:port; one of each aggregator, joined by `+`."""
        return self._membership.service

    @property
    def moved(self) -> Moved | None:
        """The time and cause of the job's last move to another lease; None if it is where it began."""
        return self._membership.moved

    @property
    def failure(self) -> WiresumError | None:
        """The error that the session has failed with."""
        return self.native.failure

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
        reduction: Reduction | None = None,
        timeout_s: float | None = None,
        notify: bool = True,
        caller_waits: bool = False,
    ) -> Operation:
        """Starts a collective; every worker must submit the same ones in the same order. No regions: a barrier.

        `form` explains most of the arguments. With `notify`, `wait_completed` will hand the operation out once it is
        done. `caller_waits`: the caller will wait for the operation and do nothing else meanwhile. A small sum is then
        often complete when this returns, after some milliseconds at most. A ValueError, and nothing is submitted, if
        the arguments make no sense, or if a region has a null pointer.
        """
        form = self.form(
            dtype=dtype,
            bits=bits,
            scaling=scaling,
            fixed_scale=fixed_scale,
            average=average,
            signature=signature,
            may_be_sparse=may_be_sparse,
            reduction=reduction,
        )
        timeout_s = -1.0 if timeout_s is None else timeout_s
        return self.native.submit(regions, form, timeout_s=timeout_s, notify=notify, caller_waits=caller_waits)

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
        reduction: Reduction | None = None,
    ) -> Form:
        """Describes a collective without its memory, for native code that submits by itself (capi.hpp).

        `scaling` defaults to none for integers, bytes and fp8 (E4M3, E5M2), whose sums are always exact, and for other
        floats to what AgentConfig.precision says: exact, or block floating point in `bits` bits an element; RAW counts
        as 8 bits. `signature` (16 bits) describes the call, so that workers which call different collectives find out.
        With `may_be_sparse`, which all workers must say alike and which needs everybody's contribution to every region,
        blocks that are zero at all workers may be left out (docs/sparse.md); the sums are the same. With a `reduction`,
        which is for few elements, RAW bytes of all workers are reduced as elements of its type, instead of copied.
        """
        if scaling is None:
            scaling = _BLOCK_EXPONENT if dtype in SCALED else _UNSCALED
        return Form(
            dtype=dtype,
            bits=8 if dtype is _RAW else bits,
            scaling=scaling,
            fixed_scale=fixed_scale,
            divisor=float(self.world_size) if average else 1.0,
            signature=signature & 0xFFFF,
            may_be_sparse=may_be_sparse and self._sparse,
            reduction=reduction,
        )

    def notify(self, operation: Operation) -> None:
        """`wait_completed` will hand the operation out, too, though it was submitted otherwise."""
        self.native.notify(operation)

    def wait_completed(self, timeout_s: float) -> list[Operation]:
        """Returns operations that have completed since the last call, each once; sleeps up to half a second for the
        first."""
        return self.native.take_completed(timeout_s)

    def stats(self) -> SessionStats:
        return session_stats_of(self.native.stats(), self.native.switches, self._membership.sharing)

    def abort(self, reason: str) -> None:
        """Ends the job for everybody, with `reason`. Pending and later operations here fail with it, too."""
        self.native.abort(WiresumError(reason))

    def close(self) -> None:
        """Leaves the job. Pending operations fail with SessionClosedError. Idempotent."""
        self.native.leave()
