"""The tables of the study: their cases and columns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from wiresum_lab.benchmarks.scale.bounds import halving_doubling_s, ring_s
from wiresum_lab.benchmarks.scale.case import Case, Cross, Outcome

RACKS: Mapping[int, tuple[int, ...]] = {8: (), 32: (), 64: (16,), 128: (16,), 512: (16,), 1024: (16, 2), 4096: (16, 16)}
"""The tree for each number of workers. 1,024 workers are in 32 racks, each with two switches of 16 workers and a switch
above these: a switch with a parent sums for 31 at most."""
RATES_GBIT = (10.0, 100.0, 400.0)
LOSSES = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


@dataclass(frozen=True)
class Row:
    labels: tuple[str, ...]
    case: Case
    seeds: int = 1

    @property
    def cases(self) -> list[Case]:
        return [replace(self.case, seed=seed) for seed in range(1, self.seeds + 1)]


Outcomes = Sequence[Outcome]
"""The outcomes of one row, by seed."""


def median_s(outcomes: Outcomes) -> float:
    return statistics.median(outcome.seconds for outcome in outcomes)


def fairness(outcomes: Outcomes) -> float:
    """Jain's index of the jobs' rates, for the worst seed: 1 if all rates are equal, 1/jobs if one job has
    everything."""

    def index(seconds: Sequence[float]) -> float:
        rates = [1 / each for each in seconds]
        return sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates))

    return min(index(outcome.jobs_s) for outcome in outcomes)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


Column = Callable[[Row, Outcomes, Outcomes], str]
"""The text of a cell, from a row, its outcomes, and the outcomes of the first row with the same last label."""

COLUMNS: Mapping[str, Column] = {
    "ms": lambda row, mine, first: milliseconds(median_s(mine)),
    "worst ms": lambda row, mine, first: milliseconds(max(outcome.seconds for outcome in mine)),
    "of the bound": lambda row, mine, first: f"{row.case.bound_s / median_s(mine):.3f}",
    "times the first": lambda row, mine, first: f"{median_s(mine) / median_s(first):.2f}",
    "lost to it, us": lambda row, mine, first: f"{(median_s(mine) - median_s(first)) * 1e6:.0f}",
    "ring, ms": lambda row, mine, first: milliseconds(ring_s(row.case.workers, row.case.tensor_bytes, row.case.path)),
    "halving, ms": lambda row, mine, first: milliseconds(
        halving_doubling_s(row.case.workers, row.case.tensor_bytes, row.case.path)
    ),
    "sent again": lambda row, mine, first: f"{statistics.median(outcome.retransmissions for outcome in mine):.0f}",
    "asked": lambda row, mine, first: f"{statistics.median(outcome.questions for outcome in mine):.0f}",
    "dropped": lambda row, mine, first: f"{statistics.median(outcome.overflow for outcome in mine):.0f}",
    "link packets": lambda row, mine, first: f"{mine[0].link_packets:,}",
    "marked": lambda row, mine, first: f"{statistics.median(outcome.marked for outcome in mine):.0f}",
    "buffer, kB": lambda row, mine, first: f"{max(outcome.buffer_held_max for outcome in mine) / 1e3:.0f}",
    "fairness": lambda row, mine, first: f"{fairness(mine):.3f}",
    "first, ms": lambda row, mine, first: milliseconds(statistics.median(min(each.jobs_s) for each in mine)),
    "memory, GB": lambda row, mine, first: f"{max(outcome.memory_mb for outcome in mine) / 1e3:.2f}",
    "simulated in, s": lambda row, mine, first: f"{sum(outcome.real_s for outcome in mine):.1f}",
}


@dataclass(frozen=True)
class Study:
    title: str
    labels: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def tree(workers: int, **fields: object) -> Case:
    return Case(workers=workers, racks=RACKS[workers], **fields)  # type: ignore[arg-type]


def scale_rows() -> tuple[Row, ...]:
    return tuple(
        Row((f"{workers:,}", f"{gbit:g} Gbit/s"), tree(workers, gbit=gbit))
        for gbit in RATES_GBIT
        for workers in (8, 32, 128, 1024, 4096)
    )


def host_rows() -> tuple[Row, ...]:
    return tuple(
        Row((f"{hosts:,}", str(a_host)), replace(tree(hosts), workers=hosts * a_host, a_host=a_host))
        for hosts, counts in ((8, (1, 2, 4, 8)), (128, (1, 8)), (512, (1, 4)), (1024, (1, 2)))
        for a_host in counts
    )


def loss_rows() -> tuple[Row, ...]:
    places = ((8, 100.0, 5), (8, 400.0, 5), (128, 100.0, 3))
    return tuple(
        Row((f"{loss:g}", f"{workers:,} at {gbit:g} Gbit/s"), tree(workers, gbit=gbit, loss=loss), seeds if loss else 1)
        for workers, gbit, seeds in places
        for loss in LOSSES
    ) + tuple(Row((f"{loss:g}", "1,024 at 100 Gbit/s"), tree(1024, loss=loss)) for loss in (0.0, 1e-5, 1e-4))


def straggler_rows() -> tuple[Row, ...]:
    base = tree(128)
    changes: tuple[tuple[str, dict[str, float]], ...] = (
        ("nobody", {}),
        ("held up for 10 us", {"stall_us": 10}),
        ("held up for 100 us", {"stall_us": 100}),
        ("held up for 1 ms", {"stall_us": 1000}),
        ("held up for 20 ms", {"stall_us": 20_000}),
        ("calls 1 ms late", {"late_us": 1000}),
        ("has half the rate", {"slow_gbit": 50}),
    )
    return tuple(
        Row((name, f"loss {loss:g}"), replace(base, loss=loss, **change), 3 if loss else 1)  # type: ignore[arg-type]
        for loss in (0.0, 1e-4)
        for name, change in changes
    )


def cross_rows() -> tuple[Row, ...]:
    others = 31
    line_gbit = tree(128).gbit
    once = Cross(others * line_gbit, burst_us=64e3 * 8e-3 / line_gbit)  # each sends 64 kB at the rate of its link
    often = replace(once, burst_us=once.burst_us / 4, period_us=100)
    flows: tuple[tuple[str, Cross | None], ...] = (
        ("none", None),
        ("25% of a host's link", Cross(25)),
        ("50% of a host's link", Cross(50)),
        ("75% of a host's link", Cross(75)),
        ("50% of a rack's uplink", Cross(50, of_rack=True)),
        ("31 x 16 kB, each 100 us", often),
        ("31 x 64 kB, at 100 us", replace(once, begin_us=100)),
        ("31 x 64 kB, at 0", once),
    )
    return tuple(
        Row((name, has), replace(tree(128), cross=cross, buffer_kb=buffer))
        for buffer, has in ((0, "1 MB for each port"), (16_000, "16 MB for all ports"))
        for name, cross in flows
    )


def job_rows() -> tuple[Row, ...]:
    return tuple(
        Row((str(jobs), f"loss {loss:g}{marks}"), Case(loss=loss, mark_kb=mark_kb, jobs=jobs), 3)
        for loss in (0.0, 1e-3)
        for mark_kb, marks in ((0, ""), (100, ", marks above 100 kB"))
        for jobs in (1, 2, 4, 8)
    )


def buffer_rows() -> tuple[Row, ...]:
    """Rows by slots and buffer. The port of one host has bursts of others' traffic, on average a fifth of the rate."""
    bursts = Cross(400, burst_us=10, period_us=200)
    return tuple(
        Row(
            (str(slots), f"{buffer / 1000:g} MB of buffer"),
            Case(megabytes=25, slots=slots, cross=bursts, buffer_kb=buffer, mark_kb=100),
        )
        for buffer in (100, 500, 4000, 16_000)
        for slots in (32, 64, 128, 256, 512, 1024)
    )


def far_rows() -> tuple[Row, ...]:
    """Rows by round trip and slots. Queues hold a round trip's packets, as is usual for routers of long links."""
    return tuple(
        Row(
            (f"{milliseconds} ms", f"{slots:,}", f"loss {loss:g}"),
            Case(
                workers=4,
                gbit=1.0,
                link_ns=milliseconds * 500_000,
                megabytes=25.0,
                tensors=8,
                slots=slots,
                loss=loss,
                queue_bytes=milliseconds * 125_000,
            ),
            3 if loss else 1,
        )
        for milliseconds in (10, 50, 100)
        for slots in (256, 4096, 8192)
        for loss in (0.0, 1e-4)
    )


def sparse_rows() -> tuple[Row, ...]:
    rows = [
        Row((f"{bits} bits, dense", f"{workers:,}"), tree(workers, bits=bits))
        for workers in (64, 1024)
        for bits in ((32, 16, 8) if workers == 64 else (32, 16))
    ]
    return (
        *rows,
        *(
            Row((f"32 bits, {density:.0%} of blocks", "1,024"), tree(1024, density=density, tensors=3))
            for density in (0.5, 0.1, 0.01)
        ),
    )


def large_rows() -> tuple[Row, ...]:
    return tuple(Row((f"{workers:,}", "100 Gbit/s"), tree(workers, megabytes=100.0)) for workers in (8, 128, 1024))


STUDIES: Mapping[str, Study] = {
    "scale": Study(
        "Time of 4 MB of fp32, by workers and rate, beside the bounds of other ways",
        ("workers", "links"),
        ("ms", "of the bound", "times the first", "ring, ms", "halving, ms", "memory, GB", "simulated in, s"),
        scale_rows(),
    ),
    "hosts": Study(
        "Several workers on each host, which share a stream: 4 MB, 100 Gbit/s",
        ("hosts", "workers on each"),
        ("ms", "of the bound", "link packets", "memory, GB", "simulated in, s"),
        host_rows(),
    ),
    "loss": Study(
        "Loss on every link, both directions: 4 MB, beside what other ways cost at best under the same loss",
        ("loss", "workers"),
        ("ms", "worst ms", "times the first", "ring, ms", "halving, ms", "sent again", "asked"),
        loss_rows(),
    ),
    "stragglers": Study(
        "One worker of 128 is late: 4 MB, 100 Gbit/s",
        ("worker 0", "links"),
        ("ms", "lost to it, us", "sent again", "asked"),
        straggler_rows(),
    ),
    "cross": Study(
        "Traffic of others, which does not slow down: 128 workers, 4 MB, 100 Gbit/s",
        ("traffic", "switches have"),
        ("ms", "times the first", "dropped", "sent again", "buffer, kB"),
        cross_rows(),
    ),
    "jobs": Study(
        "Jobs of eight workers on the same eight hosts: 4 MB each, 100 Gbit/s",
        ("jobs", "links"),
        ("ms", "first, ms", "of the bound", "fairness", "dropped", "sent again"),
        job_rows(),
    ),
    "buffers": Study(
        "Slots against buffers, with bursts of others at one port: eight workers, 25 MB, 100 Gbit/s",
        ("slots", "switch has"),
        ("ms", "of the bound", "dropped", "marked", "buffer, kB", "sent again"),
        buffer_rows(),
    ),
    "far": Study(
        "Long paths: four workers at 1 Gbit/s, eight tensors of 25 MB one after the other",
        ("round trip", "slots", "links"),
        ("ms", "worst ms", "of the bound", "sent again", "asked"),
        far_rows(),
    ),
    "sparse": Study(
        "Fewer bits, and blocks that hold something: 4 MB of fp32, 100 Gbit/s",
        ("tensor", "workers"),
        ("ms", "of the bound", "times the first", "sent again"),
        sparse_rows(),
    ),
    "large": Study(
        "100 MB of fp32, 100 Gbit/s (not by default: it takes as long as all others)",
        ("workers", "links"),
        ("ms", "of the bound", "times the first", "ring, ms", "halving, ms", "memory, GB", "simulated in, s"),
        large_rows(),
    ),
}
BY_DEFAULT = tuple(name for name in STUDIES if name != "large")
