"""Scenarios with sparse collectives among others, over bad networks: which blocks each worker has."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from wiresum_lab.simulation import sim

from .reference import Format, sum_exactly, sum_region
from .scenarios import FORMATS, MS, Buffers, Call, Guarded, Scenario, make_call, make_config, make_values

Blocks = npt.NDArray[np.bool_]

PLACEMENTS = ("aligned", "aligned", "independent", "independent", "one_worker", "all_zero", "all_dense")


def make_sparse_scenario(seed: int) -> Scenario:
    rng = random.Random(f"sparse {seed}")
    config = make_config(rng, seed)
    config.exact_elements_max = 0  # exact sums never skip blocks
    config.vote_lag_chunks = rng.choice([1, 20, 1000])
    # The cost of a round trip is measured in shares of the window, and tensors are small here.
    if rng.random() < 0.5:
        config.window_initial = config.window_min = rng.choice([1, 2, 4])
    start = [0] * config.workers
    chunks_max = max(8, rng.choice([20, 150, 400]) // config.workers)
    # Few kinds, so that collectives of one kind follow each other and the workers learn from the earlier ones.
    shapes = [
        (rng.choice(FORMATS), [rng.randrange(1, chunks_max) for _ in range(rng.choice([1, 1, 2, 4]))]) for _ in range(2)
    ]
    calls = []
    for _ in range(rng.choice([1, 2, 4, 8])):
        start = [at + rng.choice([0, 0, rng.randrange(20 * MS)]) for at in start]
        if rng.random() < 0.2:
            calls.append(make_call(rng, config, chunks_max, list(start)))
        else:
            format_, chunks = rng.choice(shapes)
            placement = rng.choice(PLACEMENTS)
            density = rng.choice([0.02, 0.1, 0.5])
            calls.append(make_sparse_call(rng, config, format_, chunks, placement, density, list(start)))
    return Scenario(config, calls)


def make_sparse_call(
    rng: random.Random,
    config: sim.Scenario,
    format_: Format,
    chunks: Sequence[int],
    placement: str,
    density: float,
    submit_at: list[int],
    grain: int | None = None,
) -> Call:
    """A sum with a region for each entry of `chunks`, its length in chunks. Data are present in blocks of `grain`
    elements, by default a chunk."""
    average = format_.scaling != "none" and rng.random() < 0.3
    call = Call(f"sparse {placement}", format_, average, [], submit_at, may_be_sparse=True)
    everyone = set(range(config.workers))
    keepers = rng.choice([everyone, everyone, {rng.randrange(config.workers)}])
    in_place = rng.random() < 0.5
    numbers = np.random.default_rng(rng.randrange(1 << 62))
    scale = rng.choice(["normal", "normal", "wide", "tiny", "not_finite"])
    step = format_.chunk_elements(config.lanes)
    grain = grain or step
    sizes = [count * step - rng.randrange(step) for count in chunks]
    exact = format_.scaling == "block" and sum(sizes) <= config.exact_elements_max
    for elements in sizes:
        present = place_blocks(numbers, placement, density, config.workers, -(-elements // grain))
        buffers = Buffers(elements, [], [], np.empty(0))
        contributions = []
        for worker in range(config.workers):
            source = Guarded(format_.storage, elements)
            source.array[:] = make_values(numbers, format_, elements, config.workers, scale)
            empty_blocks(numbers, source, format_, grain, present[worker])
            contributions.append(source.array.copy())
            keeps = worker in keepers
            destination = source if keeps and in_place else Guarded(format_.storage, elements) if keeps else None
            if destination is not source:
                call.originals.append((source, source.array.copy()))
            buffers.sources.append(source)
            buffers.destinations.append(destination)
        divisor = float(config.workers) if average else 1.0
        if exact:
            buffers.expected = sum_exactly(format_, contributions, divisor, elements)
        else:
            buffers.expected = sum_region(
                format_, contributions, elements, config.lanes, config.workers, divisor, config.exact_when_wide
            )
        call.regions.append(buffers)
    return call


def place_blocks(
    numbers: np.random.Generator, placement: str, density: float, workers: int, blocks: int
) -> list[Blocks]:
    """Draws the blocks that each worker has."""
    if placement == "all_zero":
        return [np.zeros(blocks, np.bool_)] * workers
    if placement == "all_dense":
        return [np.ones(blocks, np.bool_)] * workers
    if placement == "aligned":
        return [numbers.random(blocks) < density] * workers
    drawn = [numbers.random(blocks) < density for _ in range(workers)]
    if placement == "one_worker":
        owner = int(numbers.integers(workers))
        return [mine if worker == owner else np.zeros(blocks, np.bool_) for worker, mine in enumerate(drawn)]
    return drawn


def empty_blocks(numbers: np.random.Generator, source: Guarded, format_: Format, step: int, present: Blocks) -> None:
    """Sets the absent blocks to zero, of either sign where the type has two."""
    absent = np.repeat(~present, step)[: len(source.array)]
    source.array[absent] = 0
    if format_.dtype != "i32":
        bits = source.array.view(f"u{source.array.itemsize}")
        negative = np.repeat(numbers.random(len(present)) < 0.3, step)[: len(bits)] & (numbers.random(len(bits)) < 0.5)
        bits[absent & negative] = 1 << (8 * bits.itemsize - 1)


def make_mixed_scenario(seed: int) -> Scenario:
    """Exact, sparse and all other sums, one after the other in one job. In some of these jobs a state machine has room
    for hardly more than one collective at a time."""
    rng = random.Random(f"mixed {seed}")
    config = make_config(rng, seed)
    config.collectives_max = rng.choice([1, 1, 2, 2, 256])
    config.vote_lag_chunks = rng.choice([1, 20, 1000])
    chunks_max = max(8, rng.choice([20, 150]) // config.workers)
    config.exact_elements_max = rng.choice([10, 4 * config.lanes, 1000])
    start = [0] * config.workers
    shapes = [
        (rng.choice(FORMATS), [rng.randrange(1, chunks) for _ in range(rng.choice([1, 2]))])
        for chunks in (4, 4, chunks_max, chunks_max)
    ]
    calls = []
    for _ in range(rng.choice([3, 6, 12])):
        start = [at + rng.choice([0, 0, 0, rng.randrange(20 * MS)]) for at in start]
        if rng.random() < 0.4:
            calls.append(make_call(rng, config, chunks_max, list(start)))
        else:
            format_, chunks = rng.choice(shapes)
            placement = rng.choice(PLACEMENTS)
            density = rng.choice([0.02, 0.1, 0.5])
            calls.append(make_sparse_call(rng, config, format_, chunks, placement, density, list(start)))
    return Scenario(config, calls)


SCATTERED_FORMATS = tuple(format_ for format_ in FORMATS if format_.scaling != "fixed" or format_.bits == 32)


def make_scattered_scenario(seed: int) -> Scenario:
    """Tensors with scattered elements, single or a few together, so that most chunks hold something."""
    rng = random.Random(f"scattered {seed}")
    config = make_config(rng, seed)
    config.exact_elements_max = 0  # exact sums never skip blocks
    config.lanes = rng.choice([64, 90, 360])
    config.vote_lag_chunks = rng.choice([1, 20, 1000])
    # The cost of a round trip is measured in shares of the window, and tensors are small here.
    config.slots = config.threads * rng.choice([1, 2, 8])
    config.window_initial = config.window_min = rng.choice([1, 2, 8])
    start = [0] * config.workers
    chunks_max = max(24, rng.choice([100, 400]) // config.workers)
    shapes = [
        (rng.choice(SCATTERED_FORMATS), [rng.randrange(12, chunks_max) for _ in range(rng.choice([1, 1, 3]))])
        for _ in range(2)
    ]
    calls = []
    for _ in range(rng.choice([1, 3, 6])):
        start = [at + rng.choice([0, 0, rng.randrange(20 * MS)]) for at in start]
        format_, chunks = rng.choice(shapes)
        placement = rng.choice(PLACEMENTS)
        density = rng.choice([0.0005, 0.005, 0.02, 0.1])
        grain = rng.choice([1, 1, 1, 4, 27, 64])
        calls.append(make_sparse_call(rng, config, format_, chunks, placement, density, list(start), grain))
    return Scenario(config, calls)
