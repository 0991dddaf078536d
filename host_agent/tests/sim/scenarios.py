"""Scenarios drawn from a seed: the number of workers, the network's faults, and the collectives that are called."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wiresum_lab.simulation import sim

from .reference import WIDTHS, Array, Format, sum_exactly, sum_region
from .trees import settle

MS = 1_000_000  # nanoseconds
GUARD = 64  # bytes on each side of a destination, which must stay unchanged
GUARD_BYTE = 0xA5

PATTERNS = ("all_reduce", "coalesced", "broadcast", "all_gather", "reduce", "reduce_scatter", "barrier")
FORMATS = (
    *(Format(dtype, "block", bits) for dtype in ("f32", "f16", "bf16") for bits in (32, 16, 8)),
    Format("f32", "fixed", 32, 1000.0),
    Format("f32", "fixed", 16, 37.5),
    Format("bf16", "fixed", 32, 4096.0),
    Format("e4m3", "none", 32),
    Format("e5m2", "none", 32),
    Format("i32", "none", 32),
    Format("i32", "none", 16),
    Format("i32", "none", 8),
)
RAW = Format("raw", "none", 8)

DTYPES = {
    "f32": sim.Dtype.F32,
    "f16": sim.Dtype.F16,
    "bf16": sim.Dtype.BF16,
    "e4m3": sim.Dtype.E4M3,
    "e5m2": sim.Dtype.E5M2,
    "i32": sim.Dtype.I32,
    "raw": sim.Dtype.RAW,
}
SCALINGS = {"none": sim.Scaling.NONE, "block": sim.Scaling.BLOCK_EXPONENT, "fixed": sim.Scaling.FIXED}


def replay(seed: int) -> str:
    """The command that runs the current test again with this seed."""
    file = os.environ["PYTEST_CURRENT_TEST"].split("::")[0]
    return f"replay: pytest {file} --seed {seed}"


class Guarded:
    """Memory for `elements` elements between guard bytes, which detect writes outside."""

    def __init__(self, storage: np.dtype[Any], elements: int) -> None:
        size = elements * storage.itemsize
        self._bytes = np.full(size + 2 * GUARD, GUARD_BYTE, np.uint8)
        self.array: Array = self._bytes[GUARD : GUARD + size].view(storage)

    @property
    def address(self) -> int:
        return int(self._bytes.ctypes.data) + GUARD

    def intact(self) -> bool:
        return bool((self._bytes[:GUARD] == GUARD_BYTE).all() and (self._bytes[-GUARD:] == GUARD_BYTE).all())


@dataclass
class Buffers:
    """One region at all workers: the contributions, the destinations, and the expected sum."""

    elements: int
    sources: list[Guarded | None]
    destinations: list[Guarded | None]
    expected: Array


@dataclass
class Call:
    """One collective, called by all workers."""

    pattern: str
    format: Format
    average: bool
    regions: list[Buffers]
    submit_at: list[int]
    originals: list[tuple[Guarded, Array]] = field(default_factory=list)  # sources, which must not change
    may_be_sparse: bool = False
    signature: int = 0
    timeout: int | None = None


@dataclass
class Scenario:
    config: sim.Scenario
    calls: list[Call]

    def __str__(self) -> str:
        c = self.config
        calls = ", ".join(f"{x.pattern}/{x.format.dtype}/{x.format.scaling}/{x.format.bits}" for x in self.calls)
        return (
            f"N={c.workers} threads={c.threads} lanes={c.lanes} slots={c.slots} loss={c.up.loss:.3f}/{c.down.loss:.3f}"
            f" calls=[{calls}] hosts={c.hosts}"
        )

    def job(self) -> sim.Job:
        job = sim.Job(self.config)
        for call in self.calls:
            workers = range(self.config.workers)
            job.add(
                dtype=DTYPES[call.format.dtype],
                scaling=SCALINGS[call.format.scaling],
                bits=call.format.bits,
                fixed_scale=call.format.fixed_scale,
                divisor=float(self.config.workers) if call.average else 1.0,
                may_be_sparse=call.may_be_sparse,
                signature=call.signature,
                regions=[[region_of(buffers, worker) for buffers in call.regions] for worker in workers],
                submit_at=call.submit_at,
                timeout=call.timeout,
            )
        return job


def region_of(buffers: Buffers, worker: int) -> tuple[int | None, int | None, int]:
    source, destination = buffers.sources[worker], buffers.destinations[worker]
    return (source and source.address, destination and destination.address, buffers.elements)


def make_scenario(seed: int) -> Scenario:
    rng = random.Random(seed)
    config = make_config(rng, seed)
    start = [0] * config.workers
    if rng.random() < 0.2:  # a worker starts late, by up to ten seconds
        start[rng.randrange(config.workers)] = rng.randrange(10_000 * MS)
    calls = []
    # The cost of a simulation grows with workers times chunks, so a seed's budget limits the product.
    chunks_max = max(4, rng.choice([20, 150, 600]) // config.workers)
    for _ in range(rng.choice([1, 1, 2, 3, 6])):
        start = [at + rng.choice([0, 0, rng.randrange(20 * MS)]) for at in start]
        calls.append(make_call(rng, config, chunks_max, list(start)))
    return Scenario(config, calls)


def make_config(rng: random.Random, seed: int) -> sim.Scenario:
    config = sim.Scenario()
    config.seed = seed
    config.workers = rng.choice([1, 2, 2, 3, 4, 5, 8, 13, 32])
    config.threads = rng.choice([1, 1, 2, 4])
    config.lanes = rng.choice([1, 4, 16, 64, 360])
    config.slots = config.threads * rng.choice([1, 2, 8, 32])
    config.window_min = rng.choice([1, 2, 8, 32])
    config.window_initial = rng.choice([1, 4, 32])
    near_wrap = (1 << 32) - rng.randrange(8)
    config.round_first = rng.choice([1, 1, near_wrap % (1 << 32), (1 << 31) - 2, rng.randrange(1 << 32)])
    config.interruption_max = rng.choice([0, 0, MS, 20 * MS])
    config.task_max = rng.choice([0, MS, 20 * MS])
    config.device_delay_max = rng.choice([0, 0, 20_000, 2 * MS])
    config.device_packets = rng.choice([1, 7, 64])
    # Of virtual time; a scenario that takes longer hangs (the slowest, one slot and 30% loss, takes 700 s).
    config.time_max = 3_000_000 * MS
    config.up, config.down = make_link(rng), make_link(rng)
    config.exact_elements_max = rng.choice([0, 0, 100, 3000])
    config.exact_when_wide = bool(seed % 4)
    config.stalls = [
        sim.Stall(rng.randrange(config.workers), begin, begin + rng.randrange(1, 3000 * MS))
        for begin in [rng.randrange(200 * MS) for _ in range(rng.choice([0, 0, 0, 1, 3]))]
    ]
    config.check_word = random.Random(f"check word {seed}").random() < 0.5
    of_hosts = random.Random(f"hosts {seed}")
    if of_hosts.random() < 0.4:
        settle(of_hosts, config)
    return config


def make_link(rng: random.Random) -> sim.Link:
    link = sim.Link()
    link.loss = rng.choice([0, 0, 0.01, 0.05, 0.15, 0.3])
    link.duplicate = rng.choice([0, 0, 0.02, 0.3])
    link.reorder = rng.choice([0, 0, 0.05, 0.5])
    link.delay_ns = rng.choice([1_000, 50_000, 50_000, 5 * MS, 60 * MS])
    # Packets are held back for up to many round trips, far beyond the range in which round numbers are unambiguous.
    link.reorder_ns_max = link.delay_ns * rng.choice([1, 10, 100])
    link.jitter_ns = rng.choice([0, link.delay_ns // 4, link.delay_ns])
    link.rate_bps = rng.choice([0, 0, 10e6, 100e6])
    link.queue_bytes = rng.choice([6_000, 60_000, 1 << 20])
    return link


def make_call(rng: random.Random, config: sim.Scenario, chunks_max: int, submit_at: list[int]) -> Call:
    pattern = rng.choice(PATTERNS)
    formats = (*FORMATS, RAW, RAW) if pattern in ("broadcast", "all_gather") else FORMATS
    format_ = rng.choice(formats)
    average = pattern in ("all_reduce", "coalesced") and format_.dtype in WIDTHS and rng.random() < 0.3
    call = Call(pattern, format_, average, [], submit_at, signature=1 + PATTERNS.index(pattern))
    everyone = set(range(config.workers))
    one = {rng.randrange(config.workers)}
    # Which workers contribute and which keep the result, region by region.
    roles: list[tuple[set[int], set[int]]] = {
        "all_reduce": [(everyone, everyone)],
        "coalesced": [(everyone, everyone)] * rng.randrange(2, 6),
        "broadcast": [(one, everyone - one)],
        "all_gather": [({owner}, everyone) for owner in range(config.workers)],
        "reduce": [(everyone, one)],
        "reduce_scatter": [(everyone, {owner}) for owner in range(config.workers)],
        "barrier": [],
    }[pattern]
    in_place = rng.random() < 0.5
    step = format_.chunk_elements(config.lanes)
    elements_max = 2 + step * max(1, chunks_max // max(1, len(roles)))
    sizes = [rng.choice([0, 1, step, rng.randrange(1, elements_max)]) for _ in roles]
    if config.exact_elements_max and rng.random() < 0.5:
        sizes = [min(size, config.exact_elements_max // len(roles)) for size in sizes]
    exact = format_.scaling == "block" and sum(sizes) <= config.exact_elements_max
    for elements, (givers, keepers) in zip(sizes, roles, strict=True):
        call.regions.append(make_buffers(rng, config, call, elements, givers, keepers, in_place, exact))
    return call


def make_buffers(
    rng: random.Random,
    config: sim.Scenario,
    call: Call,
    elements: int,
    givers: set[int],
    keepers: set[int],
    in_place: bool,
    exact: bool,
) -> Buffers:
    sources: list[Guarded | None] = []
    destinations: list[Guarded | None] = []
    contributions: list[Array] = []
    numbers = np.random.default_rng(rng.randrange(1 << 62))
    scale = rng.choice(["normal", "wide", "any", "tiny", "zero", "not_finite"])
    for worker in range(config.workers):
        source = destination = None
        if worker in givers:
            source = Guarded(call.format.storage, elements)
            source.array[:] = make_values(numbers, call.format, elements, config.workers, scale)
            contributions.append(source.array.copy())
        if worker in keepers:
            destination = source if in_place and source else Guarded(call.format.storage, elements)
        if source and source is not destination:
            call.originals.append((source, source.array.copy()))
        sources.append(source)
        destinations.append(destination)
    divisor = float(config.workers) if call.average else 1.0
    if exact:
        expected = sum_exactly(call.format, contributions, divisor, elements)
    else:
        expected = sum_region(
            call.format, contributions, elements, config.lanes, config.workers, divisor, config.exact_when_wide
        )
    return Buffers(elements, sources, destinations, expected)


def make_values(numbers: np.random.Generator, format_: Format, elements: int, workers: int, scale: str) -> Array:
    if format_.dtype == "raw":
        return numbers.integers(0, 256, elements, np.uint8)
    if format_.storage == np.uint8:
        values = numbers.integers(0, 256, elements, np.uint8)
        if scale != "not_finite":
            values[(values & 0x7F) > (0x7E if format_.dtype == "e4m3" else 0x7B)] ^= 0x40
        return values if scale != "zero" else np.where(numbers.random(elements) < 0.1, values, 0).astype(np.uint8)
    if format_.dtype == "i32":
        if format_.bits == 32:  # sums of 32-bit integers wrap around
            return numbers.integers(-(1 << 31), 1 << 31, elements).astype(np.int32)
        limit = ((1 << (format_.bits - 1)) - 1) // workers
        return numbers.integers(-limit, limit + 1, elements).astype(np.int32)
    values = numbers.standard_normal(elements).astype(np.float32)
    if scale == "wide":
        values = np.ldexp(values, numbers.integers(-30, 12, elements)).astype(np.float32)
    elif scale == "any":
        values = numbers.integers(0, 1 << 32, elements, np.uint32).view(np.float32)
        values[~np.isfinite(values)] = np.float32(3e38)
    elif scale == "tiny":  # subnormal in fp32 and bf16, zero in fp16
        values = np.ldexp(values, -140).astype(np.float32)
    elif scale == "zero":
        values[numbers.random(elements) < 0.9] = 0
    elif scale == "not_finite":
        values[numbers.random(elements) < 0.002] = numbers.choice(np.array([np.inf, -np.inf, np.nan], np.float32))
    if format_.dtype == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(format_.storage)
