"""The software switch as the controller's `SwitchDriver`.

The data plane and its threads are C++ (`_native`); this module turns text addresses into numbers, C++ exceptions into
`DriverError`, and keeps the books: a job's counters are added to the totals when it ends.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from wiresum.controller import REASONS, DriverError, Endpoint, JobCounters, JobEntry, Sizes
from wiresum.switch import _native

DATA_PORT = 0xA9E0
"""Base UDP port of a switch unless it is told otherwise: docs/protocol.md, section 2."""

PORTS = 16
"""Data ports, one for each thread that a worker may have."""

LANES_MAX = 16370
"""Lanes of the widest UDP datagram over IPv4: `wire::kLanesMax`."""

_IP_UDP_BYTES = 28
_HEADER_BYTES = 24
_LANE_BYTES = 4
_LANES_MULTIPLE = 8  # whole vectors of 32 bytes


def lanes_for_mtu(mtu: int) -> int:
    """Lanes of the largest packet that an MTU carries: 360 at 1500 bytes. `ValueError` if none fits."""
    lanes = (min(mtu, 65535) - _IP_UDP_BYTES - _HEADER_BYTES) // _LANE_BYTES
    lanes -= lanes % _LANES_MULTIPLE
    if lanes <= 0:
        raise ValueError(
            f"an MTU of {mtu} bytes does not hold a packet: at least {_LANES_MULTIPLE} lanes need 84 bytes"
        )
    return lanes


@dataclass(frozen=True)
class SwitchStats:
    """Totals since the start, over all threads and all jobs, those that have ended too."""

    threads: int
    cpu_seconds: float
    """Of the data threads."""
    datagrams_received: int
    datagrams_sent: int
    receive_calls: int
    send_calls: int
    send_failures: int
    jobs_now: int
    jobs_ended: int
    results: int
    """Cells completed."""
    packets: dict[str, int] = field(default_factory=dict)
    """By reason: the keys are `REASONS`."""


class SoftwareSwitch:
    """A running switch. Its methods may be called from any thread.

    `port` 0 takes some free block of ports; `threads` 0 and `spin_us` -1 choose by the number of cores. Raises
    `OSError` if the ports cannot be had at that address, `ValueError` for sizes that make no sense.
    """

    def __init__(
        self,
        *,
        bind: str = "127.0.0.1",
        port: int = DATA_PORT,
        threads: int = 0,
        slots: int = 4096,
        lanes_max: int = 360,
        jobs_max: int = 1024,
        receive_buffer_bytes: int = 8 << 20,
        spin_us: int = -1,
        offload: bool = True,
    ) -> None:
        self._server = _native.SwitchServer(
            address=int(ipaddress.IPv4Address(bind)),
            port=port,
            ports=PORTS,
            threads=threads,
            slots=slots,
            lanes_max=lanes_max,
            jobs_max=jobs_max,
            receive_buffer_bytes=receive_buffer_bytes,
            spin_us=spin_us,
            offload=offload,
        )
        self._sizes = Sizes(slots=slots, lanes_max=lanes_max, jobs_max=jobs_max, threads_max=PORTS)
        address, base_port = self._server.local
        self._endpoint = Endpoint(str(ipaddress.IPv4Address(address)), base_port)
        self._books = threading.Lock()
        self._jobs: set[int] = set()
        self._jobs_ended = 0
        self._ended = _Totals()

    @property
    def name(self) -> str:
        return f"software switch at {self._endpoint.address}"

    @property
    def sizes(self) -> Sizes:
        return self._sizes

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    def admit(self, entry: JobEntry) -> None:
        try:
            if len(entry.endpoints) != entry.workers:
                raise ValueError(f"{entry.workers} workers, but {len(entry.endpoints)} addresses")
            with self._books:
                self._server.admit(
                    job=entry.job,
                    key=entry.key,
                    threads=entry.threads,
                    lanes=entry.lanes,
                    slot_base=entry.slot_base,
                    slots=entry.slots,
                    round_first=entry.round_first,
                    endpoints=[(int(ipaddress.IPv4Address(e.address)), e.port) for e in entry.endpoints],
                )
                self._jobs.add(entry.job)
        # TypeError: a number that does not fit the field it is for.
        except (ValueError, TypeError, RuntimeError) as error:
            raise DriverError(f"{self.name} refuses job {entry.job}: {error}") from error

    def evict(self, job: int) -> None:
        try:
            with self._books:
                self._server.evict(job)
                if job in self._jobs:
                    self._jobs.remove(job)
                    self._jobs_ended += 1
                    self._ended.add(self._server.counters(job))
        except (TypeError, RuntimeError) as error:
            raise DriverError(f"{self.name} cannot end job {job}: {error}") from error

    def counters(self, job: int) -> JobCounters:
        try:
            counters = self._server.counters(job)
        except (TypeError, RuntimeError) as error:
            raise DriverError(f"{self.name} cannot say what it counted for job {job}: {error}") from error
        return JobCounters(
            packets=_by_reason(counters.packets),
            results=counters.results,
            tensor_last=tuple(counters.tensor_last),
            contributions=tuple(counters.contributions),
        )

    def stats(self) -> SwitchStats:
        with self._books:
            native = self._server.stats()
            totals = dataclasses.replace(self._ended, packets=list(self._ended.packets))
            totals.add(native.stray)
            for job in self._jobs:
                totals.add(self._server.counters(job))
            return SwitchStats(
                threads=native.threads,
                cpu_seconds=native.cpu_seconds,
                datagrams_received=native.datagrams_received,
                datagrams_sent=native.datagrams_sent,
                receive_calls=native.receive_calls,
                send_calls=native.send_calls,
                send_failures=native.send_failures,
                jobs_now=len(self._jobs),
                jobs_ended=self._jobs_ended,
                results=totals.results,
                packets=_by_reason(totals.packets),
            )

    def close(self) -> None:
        """Ends the threads. `stats` and `counters` still tell the last figures."""
        self._server.stop()


@dataclass
class _Totals:
    packets: list[int] = field(default_factory=lambda: [0] * len(REASONS))
    results: int = 0

    def add(self, counters: _native.JobCounters) -> None:
        self.packets = [total + count for total, count in zip(self.packets, counters.packets, strict=True)]
        self.results += counters.results


def _by_reason(packets: Sequence[int]) -> dict[str, int]:
    return dict(zip(REASONS, packets, strict=True))
