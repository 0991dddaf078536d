"""Outer steps of real workers, over Gloo and over a switch: they have the bits of simulated ones; and workers that
differ, are lost or have values that are not finite raise errors."""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor
from torch.optim import AdamW

import wiresum.compress as wc
from wiresum_lab.processes import SwitchProcess, wait_until
from wiresum_lab.ranks.cluster import Cluster
from wiresum_lab.ranks.on_device import prepare

from .test_outer import FOUR_BITS, LAYERS, METHODS, Simulated, Worker, averaging, bits, nesterov, network, same_bits


def in_worker(rank: int, size: int, name: str, options: dict[str, Any]) -> tuple[bytes, bytes, str]:
    worker = Worker(rank, network(rank))
    outer = wc.OuterSteps(worker.model, nesterov, METHODS[name], **options)
    for step in range(9):
        worker.train(step)
        outer.step()
    return bits(outer.parameters.values()), bits(worker.model.parameters()), str(outer.report())


@pytest.mark.parametrize(
    "options", [{"every": 3}, {"every": 4, "fragments": 2, "delay": 1}], ids=["plain", "streaming"]
)
@pytest.mark.parametrize("name", METHODS)
def test_workers_have_the_same_bits_as_each_other_and_as_simulated_ones(
    trio: Cluster, name: str, options: dict[str, Any]
) -> None:
    simulated = Simulated(METHODS[name], **options)
    simulated.run(9)
    overall, *own = simulated.values()
    found = trio.run(in_worker, name, options)
    assert [one for one, _, _ in found] == [bits(overall.values())] * 3
    assert [one for _, one, _ in found] == [bits(one.values()) for one in own]
    if "delay" not in options:
        assert {one for _, one, _ in found} == {bits(overall.values())}, "9 is a multiple of 3"


def printed_in_the_guide() -> str:
    guide = (Path(__file__).parents[3] / "docs" / "compress.md").read_text()
    section = guide.partition("## Outer steps (DiLoCo)")[2].partition("\n## ")[0]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return str(program)


def guide_in_worker(rank: int, size: int, program: str) -> tuple[bytes, int, float]:
    worker = Worker(rank, network(rank))
    data = [torch.randn(8, LAYERS[0], generator=torch.Generator().manual_seed(100 * rank + n)) for n in range(200)]
    names: dict[str, Any] = {"net": worker.model, "optimizer": worker.optimizer, "data": data}
    names["loss"] = lambda net, batch: net(batch).square().sum()
    exec(program, names)
    report = names["outer"].report()
    return bits(worker.model.parameters()), report.steps, report.sent_bytes


def test_the_guides_program_trains_and_sends_a_400th(switched: Cluster) -> None:
    """In 200 steps there are two outer ones; the start is one more sum, of 32 bits."""
    found = switched.run(guide_in_worker, printed_in_the_guide())
    size = sum(parameter.numel() for parameter in network().parameters())
    assert len({parameters for parameters, _, _ in found}) == 1
    for _, steps, sent_bytes in found:
        assert steps == 200
        assert 0 <= sent_bytes - 4 * size - 200 * 4 * size / 400 <= 2 * 100, "and maxima, and flags"


def differ_in_worker(rank: int, size: int) -> list[str]:
    """The errors of workers whose arguments differ, one of which refuses, and that come apart later."""
    texts = []
    other = rank == 1
    buffered = network()
    if other:
        buffered.register_buffer("counts", torch.zeros(3))
    cases: list[dict[str, Any]] = [
        {"every": 3 if other else 2},
        {"model": network(dtype=torch.float16 if other else torch.float32)},
        {"seed": int(other)},
        {"optimizer_of": averaging if other else nesterov},
        {"model": buffered},
    ]
    for case in cases:
        given = {"model": network(), "optimizer_of": nesterov, "method": wc.IntSGD(8), "every": 2, **case}
        with pytest.raises(ValueError, match="OuterSteps") as error:
            wc.OuterSteps(**given)
        texts.append(str(error.value))
    changes: list[Callable[[wc.OuterSteps, nn.Module], object]] = [
        lambda outer, model: setattr(outer, "steps", outer.steps + 2),
        lambda outer, model: outer.parameters["0.0.bias"].data.add_(1e-7),
        lambda outer, model: setattr(next(model.parameters()), "data", torch.zeros(2, 2)),
    ]
    for change in changes:
        model = network()
        outer = wc.OuterSteps(model, nesterov, wc.IntSGD(8), every=2)
        outer.step()
        outer.step()
        if rank == 1:
            change(outer, model)
        with pytest.raises(ValueError, match="engines' options and states") as error:
            outer.step()
            outer.step()
        texts.append(str(error.value))
    return texts


def test_workers_that_differ_all_raise_the_same_error(trio: Cluster) -> None:
    first, *others = trio.run(differ_in_worker)
    assert others == [first] * 2
    wanted = ["every (ranks 0, 2 have 2; rank 1 has 3)", "[12, 9] of float16", "seed (ranks 0, 2 have 0; rank 1 has 1)"]
    wanted += ["settings (", "tensor.6 (ranks 0, 2 have nothing; rank 1 has 'counts: [3] of float32')"]
    wanted += ["steps (", "parameters of the last outer step (", "parameter.0.0.weight (ranks 0, 2 have"]
    for text, part in zip(first, wanted, strict=True):
        assert part in text, text


def sharded_in_worker(rank: int, size: int) -> None:
    model = nn.Linear(4, 3)
    model.weight = nn.Parameter(
        distribute_tensor(model.weight.detach(), init_device_mesh(model.weight.device.type, (size,)))
    )
    with pytest.raises(ValueError, match=r"'weight' is sharded \(FSDP\)"):
        wc.OuterSteps(model, nesterov, wc.IntSGD(8), every=2)


def test_sharded_parameters_are_refused(trio: Cluster) -> None:
    trio.run(sharded_in_worker)


# Not finite


def not_finite_in_worker(rank: int, size: int, options: dict[str, Any]) -> str:
    worker = Worker(rank, network())
    outer = wc.OuterSteps(worker.model, nesterov, FOUR_BITS, **options)
    for step in range(9):
        worker.train(step)
        outer.step()
    before = copy.deepcopy((outer.parameters, outer.optimizer.state_dict(), outer.engine.state_dict()))
    if rank == 1:
        next(worker.model.parameters()).data[0, 0] = torch.inf
    with pytest.raises(FloatingPointError, match="not finite after inner step 12") as error:
        for _ in range(4):
            outer.step()
    after = outer.engine.state_dict()
    assert after.pop("step") == before[2].pop("step") + 1
    assert same_bits(tuple_of(outer.parameters, outer.optimizer.state_dict(), after), tuple_of(*before))
    outer.restore()
    assert all(map(torch.equal, worker.model.parameters(), outer.parameters.values()))
    worker.optimizer = AdamW(worker.model.parameters(), lr=0.02)
    for step in range(outer.steps, outer.steps + 4):
        worker.train(step)
        outer.step()
    assert all(parameter.isfinite().all() for parameter in worker.model.parameters())
    assert not same_bits(dict(outer.parameters), dict(before[0]))
    return str(error.value) + bits(outer.parameters.values()).hex()


def tuple_of(parameters: Any, optimizer: Any, engine: Any) -> tuple[Any, ...]:
    return dict(parameters), optimizer, str(engine)


@pytest.mark.parametrize("options", [{"every": 4}, {"every": 4, "delay": 1}], ids=["plain", "delay"])
def test_values_that_are_not_finite_at_one_worker_are_an_error_at_all(trio: Cluster, options: dict[str, Any]) -> None:
    found = trio.run(not_finite_in_worker, options)
    assert [text.count("at another worker") for text in found] == [1, 0, 1]
    assert all(text.startswith("0.0.weight have values that are not finite") for text in found)
    assert len({text.partition("worker:")[2] for text in found}) == 1


# A worker is lost, or joins


def goes_on_in_worker(rank: int, size: int, marks: str) -> bytes:
    """Rank 2 is lost while the others wait for a sum. They go on with a group of two."""
    worker = Worker(rank, network())
    outer = wc.OuterSteps(worker.model, nesterov, METHODS["8 bits"], every=4, delay=1)
    for step in range(10):
        worker.train(step)
        outer.step()
    last = bits(outer.parameters.values())
    Path(marks, str(rank)).touch()
    if rank == 2:
        threading.Event().wait()  # waits until the process is killed
    with pytest.raises(dist.DistBackendError, match="rank 2"):
        for _ in range(3):
            outer.step()
    assert bits(outer.parameters.values()) == last, "that is, as after the last outer step"
    dist.shrink_group([2])
    again = wc.OuterSteps(worker.model, nesterov, METHODS["8 bits"], every=4, delay=1)
    again.load_state_dict(outer.state_dict(), world_size_changed=True)
    again.synchronize()
    assert bits(again.parameters.values()) == bits(worker.model.parameters()) == last
    assert again.steps == outer.steps
    for step in range(again.steps, again.steps + 9):
        worker.train(step)
        again.step()
    return bits(again.parameters.values())


def test_after_a_loss_the_others_go_on_from_the_last_outer_step(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    with SwitchProcess(tmp_path) as switch, Cluster(switch, 3, tmp_path, prepare=prepare()) as cluster:
        cluster.start(goes_on_in_worker, str(marks))
        wait_until(lambda: len(list(marks.iterdir())) == 3, "all came to the loss")
        cluster.kill(2)
        one, other = cluster.collect(ranks=[0, 1])
    assert one == other


def joins_in_worker(rank: int, size: int) -> list[bytes]:
    """Ranks 1 and 2 train alone; then rank 0, which has no state, joins them."""
    pair = dist.new_group([1, 2])
    worker = Worker(rank, network(rank))
    options: dict[str, Any] = {"every": 3, "fragments": 2, "delay": 0}
    state = None
    if rank:
        outer = wc.OuterSteps(worker.model, nesterov, METHODS["8 bits"], group=pair, **options)
        for step in range(8):
            worker.train(step)
            outer.step()
        state = outer.state_dict()
    everyone = wc.OuterSteps(worker.model, nesterov, METHODS["8 bits"], **options)
    if state is not None:
        everyone.load_state_dict(state, world_size_changed=True)
        with pytest.raises(RuntimeError, match="synchronize"):
            everyone.state_dict()
    everyone.synchronize()
    assert everyone.steps == 8
    found = [bits(everyone.parameters.values()), bits(worker.model.parameters())]
    if state is not None:
        assert found[0] == bits(state["parameters"].values())
        assert same_bits(everyone.optimizer.state_dict(), state["optimizer"])
    for step in range(8, 14):
        worker.train(step)
        everyone.step()
    return [*found, bits(everyone.parameters.values())]


def test_a_worker_that_joins_takes_the_state_of_the_others(trio: Cluster) -> None:
    first, *others = trio.run(joins_in_worker)
    assert others == [first] * 2
    assert first[0] == first[1] != first[2]
