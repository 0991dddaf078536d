"""One case of the study: sums in a simulated network, with the constants that ship, all elements checked."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from wiresum_lab.benchmarks.scale.bounds import Path, in_network_s
from wiresum_lab.simulation import racks, sim

LANES = 360
BEGIN_NS, BEGIN_ROUND_TRIPS = 200_000_000, 10
"""Begin of the measured sums, at least. Each session has made its first sum (the greeting) before, and so measured its
path."""
SOURCES = 4
"""How many tensors of different contents there are; worker i has the tensor of number i mod SOURCES."""
Values = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Cross:
    """Traffic of others on the way down to worker 0's host or, with `of_rack`, on the way up from its rack."""

    gbit: float
    burst_us: float = 0.0
    """Duration of a burst; 0: the traffic never stops."""
    period_us: float = 0.0
    begin_us: float = 0.0
    of_rack: bool = False


@dataclass(frozen=True)
class Case:
    """One simulated case. The default is eight workers at one switch, 100 Gbit/s, a microsecond for each link."""

    workers: int = 8
    a_host: int = 1
    """How many workers are on each host, where they share a stream."""
    racks: tuple[int, ...] = ()
    """Fan-out of a regular tree by level: hosts at a leaf, leaves below a switch, and so on, all below one root."""
    gbit: float = 100.0
    slow_gbit: float = 0.0
    """Rate of the last worker's link; 0: as the others."""
    link_ns: int = 1000
    loss: float = 0.0
    megabytes: float = 4.0
    tensors: int = 1
    bits: int = 32
    density: float = 1.0
    """Fraction of nonzero blocks, which are the same at all workers. Below 1 a sum may leave out zero blocks."""
    slots: int = 512
    jobs: int = 1
    """How many jobs share the hosts and links, each with its own slots."""
    stall_us: float = 0.0
    """How long worker 0 does nothing, beginning at a quarter of the bound."""
    late_us: float = 0.0
    """How much later than the others worker 0 calls."""
    cross: Cross | None = None
    cross_where_marked: Cross | None = None
    """Traffic on the way down to worker 1's host, whose port is then the only one that marks packets."""
    buffer_kb: int = 0
    """Buffer of each switch, shared by its ports; 0: a megabyte for each port."""
    mark_kb: int = 0
    """Queue length of a port above which packets are marked; 0: none is marked."""
    burst_bytes: int = 0
    """Size of each link's token bucket."""
    queue_bytes: int = 1 << 20
    """Longest queue at a port that shares no buffer."""
    seed: int = 1

    @property
    def tensor_bytes(self) -> float:
        return self.megabytes * 1e6

    @property
    def begin_ns(self) -> int:
        return max(BEGIN_NS, BEGIN_ROUND_TRIPS * 2 * self.link_ns)

    @property
    def path(self) -> Path:
        return Path(self.gbit, self.link_ns, self.racks, self.loss)

    @property
    def bound_s(self) -> float:
        """The bound for one tensor of each job, without loss."""
        return in_network_s(self.workers, self.tensor_bytes * self.jobs, self.path, bits=self.bits)


@dataclass(frozen=True)
class Outcome:
    case: Case
    seconds: float
    """Virtual time for each tensor."""
    jobs_s: tuple[float, ...]
    retransmissions: int
    questions: int
    link_packets: int
    lost: int
    overflow: int
    marked: int
    cross_overflow: int
    buffer_held_max: int
    packets_sent: int
    real_s: float
    memory_mb: float
    """Peak memory of the process."""

    @property
    def of_bound(self) -> float:
        return self.case.bound_s / self.seconds

    @property
    def goodput_gbit(self) -> float:
        return self.case.tensor_bytes * 8e-9 / self.seconds


class Tensors:
    """A few sources and one destination, shared by all workers, since thousands of workers have no room for their own.
    Every worker writes the same sum, so the destination, which is checked entirely, is right only if all results
    are."""

    def __init__(self, case: Case) -> None:
        self.elements = int(case.tensor_bytes) // 4
        numbers = np.random.default_rng(case.seed)
        # The values are whole numbers that every width of a float on the wire carries exactly.
        self.sources = [numbers.integers(-1, 2, self.elements).astype(np.float32) for _ in range(SOURCES)]
        if case.density < 1:
            block = LANES * 32 // case.bits
            absent = numbers.random(-(-self.elements // block)) >= case.density
            for source in self.sources:
                source[np.repeat(absent, block)[: self.elements]] = 0
        self.counts = np.bincount(np.arange(case.workers) % SOURCES, minlength=SOURCES)
        self.destinations = [np.full(self.elements, np.nan, np.float32) for _ in range(case.jobs)]

    @cached_property
    def expected(self) -> Values:
        total = np.zeros(self.elements, np.float32)
        for source, count in zip(self.sources, self.counts, strict=True):
            total += source * np.float32(count)
        return total

    def regions(self, worker: int, job: int) -> list[tuple[int, int, int]]:
        source = self.sources[worker % SOURCES].ctypes.data
        return [(source, self.destinations[job].ctypes.data, self.elements)]

    def check(self) -> None:
        for destination in self.destinations:
            if wrong := int((destination != self.expected).sum()):
                raise RuntimeError(f"{wrong} elements of a sum are wrong")


def link_of(case: Case, gbit: float) -> Any:
    link = sim.Link()
    link.loss, link.delay_ns, link.rate_bps = case.loss, case.link_ns, gbit * 1e9
    link.mark_bytes = case.mark_kb * 1000 if case.cross_where_marked is None else 0
    link.burst_bytes, link.queue_bytes = case.burst_bytes, case.queue_bytes
    return link


def scenario_of(case: Case) -> Any:
    scenario = sim.Scenario()
    scenario.seed, scenario.workers, scenario.lanes, scenario.slots = case.seed, case.workers, LANES, case.slots
    scenario.rto_min, scenario.sparse_chunks_min = sim.RTO_MIN_NS, sim.SPARSE_CHUNKS_MIN
    scenario.vote_lag_chunks = 2 * case.slots
    scenario.collectives_max = max(8, 4 * case.tensors)
    scenario.exact_when_wide = True
    hosts = case.workers // case.a_host
    scenario.hosts = [worker // case.a_host for worker in range(case.workers)]
    scenario.parents, scenario.leaves = racks(hosts, *case.racks)
    scenario.up, scenario.down = link_of(case, case.gbit), link_of(case, case.gbit)
    if case.slow_gbit:
        slow = link_of(case, case.slow_gbit)
        scenario.set_link(hosts - 1, slow, slow)
    scenario.buffer_bytes = case.buffer_kb * 1000
    if case.stall_us:
        begin = int(case.bound_s * 1e9 / 4)
        scenario.stalls = [sim.Stall(0, case.begin_ns + begin, case.begin_ns + begin + int(case.stall_us * 1e3))]
    if case.cross is not None:
        place = scenario.leaves[0] if case.cross.of_rack else 0
        of_rack = case.cross.of_rack
        scenario.add_cross_traffic(place, _traffic_of(case.cross, case.begin_ns), up=of_rack, of_switch=of_rack)
    if case.cross_where_marked is not None:
        marking = link_of(case, case.gbit)
        marking.mark_bytes, marking.queue_bytes = case.mark_kb * 1000, 1 << 20
        scenario.set_link(1, marking, marking)
        scenario.add_cross_traffic(1, _traffic_of(case.cross_where_marked, case.begin_ns), up=False, of_switch=False)
    return scenario


def _traffic_of(cross: Cross, begin_ns: int) -> Any:
    traffic = sim.CrossTraffic()
    traffic.rate_bps = cross.gbit * 1e9
    traffic.begin, traffic.burst, traffic.period = (
        int(each * 1e3) for each in (cross.begin_us, cross.burst_us, cross.period_us)
    )
    traffic.begin += begin_ns
    return traffic


def greet(job: Any, tensors: Tensors, workers: int) -> None:
    """Adds the sum of a few full packets that a session makes when it has joined."""
    memory = [(source.ctypes.data, None, LANES * sim.GREETING_CHUNKS) for source in tensors.sources]
    regions = [[memory[worker % SOURCES]] for worker in range(workers)]
    job.add(sim.Dtype.I32, sim.Scaling.NONE, 32, 1.0, 1.0, False, 0, regions, [0] * workers)


def allow_descriptors() -> None:
    """Raises the limit of file descriptors: workers that share a stream share real memory, which takes six for each."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def simulate(case: Case) -> Outcome:
    """Simulates a case. Raises RuntimeError if a sum is wrong or does not end."""
    began = time.monotonic()
    allow_descriptors()
    tensors = Tensors(case)
    jobs = []
    for number in range(case.jobs):
        job = sim.Job(scenario_of(case))
        regions = [tensors.regions(worker, number) for worker in range(case.workers)]
        submit_at = [case.begin_ns + int(case.late_us * 1e3)] + [case.begin_ns] * (case.workers - 1)
        greet(job, tensors, case.workers)
        for _ in range(case.tensors):
            job.add(
                sim.Dtype.F32,
                sim.Scaling.BLOCK_EXPONENT,
                case.bits,
                1.0,
                1.0,
                case.density < 1,
                0,
                regions,
                submit_at,
            )
        jobs.append(job)
    reports = sim.run_together(jobs, shares=[None] + [0] * (case.jobs - 1))
    for report in reports:
        if not report.finished or any(status != sim.Status.OK for task in report.results for status in task):
            raise RuntimeError(report.failure or "a sum has failed")
    tensors.check()
    jobs_s = tuple((report.time_ns - case.begin_ns) * 1e-9 / case.tensors for report in reports)
    first = reports[0]  # counts of links are of the network
    return Outcome(
        case=case,
        seconds=max(jobs_s),
        jobs_s=jobs_s,
        retransmissions=sum(report.retransmissions for report in reports),
        questions=sum(report.questions for report in reports),
        link_packets=first.link_packets,
        lost=first.link_lost,
        overflow=first.link_overflow,
        marked=first.link_marked,
        cross_overflow=first.cross_overflow,
        buffer_held_max=first.buffer_held_max,
        packets_sent=sum(report.packets_sent for report in reports),
        real_s=time.monotonic() - began,
        memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    )
