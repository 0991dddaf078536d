"""Chunks that block floating point cannot carry (Inf, NaN, small numbers beside large ones) are summed again exactly,
at any length, while other collectives are in flight, through any network; ordinary numbers cost what they did.

pytest host_agent/tests/sim/test_exact_chunks.py --seed 1234         repeats a seed
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from wiresum_lab.simulation import sim

from .reference import Array, Format, sum_exactly, sum_region
from .scenarios import FORMATS, MS, PATTERNS, Buffers, Call, Guarded, Scenario, make_buffers, make_config, replay
from .test_simulation import check_outputs
from .trees import plant

FLOATS = tuple(format_ for format_ in FORMATS if format_.scaling != "none")
F32 = Format("f32", "block", 32)
EXACT_ELEMENTS_MAX = 4096  # as in a session
SUMS = tuple(pattern for pattern in PATTERNS if pattern not in ("barrier", "coalesced"))

Spoil = Callable[[np.random.Generator, Array], None]


def put_infinities(numbers: np.random.Generator, values: Array) -> None:
    places = numbers.integers(0, len(values), 3)
    values[places] = numbers.choice(np.array([np.inf, -np.inf, np.nan], np.float32), len(places))


def mask(numbers: np.random.Generator, values: Array) -> None:
    values[numbers.random(len(values)) < 0.3] = -np.inf


def put_large_ones(numbers: np.random.Generator, values: Array) -> None:
    values *= np.float32(1e-6)
    values[numbers.integers(0, len(values), 4)] = 1e4


def leave(numbers: np.random.Generator, values: Array) -> None:
    pass


SPOILS: tuple[Spoil, ...] = (put_infinities, mask, put_large_ones, leave)


def stored(format_: Format, values: Array) -> Array:
    if format_.dtype == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(format_.storage)


def make_long_call(
    rng: random.Random,
    config: sim.Scenario,
    pattern: str,
    format_: Format,
    elements: int,
    spoils: list[Spoil],
    submit_at: list[int],
) -> Call:
    """A collective of one region for each owner, or of one. Each worker's numbers are spoilt in its own way."""
    everyone, one = set(range(config.workers)), {rng.randrange(config.workers)}
    roles = {
        "all_reduce": [(everyone, everyone)],
        "broadcast": [(one, everyone - one)],
        "all_gather": [({owner}, everyone) for owner in range(config.workers)],
        "reduce": [(everyone, one)],
        "reduce_scatter": [(everyone, {owner}) for owner in range(config.workers)],
    }[pattern]
    average = pattern != "broadcast" and rng.random() < 0.3
    call = Call(pattern, format_, average, [], submit_at, signature=1 + PATTERNS.index(pattern))
    numbers = np.random.default_rng(rng.randrange(1 << 62))
    in_place = rng.random() < 0.5
    divisor = float(config.workers) if average else 1.0
    from_the_start = format_.scaling == "block" and elements * len(roles) <= config.exact_elements_max
    for givers, keepers in roles:
        buffers = Buffers(elements, [], [], np.empty(0))
        contributions = []
        for worker in range(config.workers):
            source = destination = None
            if worker in givers:
                source = Guarded(format_.storage, elements)
                values = numbers.standard_normal(elements).astype(np.float32)
                spoils[worker % len(spoils)](numbers, values)
                source.array[:] = stored(format_, values)
                contributions.append(source.array.copy())
            if worker in keepers:
                destination = source if in_place and source else Guarded(format_.storage, elements)
            if source and source is not destination:
                call.originals.append((source, source.array.copy()))
            buffers.sources.append(source)
            buffers.destinations.append(destination)
        buffers.expected = (
            sum_exactly(format_, contributions, divisor, elements)
            if from_the_start
            else sum_region(
                format_, contributions, elements, config.lanes, config.workers, divisor, config.exact_when_wide
            )
        )
        call.regions.append(buffers)
    return call


def make_long_scenario(seed: int) -> Scenario:
    """Overlapping collectives, each longer than what a session sums exactly from the start by default."""
    rng = random.Random(f"long {seed}")
    config = make_config(rng, seed)
    config.workers, config.hosts = rng.choice([2, 3, 4]), []
    config.stalls = []
    config.lanes = rng.choice([64, 360])
    config.slots = config.threads * rng.choice([2, 8, 32])
    config.up.loss, config.down.loss = (rng.choice([0, 0.02, 0.1]) for _ in range(2))
    config.exact_elements_max = rng.choice([EXACT_ELEMENTS_MAX, EXACT_ELEMENTS_MAX, 10**6])
    config.exact_when_wide = rng.random() < 0.8
    if rng.random() < 0.4:
        plant(rng, config)
    start = [rng.choice([0, 0, rng.randrange(20 * MS)]) for _ in range(config.workers)]
    calls = []
    for _ in range(rng.choice([1, 2, 4])):
        pattern = rng.choice(SUMS)
        elements = EXACT_ELEMENTS_MAX + rng.choice([1, 5, rng.randrange(2000)])
        spoils = [rng.choice(SPOILS) for _ in range(config.workers)]
        calls.append(make_long_call(rng, config, pattern, rng.choice(FLOATS), elements, spoils, list(start)))
        start = [at + rng.choice([0, 0, rng.randrange(MS)]) for at in start]
    return Scenario(config, calls)


def test_long_tensors_equal_the_reference_wherever_their_numbers_lie(long_seed: int) -> None:  # R5.3, R5.13
    scenario = make_long_scenario(long_seed)
    report = scenario.job().run()
    assert report.finished, f"{report.failure}; {replay(long_seed)}\n{scenario}"
    assert report.rejected == 0, f"an honest RESULT was rejected; {replay(long_seed)}\n{scenario}"
    check_outputs(scenario, long_seed)


def test_a_fault_while_chunks_are_summed_again_gives_no_wrong_sum(long_fault_seed: int) -> None:
    rng = random.Random(f"long faults {long_fault_seed}")
    scenario = make_long_scenario(long_fault_seed)
    for call in scenario.calls:
        call.timeout = rng.choice([200 * MS, 2_000 * MS])
    worker, at = rng.randrange(scenario.config.workers), rng.randrange(rng.choice([MS, 20 * MS, 200 * MS]))
    kinds = sim.FaultKind
    scenario.config.faults = [sim.Fault(rng.choice([kinds.ABORT, kinds.CLOSE, kinds.DEATH]), worker, at)]
    if rng.random() < 0.6:
        scenario.config.faults = [
            sim.Fault(kinds.SWITCH_RESTART, worker, at),
            sim.Fault(kinds.SWITCH_RETURN, worker, at),
        ]
    report = scenario.job().run()
    assert report.finished, f"{report.failure}; {replay(long_fault_seed)}\n{scenario}"
    check_outputs(scenario, long_fault_seed, report)


def simple_run(spoil: Spoil, *, exact_when_wide: bool, elements: int = 5000) -> sim.Report:
    """Two all-reduces of two workers over a network that loses nothing."""
    config = sim.Scenario()
    config.exact_elements_max, config.exact_when_wide = EXACT_ELEMENTS_MAX, exact_when_wide
    rng = random.Random(1)
    calls = [make_long_call(rng, config, "all_reduce", F32, elements, [spoil, leave], [0, 0]) for _ in range(2)]
    scenario = Scenario(config, calls)
    report = scenario.job().run()
    check_outputs(scenario, 0)
    assert report.retransmissions == 0
    return report


def test_ordinary_numbers_cost_what_they_cost_in_blocks() -> None:
    exact, block = (simple_run(leave, exact_when_wide=each) for each in (True, False))
    assert exact.chunks_exact == block.chunks_exact == exact.chunks_wide == block.chunks_wide == 0
    assert (exact.packets_sent, exact.bytes_sent) == (block.packets_sent, block.bytes_sent)


def test_one_inf_costs_the_rounds_of_its_own_chunk() -> None:
    def put_one(numbers: np.random.Generator, values: Array) -> None:
        values[1234] = np.inf

    plain, spoilt = simple_run(leave, exact_when_wide=True), simple_run(put_one, exact_when_wide=True)
    assert spoilt.chunks_exact == 4, "two calls, and each worker counts"
    # A round for the planes, four planes at most, and one for that of Inf and NaN; each of two workers, in two calls.
    assert 0 < spoilt.packets_sent - plain.packets_sent <= 2 * 2 * 7


@pytest.mark.parametrize("exact_when_wide", [True, False])
def test_wide_chunks_are_summed_again_or_counted(exact_when_wide: bool) -> None:
    report = simple_run(put_large_ones, exact_when_wide=exact_when_wide)
    assert (report.chunks_exact > 0, report.chunks_wide > 0) == (exact_when_wide, not exact_when_wide)


@pytest.mark.parametrize("workers", range(1, 10))
@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_fp8_is_rounded_once_for_any_number_of_workers(dtype: str, workers: int) -> None:  # R5.29
    """Of all 256 values, in tensors of any length, whatever the precision of other floats."""
    rng = random.Random(workers)
    config = sim.Scenario()
    config.workers, config.exact_elements_max, config.exact_when_wide = workers, 0, False
    calls = []
    for elements in (1, 100, 5000):
        for average in (False, True):
            call = Call("all_reduce", Format(dtype, "none"), average, [], [0] * workers, signature=1 + average)
            everyone = set(range(workers))
            call.regions.append(make_buffers(rng, config, call, elements, everyone, everyone, True, exact=True))
            calls.append(call)
    scenario = Scenario(config, calls)
    assert scenario.job().run().finished
    check_outputs(scenario, 0)
