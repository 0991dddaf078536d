"""Gradients by `wiresum.torch.reproducible`: the bits of the definition for any split and order, and one training for
any number of workers."""

from __future__ import annotations

import itertools
import math
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import wiresum.torch
from wiresum.agent._native import DigitSums
from wiresum.torch import reproducibility
from wiresum.torch.fingerprints import first_difference
from wiresum_lab.float_modes import MODES, float_mode
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import SwitchProcess
from wiresum_lab.ranks.cluster import Cluster, environment, runs_in

BLOCK = 256
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "reproducible.py"
EXAMPLE_S_MAX = 2 * PATIENCE_S
FLOATS = st.one_of(
    st.floats(width=32),  # Inf, NaN and subnormals among them
    st.floats(-1, 1, width=32),
    st.sampled_from([0.0, -0.0, 2.0**-149, -(2.0**-126), 3.4028234663852886e38, 1.0, -1.0, 2.0**-30]),
)
PARTS = st.integers(1, 20).flatmap(
    lambda parts: st.lists(st.lists(FLOATS, min_size=parts, max_size=parts), min_size=1, max_size=4)
)
"""The parts of each element: one value for each part."""


class Holder(torch.nn.Module):
    """A parameter whose gradient is forward's argument."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(elements))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return (self.weights * gradient).sum()


def rounded(value: Fraction) -> np.float32:
    """Rounds to nearest even, in integers."""
    if value == 0:
        return np.float32(0)
    exponent = math.floor(math.log2(abs(value)))
    exponent += (abs(value) >= Fraction(2) ** (exponent + 1)) - (abs(value) < Fraction(2) ** exponent)
    unit = Fraction(2) ** max(exponent - 23, -149)
    return np.float32(math.copysign(round(abs(value) / unit) * unit, value))


def cut(value: float, words: int | None, largest: float, digit: int) -> Fraction:
    """The part of a finite value that a window of so many words keeps, in a block with this largest magnitude."""
    if words is None or largest == 0:
        return Fraction(value)
    end = (max(math.frexp(largest)[1] - 1, -126) + 149) // digit + 1
    unit = Fraction(2) ** (max(0, end - 4 * words) * digit - 149)
    return math.trunc(Fraction(value) / unit) * unit


def definition(elements: Sequence[Sequence[float]], words: int | None) -> np.ndarray[Any, Any]:
    """The mean over parts of elements in one block, in fractions."""
    digit = 7 if len(elements[0]) <= 8 else 6
    largest = max((abs(value) for value in itertools.chain(*elements) if math.isfinite(value)), default=0.0)
    means = []
    for values in elements:
        special = [value for value in values if not math.isfinite(value)]
        if special:
            means.append(np.float32(sum(special)))
        else:
            means.append(rounded(sum(cut(value, words, largest, digit) for value in values) / len(values)))
    return np.array(means, np.float32)


def same_bits(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Compares bits: NaN equals NaN; +0 is not -0."""
    nan = np.isnan(one) & np.isnan(other)
    return bool(np.all(nan | (one.view(np.int32) == other.view(np.int32))))


def mean_of(parts: np.ndarray[Any, Any], words: int | None) -> np.ndarray[Any, Any]:
    """The mean by `reproducible` in one process."""
    model = Holder(parts.shape[1])
    sums = wiresum.torch.reproducible(model, microbatches=len(parts), words=words)
    for index in sums.mine():
        model(torch.from_numpy(parts[index].copy())).backward()
        assert model.weights.grad is None
    sums.reduce()
    assert model.weights.grad is not None
    return model.weights.grad.numpy()


@settings(max_examples=200)
@example([[0.0, -(2.0**-149)]], 1, Random(0))  # rounds to -0
@given(PARTS, st.sampled_from([1, 2, 3, None]), st.randoms())
def test_any_order_gives_the_bits_of_the_definition(
    elements: list[list[float]], words: int | None, random: Any
) -> None:
    expected = definition(elements, words)
    parts = np.array(elements, np.float32).T.copy()
    for _ in range(2):
        random.shuffle(order := list(range(len(parts))))
        result = mean_of(parts[order], words)
        assert same_bits(result, expected), (result, expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("words", [1, 2, None])
def test_the_callers_floating_point_mode_does_not_change_bits(mode: str, words: int | None) -> None:
    random = np.random.default_rng(3)
    exponents = random.integers(-149, -120, 3 * BLOCK)
    parts = [np.ldexp(random.normal(size=3 * BLOCK), exponents).astype(np.float32) for _ in range(7)]
    parts[0][7] = np.inf  # its block is joined in another way

    def mean() -> np.ndarray:
        sums, extents = DigitSums(7, words or 0), np.zeros((2, 3), np.uint8)
        lanes, counts = np.empty(sums.lanes(3 * BLOCK), np.int32), np.zeros(3 * BLOCK, np.int32)
        for part in parts:
            if sums.add(part, extents[0], extents[1], lanes):
                sums.count_special(part, counts)
        packed = np.empty(sums.packed(extents[0], extents[1], 3 * BLOCK), np.int32)
        sums.pack(extents[0], extents[1], extents[0], extents[1], lanes, 3 * BLOCK, packed)
        result = np.empty(3 * BLOCK, np.float32)
        sums.join(extents[0], extents[1], packed, counts, 7, result)
        return result.view(np.uint32)

    expected = mean()
    assert ((expected & 0x7F800000 == 0) & (expected & 0x7FFFFF != 0)).any(), "there are subnormals"
    with float_mode(mode):
        found = mean()
    assert (found == expected).all()


def test_arrays_of_wrong_sizes_are_refused() -> None:
    sums = DigitSums(8, 1)
    part, extents, lanes = np.zeros(300, np.float32), np.zeros((2, 2), np.uint8), np.empty(sums.lanes(300), np.int32)
    with pytest.raises(ValueError, match="lanes: 1023 elements instead of 1024"):
        sums.add(part, extents[0], extents[1], lanes[:-1])
    with pytest.raises(ValueError, match="ends: 1 elements instead of 2"):
        sums.add(part, extents[0, :1], extents[1], lanes)
    with pytest.raises(ValueError, match="counts"):
        sums.count_special(part, np.empty(3, np.int32))
    with pytest.raises(ValueError, match="129 parts"):
        DigitSums(129, 1)


@pytest.mark.parametrize(("words", "end", "depth"), [(0, 40, 255), (0, 3, 1), (0, 255, 48), (1, 255, 255)])
def test_extents_that_no_sums_have_are_refused(words: int, end: int, depth: int) -> None:
    """Extents come from other workers."""
    sums = DigitSums(8, words)
    ends, depths = np.full(1, end, np.uint8), np.full(1, depth, np.uint8)
    with pytest.raises(ValueError, match="are of no sums"):
        sums.packed(ends, depths, BLOCK)


def test_what_is_agreed_cannot_be_less_than_a_workers_own() -> None:
    sums = DigitSums(8, 0)
    part, lanes = np.full(BLOCK, 1.5, np.float32), np.empty(sums.lanes(BLOCK), np.int32)
    ends, depths = np.zeros(1, np.uint8), np.zeros(1, np.uint8)
    sums.add(part, ends, depths, lanes)
    for agreed in ((ends - 1, depths), (ends, depths - 1)):
        words = np.empty(sums.packed(*agreed, BLOCK), np.int32)
        with pytest.raises(ValueError, match="less than what this one has"):
            sums.pack(*agreed, ends, depths, lanes, BLOCK, words)


@runs_in("pair")
def test_a_maximum_that_came_back_too_small_is_an_error(rank: int, size: int) -> None:
    model = Holder(3)
    sums = wiresum.torch.reproducible(model, microbatches=2)
    model(torch.ones(3)).backward()
    all_reduce = sums._all_reduce

    def altered(numbers: Any, operation: Any) -> Any:
        all_reduce(numbers, operation).wait()
        numbers[-1] = 0

    sums._all_reduce = altered  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="below this worker's own"):
        sums.reduce()


# ---- trainings


class Network(torch.nn.Module):
    """A shared embedding, a branch that some micro-batches skip, a parameter that none uses, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(40, 24)
        self.hidden = torch.nn.Linear(24, 50)
        self.detour = torch.nn.Linear(50, 50)
        self.back = torch.nn.Linear(50, 24)
        self.unused = torch.nn.Linear(3, 3)
        self.unused.bias.requires_grad_(False)

    def forward(self, tokens: torch.Tensor, detour: bool) -> torch.Tensor:
        hidden = torch.relu(self.hidden(self.embedding(tokens)))
        if detour:
            hidden = hidden + torch.relu(self.detour(hidden))
        return self.back(hidden) @ self.embedding.weight.T


def train(model: Network, microbatches: int, words: int | None = 1, steps: int = 6) -> list[bytes]:
    """Returns the bits of all parameters after each step."""
    sums = wiresum.torch.reproducible(model, microbatches, words=words)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    history = []
    for step in range(steps):
        optimizer.zero_grad()
        for index in sums.mine():
            generator = torch.Generator().manual_seed(1000 * step + index)
            tokens = torch.randint(0, 40, (6, 9), generator=generator)
            scores = model(tokens[:, :-1], detour=index % 3 == 0)
            torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        sums.reduce()
        assert model.unused.weight.grad is None
        optimizer.step()
        history.append(b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters()))
    return history


def train_here(rank: int, size: int, microbatches: int, words: int | None) -> list[bytes]:
    torch.manual_seed(7 + rank)  # rank 0's parameters are those of all
    return train(Network(), microbatches, words)


@pytest.fixture
def alone() -> Callable[[int, int | None], list[bytes]]:
    return lambda microbatches, words: train_here(0, 1, microbatches, words)


@pytest.mark.parametrize(("microbatches", "words"), [(8, 1), (5, 2), (11, None)])
def test_two_workers_train_as_one(
    pair: Cluster, alone: Callable[..., list[bytes]], microbatches: int, words: int | None
) -> None:
    expected = alone(microbatches, words)
    assert len(set(expected)) == len(expected)
    assert pair.run(train_here, microbatches, words) == [expected] * 2


def test_three_workers_train_as_one(trio: Cluster, alone: Callable[..., list[bytes]]) -> None:
    """Three workers do not divide the micro-batches."""
    assert trio.run(train_here, 8, 1) == [alone(8, 1)] * 3


@pytest.mark.parametrize("size", [2, 4])
def test_workers_over_gloo_train_as_one(
    make_cluster: Callable[..., Cluster], alone: Callable[..., list[bytes]], size: int
) -> None:
    assert make_cluster(size, backend="gloo").run(train_here, 8, 1) == [alone(8, 1)] * size


@runs_in("trio")
def test_inf_and_nan_stay_in_their_element_at_all_workers(rank: int, size: int) -> None:
    parts = np.arange(5 * 300, dtype=np.float32).reshape(5, 300)
    parts[1, 7], parts[4, 7], parts[2, 8], parts[3, 299] = np.inf, -np.inf, np.nan, -np.inf  # rank 0 has none
    model = torch.nn.ModuleList([Holder(300), Holder(2)])
    sums = wiresum.torch.reproducible(model, microbatches=5)
    for index in sums.mine():
        (model[0](torch.from_numpy(parts[index])) + model[1](torch.ones(2))).backward()
    sums.reduce()
    found = model[0].weights.grad.numpy()
    blocks = parts[:, :BLOCK].T.tolist(), parts[:, BLOCK:].T.tolist()
    assert same_bits(found, np.concatenate([definition(block, 1) for block in blocks]))
    assert np.flatnonzero(~np.isfinite(found)).tolist() == [7, 8, 299]
    assert model[1].weights.grad.tolist() == [1.0, 1.0]


def train_in_small_buckets(rank: int, size: int) -> list[bytes]:
    reproducibility.BUCKET_BYTES = 3000
    return train_here(rank, size, 8, 1)


def test_several_buckets_are_in_flight(make_cluster: Callable[..., Cluster], alone: Callable[..., list[bytes]]) -> None:
    assert make_cluster(2).run(train_in_small_buckets) == [alone(8, 1)] * 2


def test_more_workers_than_microbatches(quartet: Cluster, alone: Callable[..., list[bytes]]) -> None:
    assert quartet.run(train_here, 3, 1) == [alone(3, 1)] * 4


def run_example(switch: SwitchProcess, workers: int, *options: str) -> str:
    """Returns the fingerprint that the example prints."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers), str(EXAMPLE)]
    done = subprocess.run(
        [sys.executable, *command, "--width", "16", "--layers", "1", *options],
        check=False,
        env=environment({"WIRESUM_SWITCH": switch.endpoint}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=EXAMPLE_S_MAX,
    )
    assert done.returncode == 0, done.stdout
    (found,) = re.findall(rf"^{workers} workers, .* s: (\w{{64}})$", done.stdout, re.MULTILINE)
    return str(found)


@pytest.mark.nightly
@pytest.mark.timeout(8 * EXAMPLE_S_MAX)
def test_the_example_ends_alike_however_its_workers_change(switch: SwitchProcess, tmp_path: Path) -> None:
    log, saved = ["--record", str(tmp_path / "one")], ["--checkpoint", str(tmp_path / "checkpoint")]
    expected = run_example(switch, 1, "--until", "12", *log)
    assert run_example(switch, 2, "--until", "12", "--backend", "gloo") == expected
    log = ["--record", str(tmp_path / "other")]
    for workers, until in ((4, "4"), (1, "8"), (2, "12")):
        last = run_example(switch, workers, "--until", until, *saved, *log)
    assert last == expected
    assert first_difference(tmp_path / "one", tmp_path / "other") is None


@pytest.mark.slow
@pytest.mark.timeout(8 * EXAMPLE_S_MAX)
def test_the_example_shows_where_ddp_begins_to_differ(switch: SwitchProcess, tmp_path: Path) -> None:
    for workers in (1, 4):
        log = ["--record", str(tmp_path / str(workers))]
        run_example(switch, workers, "--until", "12", "--ddp", "--backend", "gloo", *log)
    difference = first_difference(tmp_path / "1", tmp_path / "4")
    assert difference is not None and re.match(r"step \d+: layers", difference)


# ---- errors


@runs_in("pair")
def test_a_missing_microbatch_is_an_error_at_all_workers(rank: int, size: int) -> None:
    model = Holder(3)
    sums = wiresum.torch.reproducible(model, microbatches=4)
    for _ in range(2 - rank):
        model(torch.ones(3)).backward()
    with pytest.raises(RuntimeError, match="not all 4 micro-batches are there: rank 1 did 1 instead of 2"):
        sums.reduce()
    assert model.weights.grad is None
    for index in sums.mine():
        model(torch.full((3,), float(index))).backward()
    sums.reduce()  # the step that failed has left nothing
    assert model.weights.grad.tolist() == [1.5] * 3


@runs_in("pair")
def test_a_backward_pass_that_raises_is_an_error_at_all_workers(rank: int, size: int) -> None:
    model = Holder(3)
    sums = wiresum.torch.reproducible(model, microbatches=2)
    if rank == 1:
        model.weights.register_post_accumulate_grad_hook(lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(torch.ones(3)).backward()
        with pytest.raises(RuntimeError, match="a backward pass did not end"):
            model(torch.ones(3)).backward()
    else:
        model(torch.ones(3)).backward()
    with pytest.raises(RuntimeError, match=r"rank 1 failed \(.*did not end" if rank == 1 else "rank 1 failed"):
        sums.reduce()


def test_a_backward_pass_too_many() -> None:
    model = Holder(3)
    sums = wiresum.torch.reproducible(model, microbatches=2)
    for _ in range(2):
        model(torch.ones(3)).backward()
    with pytest.raises(RuntimeError, match="this worker has 2 micro-batches a step"):
        model(torch.ones(3)).backward()
    with pytest.raises(RuntimeError, match=r"rank 0 failed .*a backward pass too many"):
        sums.reduce()
    sums.close()
    model(torch.ones(3)).backward()
    assert model.weights.grad is not None and model.weights.grad.tolist() == [2.0, 2.0, 2.0]


@runs_in("pair")
def test_workers_that_disagree_are_told_so(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"differ: microbatches \(rank 0 has 8; rank 1 has 9\)$"):
        wiresum.torch.reproducible(Holder(3), microbatches=8 + rank)
    with pytest.raises(ValueError, match=r"differ: words \(rank 0 has 1; rank 1 has 2\)$"):
        wiresum.torch.reproducible(Holder(3), words=1 + rank)
    with pytest.raises(ValueError, match=r"differ: tensor\.weights \(rank 0 has '\[3\] of float32, trained'; rank 1"):
        wiresum.torch.reproducible(Holder(3 + rank))
    with pytest.raises(ValueError, match=r"refused at rank 1, .* microbatches is 0 instead of 1 to 128"):
        wiresum.torch.reproducible(Holder(3), microbatches=1 - rank)
    threads = torch.get_num_threads()
    torch.set_num_threads(1 + rank)
    with pytest.raises(ValueError, match=r"differ: threads \(rank 0 has 1; rank 1 has 2\)$"):
        wiresum.torch.reproducible(Holder(3))
    torch.set_num_threads(threads)
    wiresum.torch.reproducible(Holder(3)).close()


@runs_in("pair")
def test_ddp_is_refused(rank: int, size: int) -> None:
    with pytest.raises(TypeError, match=r"pass the module itself \(model.module\)"):
        wiresum.torch.reproducible(DistributedDataParallel(Holder(3)))
    dist.barrier()


def test_activation_checkpoints_work_unless_they_are_reentrant() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    sums = wiresum.torch.reproducible(model, microbatches=1)
    inputs = torch.ones(2, 3, requires_grad=True)
    model[1](checkpoint(model[0], inputs, use_reentrant=False)).sum().backward()
    sums.reduce()
    with pytest.raises(RuntimeError, match="nested in another one"):
        model[1](checkpoint(model[0], inputs, use_reentrant=True)).sum().backward()


@pytest.mark.parametrize("microbatches", [0, 129])
def test_too_many_microbatches(microbatches: int) -> None:
    with pytest.raises(ValueError, match=f"microbatches is {microbatches} instead of 1 to 128"):
        wiresum.torch.reproducible(Holder(1), microbatches)


def test_parameters_and_gradients_that_cannot_be_summed_are_refused() -> None:
    with pytest.raises(TypeError, match=r"weights is a Parameter of torch\.bfloat16 on cpu"):
        wiresum.torch.reproducible(Holder(1).bfloat16())
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    sums = wiresum.torch.reproducible(embedding, microbatches=1)
    with pytest.raises(TypeError, match=r"gradient of weight is of torch.float32 and torch.sparse_coo"):
        embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="rank 0 failed"):
        sums.reduce()

    def free(weights: torch.Tensor) -> None:
        assert weights.grad is not None
        weights.grad.untyped_storage().resize_(0)

    freed = Holder(3)
    freed.weights.register_post_accumulate_grad_hook(free)
    wiresum.torch.reproducible(freed, microbatches=1)
    with pytest.raises(ValueError, match="needs 12 bytes of its storage, which has 0"):
        freed(torch.ones(3)).backward()
    model = torch.nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    sums = wiresum.torch.reproducible(model, microbatches=1)
    model.bias.requires_grad_(True)
    model(torch.ones(2)).sum().backward()
    with pytest.raises(RuntimeError, match="frozen when reproducible"):
        sums.reduce()
