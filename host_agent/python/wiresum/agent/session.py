"""A worker's membership in one job: the control side (gRPC) and the native data path, as one object."""

from __future__ import annotations

import array
import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from wiresum.agent import _native
from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import (
    CollectiveTimeoutError,
    DivergedError,
    SessionClosedError,
    SwitchUnreachableError,
    WiresumError,
)
from wiresum.agent.interfaces import mtu_of
from wiresum.agent.membership import Membership

Dtype = _native.Dtype
Scaling = _native.Scaling

log = logging.getLogger("wiresum")

IPV4_UDP_HEADER_BYTES = 28
THREADS_DEFAULT_MAX = 4
SPIN_US_DEFAULT = 50
HELLO_TIMEOUT_S = 10.0
# Enough chunks that each engine thread sends at least one full packet (engine/session.cpp, kChunksPerThreadMin).
HELLO_CHUNKS_PER_THREAD = 16


class Region(NamedTuple):
    """A run of elements in memory. Addresses, 0 for none: without a source this worker contributes zeros,
    without a destination it drops the sum. See host_agent/src/worker/collective.hpp for how the collectives
    are made of regions."""

    source: int
    destination: int
    elements: int


@dataclass(frozen=True)
class SparseStats:
    """What was chosen for the collectives that may be sparse, and what it saved. A block is what a packet carries."""

    prologues: int
    """Collectives that asked which blocks there are, in a round trip of their own ..."""
    streams: int
    """... and those of them that then left blocks out."""
    whole: int
    """Collectives that were sent whole without asking, since the ones before them were dense."""
    blocks_skipped: int
    """Blocks that no worker had, and nobody sent."""
    blocks_empty: int
    """Blocks that others had, and this worker sent as a header alone."""
    bytes_saved: int
    """UDP payload that this worker did not send for all that, less what the prologues took."""


@dataclass(frozen=True)
class SessionStats:
    """Counters since the session began. Bytes are UDP payload, headers of lower layers not counted."""

    packets_sent: int
    bytes_sent: int
    bytes_received: int
    results: int
    retransmissions: int
    duplicates: int
    rejected: int
    rtt_s: float
    rto_s: float
    window: int
    round_newest: int
    send_calls: int
    receive_calls: int
    send_failures: int
    transport_error: int
    sparse: SparseStats


class Operation:
    """A collective that was submitted. The memory of its regions must stay valid until it is done."""

    def __init__(self, session: Session, native: _native.Operation) -> None:
        self._session = session
        self._native = native
        self.token: int = native.token

    def done(self) -> bool:
        return self._native.done

    @property
    def error(self) -> WiresumError | None:
        """Why it failed; None if it did not. Valid once done."""
        return self._session._error_of(self._native)

    def wait(self, timeout_s: float | None = None) -> None:
        """Waits until it is done. Raises the WiresumError that ended it; TimeoutError if only this wait ran out."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._native.done:
            remaining = 1.0 if deadline is None else deadline - time.monotonic()
            if not self._native.wait(remaining) and deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"the collective was not complete after {timeout_s} s")
        if (error := self.error) is not None:
            raise error


class Session:
    """One process's membership in one job. Make it with `Session.join`; any thread may use it."""

    def __init__(self, membership: Membership, native: _native.Session, *, job_name: str, sparse: bool) -> None:
        grant = membership.grant
        self.job_name = job_name
        self.rank: int = grant.worker
        self.world_size: int = grant.workers
        self.lanes: int = grant.lanes
        self.threads: int = grant.threads
        self.failure: WiresumError | None = None
        self._membership = membership
        self._native = native
        self._sparse = sparse
        self._failure_lock = threading.Lock()

    @classmethod
    def join(cls, config: AgentConfig, *, job_name: str, rank: int, world_size: int, queue: bool = True) -> Session:
        """Joins the job, opens the data path, and proves that full-size packets pass it both ways. Without `queue` the
        job does not wait for slots that other jobs have: a JoinError with the code RESOURCE_EXHAUSTED.

        Raises JoinError if the job will not have us, SwitchUnreachableError if control or data do not get through.
        """
        address, mtu_bytes = _way_out(config)
        threads = config.threads or _default_threads()
        ports = _native.Ports(address, threads)
        membership = Membership.join(
            config,
            job_name=job_name,
            rank=rank,
            world_size=world_size,
            address=address,
            port=ports.base_port,
            threads_max=threads,
            lanes_max=config.lanes or lanes_of_mtu(mtu_bytes),
            queue=queue,
        )
        try:
            data_path = _open_data_path(config, membership, ports)
            session = cls(membership, data_path, job_name=job_name, sparse=config.sparse)
            membership.attend(on_ended=session._on_ended, progress=session._round_newest)
        except BaseException:
            membership.leave()
            raise
        try:
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

        `scaling` defaults to block floating point for floats and none for the rest; RAW counts as 8-bit lanes.
        `signature` (16 bits) describes the call, so that workers which call different collectives find out.
        With `may_be_sparse`, which all workers must say alike and which needs everybody's contribution to every region,
        blocks that are zero at all workers may be left out (docs/sparse.md); the sums are the same.
        With `notify`, `wait_completed` will hand the operation out once it is done.
        """
        if (failure := self.failure) is not None:
            raise failure
        floating = dtype in (Dtype.F32, Dtype.F16, Dtype.BF16)
        native = self._native.submit(
            list(regions),
            dtype=dtype,
            lane_bits=8 if dtype == Dtype.RAW else lane_bits,
            scaling=scaling or (Scaling.BLOCK_EXPONENT if floating else Scaling.NONE),
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
        raw = self._native.stats()
        raw["sparse"] = SparseStats(**raw["sparse"])
        return SessionStats(**{field.name: raw[field.name] for field in fields(SessionStats)})

    def abort(self, reason: str) -> None:
        """Ends the job for everybody, with `reason`. Pending and later operations here fail with it, too."""
        if self._fail(WiresumError(reason)):
            self._membership.abort(reason)

    def close(self) -> None:
        """Leaves the job. What is still pending fails with SessionClosedError. Idempotent."""
        self._fail(SessionClosedError(f"the session of job '{self.job_name}' was closed"))
        self._native.close()
        self._membership.leave()

    def _greet(self) -> None:
        """A first all-reduce of full packets through every thread: finds a blocked port or a small MTU at once."""
        words = self.lanes * HELLO_CHUNKS_PER_THREAD * self.threads
        values = array.array("i", [self.rank + 1]) * words
        address, _ = values.buffer_info()
        hello = self.submit([Region(address, address, words)], dtype=Dtype.I32, timeout_s=HELLO_TIMEOUT_S, notify=False)
        try:
            hello.wait()
        except CollectiveTimeoutError as error:
            raise SwitchUnreachableError(self._why_data_does_not_pass()) from error
        expected = self.world_size * (self.world_size + 1) // 2
        if values[0] != expected or values[-1] != expected:
            raise WiresumError(
                f"the first sum came back wrong ({values[0]}, expected {expected}): something between worker and "
                "switch alters packets"
            )

    def _why_data_does_not_pass(self) -> str:
        endpoint = self._membership.grant.switch_endpoint
        where = f"the switch's data ports (UDP {endpoint.address}:{endpoint.port}..{endpoint.port + self.threads - 1})"
        stats = self.stats()
        if stats.transport_error:
            return f"{where} cannot be used: {os.strerror(stats.transport_error)}"
        if stats.results == 0:
            packet_bytes = 4 * self.lanes + _native.HEADER_BYTES + IPV4_UDP_HEADER_BYTES
            return (
                f"the control connection works, but nothing came back from {where} in {HELLO_TIMEOUT_S:.0f} s. "
                f"Does a firewall block UDP, or does a link on the way not pass IP packets of {packet_bytes} bytes "
                "(WIRESUM_LANES makes them smaller)?" + self._doubt_about_multicast()
            )
        return f"only part of what was sent to {where} came back: do all workers reach it?"

    def _doubt_about_multicast(self) -> str:
        group = self._membership.grant.results_group
        if group is None:
            return ""
        return (
            f" The switch sends results to the multicast group {group.address}: does the network carry that from it to "
            "this worker (IGMP snooping needs a querier)? A switch without --multicast sends to each worker"
        )

    def _round_newest(self) -> int:
        return self.stats().round_newest

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
        if not operation.done or operation.status == _native.Status.OK:
            return None
        if self.failure is None:
            self._fail_with_status(operation)
        return self.failure

    def _fail_with_status(self, operation: _native.Operation) -> None:
        """The data path itself gave up: say why, here and to the others."""
        sequence = operation.tensor & 0xFFFF
        if operation.status == _native.Status.DIVERGED:
            error: WiresumError = DivergedError(
                f"rank {self.rank} of job '{self.job_name}': the workers call different collectives at number "
                f"{sequence}. All ranks must call the same collectives, with the same sizes and types, in the same "
                "order"
            )
        elif operation.status == _native.Status.TIMED_OUT:
            error = CollectiveTimeoutError(
                f"rank {self.rank} of job '{self.job_name}': collective number {sequence} ran out of time. "
                + self._membership.diagnose(operation.tensor)
            )
        else:
            error = WiresumError(f"rank {self.rank} of job '{self.job_name}': the collective was aborted")
        if self._fail(error):
            self._membership.abort(str(error))


def lanes_of_mtu(mtu_bytes: int) -> int:
    """Words in the payload of an IP packet of this size; a multiple of 8, so that vectors divide it evenly."""
    words = (mtu_bytes - IPV4_UDP_HEADER_BYTES - _native.HEADER_BYTES) // 4
    return max(8, min(words, _native.LANES_MAX) // 8 * 8)


def _way_out(config: AgentConfig) -> tuple[str, int]:
    """The local address that data packets leave from, and how large they may be. Where the switch is, only the grant
    will tell. So without WIRESUM_ADDRESS it is taken to be where the join service is, or its standby."""
    if config.address:
        mtu_bytes = mtu_of(config.address)
        if mtu_bytes is not None:
            return config.address, mtu_bytes
    control_address = _resolve(config.control_endpoints)
    address = config.address or _native.source_address(control_address)
    return address, _native.path_mtu(address, control_address)


def _resolve(endpoints: Sequence[str]) -> str:
    """The IPv4 address of the first endpoint that has one."""
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        try:
            return str(socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            problem = f"cannot resolve the switch's address '{endpoint}' (WIRESUM_SWITCH): {error.strerror}"
    raise SwitchUnreachableError(problem)


def _local_world_size() -> int:
    """Workers on this host, as torchrun tells."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(text)) if text.isdigit() else 1


def _default_threads() -> int:
    """A power of two: leaves at least half of the cores to the computation."""
    share = (os.cpu_count() or 1) // (2 * _local_world_size())
    threads = 1
    while threads * 2 <= min(share, THREADS_DEFAULT_MAX):
        threads *= 2
    return threads


def _default_spin_us(threads: int) -> int:
    """Busy polling pays only where every engine thread has a core besides the computation's."""
    needed = _local_world_size() * (threads + 1)
    return SPIN_US_DEFAULT if (os.cpu_count() or 1) > needed else 0


def _open_data_path(config: AgentConfig, membership: Membership, ports: _native.Ports) -> _native.Session:
    grant = membership.grant
    group = grant.results_group
    spin_us = config.spin_us if config.spin_us >= 0 else _default_spin_us(grant.threads)
    return _native.Session(
        ports=ports,
        job=grant.job,
        key=grant.key,
        worker=grant.worker,
        workers=grant.workers,
        lanes=grant.lanes,
        slots=grant.slots,
        round_first=grant.round_first,
        threads=grant.threads,
        switch_address=grant.switch_endpoint.address,
        switch_port=grant.switch_endpoint.port,
        group_address=group.address if group else "",
        group_port=group.port if group else 0,
        spin_s=spin_us * 1e-6,
        offload=config.offload,
    )
