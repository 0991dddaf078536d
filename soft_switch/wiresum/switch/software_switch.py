"""The software switch as the controller's `SwitchDriver`.

The data plane and its threads are C++ (`_native`). This module turns text addresses into numbers, C++ exceptions into
`DriverError`, and adds the counters of ended jobs to the totals.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from wiresum.controller import REASONS, DriverError, Endpoint, JobCounters, JobEntry, SwitchDriver, SwitchSizes
from wiresum.controller.driver import Reconciled, Versions, check_groups
from wiresum.join.constants import JOB_NUMBERS, SOCKET_BUFFER_BYTES, SWITCH_PORT, THREADS_MAX
from wiresum.join.release import software_version
from wiresum.switch import _native


@dataclass(frozen=True)
class SwitchStats:
    """Totals since the start, over all threads and all jobs, ended ones too."""

    threads: int
    transport: str
    """Name of the transport, and the mode that was obtained."""
    cpu_seconds: float
    """Processor time of the data threads."""
    datagrams_received: int
    datagrams_passed: int
    """Datagrams that another data thread than their own received and passed on, since the device does not steer by
    port."""
    datagrams_sent: int
    send_failures: int
    jobs_now: int
    jobs_ended: int
    results: int
    """Cells completed."""
    packets: dict[str, int] = field(default_factory=dict)
    """Packets by reason: the keys are `REASONS`."""


@dataclass(frozen=True)
class Admission:
    """A job as the tables of a P4 switch have it. Addresses are integers in host byte order, bitmaps are of workers."""

    job: int
    key: int
    threads: int
    port_offset: int
    lanes: int
    slot_base: int
    slots: int
    endpoints: tuple[tuple[int, int], ...]
    """Address and base port of each worker; port 0: nothing is sent to this worker."""
    contributors: tuple[int, ...]
    """For each of `THREADS_MAX` threads that a job may have, a bitmap."""
    sources: tuple[tuple[int, int], ...]
    """Address and base port that each of `SWITCH_WORKERS_MAX` workers sends from: thread t from port + t."""
    receivers: int
    """Bitmap of the workers that get a completed cell's RESULT."""
    results_group: tuple[int, int] = (0, 0)
    """Multicast group and base port for a RESULT to all receivers; port 0: each is sent a copy."""
    parent: tuple[int, int] = (0, 0)
    """Address and base port of the parent switch; port 0: there is none."""
    number_at_parent: int = 0
    """This switch's number at the parent."""


class SoftwareSwitch(SwitchDriver):
    """A running switch. Its methods may be called from any thread.

    The join service installs jobs with `admit`, a P4Runtime server with `configure`.

    `transport` is udp, xdp or dpdk. `device`: for xdp the interface (default: the one with the address `bind`), for
    dpdk the EAL's arguments. `port` 0 takes a free block of ports; `threads` 0 chooses by the number of cores.
    `multicast` is the group of job 0; job j's is j addresses further. Raises `OSError` if the ports are not available,
    `ValueError` for invalid sizes, `RuntimeError` if the transport is not available.
    """

    def __init__(
        self,
        *,
        bind: str = "127.0.0.1",
        port: int = SWITCH_PORT,
        threads: int = 0,
        slots: int = 4096,
        lanes_max: int = 360,
        jobs_max: int = JOB_NUMBERS,
        receive_buffer_bytes: int = SOCKET_BUFFER_BYTES,
        transport: str = "udp",
        multicast: str | None = None,
    ) -> None:
        self.no_multicast = _no_multicast(bind, transport)
        """Why the switch cannot send to multicast groups; empty: it can."""
        self._groups = None if multicast is None else check_groups(multicast, jobs_max)
        if self._groups is not None and self.no_multicast:
            raise ValueError(self.no_multicast)
        self._server = _native.SwitchServer(
            address=int(ipaddress.IPv4Address(bind)),
            port=port,
            ports=THREADS_MAX,
            threads=threads,
            slots=slots,
            lanes_max=lanes_max,
            jobs_max=jobs_max,
            receive_buffer_bytes=receive_buffer_bytes,
            spin_us=-1,
            transport=transport,
        )
        by = self._server.stats().transport
        self._kind = "software" if by == "udp" else f"software, {by}"
        self._sizes = SwitchSizes(slots=slots, lanes_max=lanes_max, jobs_max=jobs_max, threads_max=THREADS_MAX)
        address, base_port = self._server.local
        self._endpoint = Endpoint(str(ipaddress.IPv4Address(address)), base_port)
        self.on_change = lambda: None
        self._books = threading.Lock()
        self._jobs: set[int] = set()
        self._jobs_ended = 0
        self._ended = _Totals()

    @property
    def name(self) -> str:
        return f"software switch at {self._endpoint.address}"

    @property
    def kind(self) -> str:
        return self._kind

    @property
    def sizes(self) -> SwitchSizes:
        return self._sizes

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    def results_group(self, job: int) -> Endpoint | None:  # R3.28
        return None if self._groups is None else Endpoint(str(self._groups + job), SWITCH_PORT)

    def versions(self) -> Versions:
        return Versions(software_version())

    def reconcile(self, entries: Sequence[JobEntry]) -> Reconciled:
        """Reconciles the jobs. A switch in this process starts empty, for one controller. Jobs that it lacks ran in an
        earlier process."""
        wanted = {entry.job for entry in entries}
        with self._books:
            held = set(self._jobs)
        for job in sorted(held - wanted):
            self.evict(job)
        return Reconciled(reloaded=not wanted <= held, changes=tuple(f"- job {job}" for job in sorted(held - wanted)))

    def admit(self, entry: JobEntry) -> None:
        group = None if entry.below else self.results_group(entry.job)  # switches below hear no group
        with self._explained(f"refuses job {entry.job}"), self._books:
            if len(entry.endpoints) != entry.workers:
                raise ValueError(f"{entry.workers} workers, but {len(entry.endpoints)} addresses")
            self._server.admit(
                job=entry.job,
                key=entry.key,
                threads=entry.threads,
                port_offset=entry.port_offset,
                lanes=entry.lanes,
                slot_base=entry.slot_base,
                slots=entry.slots,
                results_group=_native_address(group),
                endpoints=[_native_address(endpoint) for endpoint in entry.endpoints],
                parent=_native_address(entry.uplink.parent if entry.uplink else None),
                number_at_parent=entry.uplink.worker if entry.uplink else 0,
            )
            self._jobs.add(entry.job)

    def configure(self, admission: Admission) -> None:
        """Installs a job, or changes an installed one; its lease stays."""
        with self._explained(f"refuses job {admission.job}"), self._books:
            self._server.configure(**dataclasses.asdict(admission))
            self._jobs.add(admission.job)

    def reset(self) -> None:
        """Removes all jobs and clears all cells."""
        for job in sorted(self._jobs):
            self.evict(job)
        with self._explained("cannot begin anew"):
            self._server.reset()

    def evict(self, job: int) -> None:
        with self._explained(f"cannot end job {job}"), self._books:
            self._server.evict(job)
            if job in self._jobs:
                self._jobs.remove(job)
                self._jobs_ended += 1
                self._ended.add(self._server.counters(job))

    def counters(self, job: int) -> JobCounters:
        with self._explained(f"cannot say what it counted for job {job}"):
            return _job_counters(self._server.counters(job))

    def stray(self) -> JobCounters:
        with self._explained("cannot say what it counted"):
            return _job_counters(self._server.stats().stray)

    def stats(self) -> SwitchStats:
        with self._books:
            totals = dataclasses.replace(self._ended, packets=list(self._ended.packets))
            for job in self._jobs:
                totals.add(self._server.counters(job))
            # Read last, so that the answers to all packets counted above are counted too.
            native = self._server.stats()
            totals.add(native.stray)
            return SwitchStats(
                threads=native.threads,
                transport=native.transport,
                cpu_seconds=native.cpu_seconds,
                datagrams_received=native.datagrams_received,
                datagrams_passed=native.datagrams_passed,
                datagrams_sent=native.datagrams_sent,
                send_failures=native.send_failures,
                jobs_now=len(self._jobs),
                jobs_ended=self._jobs_ended,
                results=totals.results,
                packets=_by_reason(totals.packets),
            )

    def close(self) -> None:
        """Ends the threads. `stats` and `counters` stay available."""
        self._server.stop()

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Turns an error of the data plane into a `DriverError`."""
        try:
            yield
        # TypeError: a number that does not fit the field it is for.
        except (ValueError, TypeError, RuntimeError) as error:
            raise DriverError(f"{self.name} {what}: {error}") from error


def _native_address(endpoint: Endpoint | None) -> tuple[int, int]:
    return (0, 0) if endpoint is None else (int(ipaddress.IPv4Address(endpoint.address)), endpoint.port)


def _no_multicast(bind: str, transport: str) -> str:
    if not transport.startswith("udp"):
        return f"multicast needs the kernel's sockets, and {transport} goes around them"
    if ipaddress.IPv4Address(bind).is_unspecified:
        return "multicast needs the address of one interface to bind to, not 0.0.0.0"
    return ""


@dataclass
class _Totals:
    packets: list[int] = field(default_factory=lambda: [0] * len(REASONS))
    results: int = 0

    def add(self, counters: _native.JobCounters) -> None:
        self.packets = [total + count for total, count in zip(self.packets, counters.packets, strict=True)]
        self.results += counters.results


def _job_counters(counters: _native.JobCounters) -> JobCounters:
    return JobCounters(
        packets=_by_reason(counters.packets),
        results=counters.results,
        tensor_last=tuple(counters.tensor_last),
        contributions=tuple(counters.contributions),
    )


def _by_reason(packets: Sequence[int]) -> dict[str, int]:
    return dict(zip(REASONS, packets, strict=True))
