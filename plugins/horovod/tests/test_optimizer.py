"""DistributedOptimizer, and the broadcasts that give all ranks the same initial state."""

from __future__ import annotations

import contextlib
import functools
import warnings
from typing import Any

import pytest
import torch

import wiresum.horovod.torch as hvd
from wiresum_lab.ranks.cluster import runs_in

STEPS = 4
ROWS = 12


def network(seed: int) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def batches(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [
        (torch.randn(ROWS, 6, generator=generator), torch.randn(ROWS, 3, generator=generator)) for _ in range(steps)
    ]


def alone(passes: int = 1) -> list[torch.Tensor]:
    """The parameters after one process has trained on all rows."""
    model = network(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step, (rows, targets) in enumerate(batches(STEPS * passes)):
        (torch.nn.functional.mse_loss(model(rows), targets)).backward()
        if (step + 1) % passes == 0:
            optimizer.step()
            optimizer.zero_grad()
    return list(model.parameters())


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({}, 1e-5),
        ({"groups": 2}, 1e-5),
        ({"groups": "lists"}, 1e-5),
        ({"backward_passes_per_step": 2}, 1e-5),
        ({"gradient_predivide_factor": 3.0}, 1e-5),
        ({"fp16": True}, 1e-2),
    ],
    ids=str,
)
@runs_in("trio")
def test_ranks_train_as_one_process_on_all_rows(
    rank: int, size: int, options: dict[str, Any], tolerance: float
) -> None:
    model = network(rank)  # different initial parameters at each rank
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 if rank == 0 else 9.0, momentum=0.9)
    if "groups" in options and options["groups"] == "lists":
        options = {**options, "groups": [[model[0].weight, model[2].weight]]}
    if compression := options.pop("fp16", False):
        options["compression"] = hvd.Compression.fp16
    passes = options.get("backward_passes_per_step", 1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for step, (rows, targets) in enumerate(batches(STEPS * passes)):
        torch.nn.functional.mse_loss(model(rows[rank::size]), targets[rank::size]).backward()
        if (step + 1) % passes == 0:
            optimizer.step()
            optimizer.zero_grad()
    for parameter, expected in zip(model.parameters(), alone(passes), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=tolerance, atol=tolerance)
        everybody = hvd.allgather_object(parameter.detach())
        assert all(torch.equal(other, parameter) for other in everybody)
    assert compression or hvd.stats().collectives_network["all_reduce_coalesced"]


def steps_with_closures(kind: str, skips: bool, first: int, stride: int) -> list[torch.Tensor]:
    """The parameters, and the losses that steps have returned. With a stride of 1, one process trains on all rows."""
    model = network(0).double()
    line_search = {"line_search_fn": "strong_wolfe"} if kind == "LBFGS" else {}
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **line_search)
    if stride > 1:
        hvd.DistributedOptimizer(optimizer, model.named_parameters())

    def closure(rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | float:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(rows[first::stride].double()), targets[first::stride].double())
        loss.backward()
        if skips:
            optimizer.synchronize()
        return loss if kind == "LBFGS" else loss.item()

    losses = []
    for number, batch in enumerate(batches(2)):
        call = functools.partial(closure, *batch)
        with optimizer.skip_synchronize() if skips else contextlib.nullcontext():
            losses.append(torch.tensor(float(optimizer.step(closure=call) if number else optimizer.step(call))))
    return [*model.parameters(), *losses]


def test_an_optimizer_that_is_made_before_init_is_refused() -> None:
    with pytest.raises(ValueError, match=r"use hvd\.init\(\)"):
        hvd.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1))


@pytest.mark.parametrize("kind", ["SGD", "LBFGS"])
@pytest.mark.parametrize("skips", [False, True])
@runs_in("trio")
def test_a_step_with_a_closure_has_reduced_gradients_and_losses(rank: int, size: int, kind: str, skips: bool) -> None:
    """L-BFGS calls the closure as often as the losses say. With `skips`, the closure also synchronizes."""
    mine, alone = steps_with_closures(kind, skips, rank, size), steps_with_closures(kind, False, 0, 1)
    for found, expected in zip(mine, alone, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@runs_in("trio")
def test_a_closure_whose_gradients_are_not_reduced_is_refused(rank: int, size: int) -> None:
    weights = torch.nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weights], lr=1.0), [("weights", weights)])
    with (
        pytest.raises(AssertionError, match=r"did not call optimizer\.synchronize\(\)"),
        optimizer.skip_synchronize(),  # type: ignore[attr-defined]
    ):
        optimizer.step(lambda: (weights * rank).sum().backward())
    optimizer.synchronize()  # type: ignore[attr-defined]
    assert weights.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("made", ["before", "after", "before and after"])
@runs_in("trio")
def test_a_scheduler_may_be_made_before_the_optimizer_is_distributed(rank: int, size: int, made: str) -> None:
    """A state may also be loaded in between."""
    trained = []
    for ranks in (range(size), range(rank, rank + 1)):  # one process on all rows, and this rank on its own
        model = network(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        decay = [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) for _ in range(made != "after")]
        if len(ranks) == 1:
            distributed = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            assert distributed is optimizer and type(optimizer).__name__ == "SGD"
        decay += [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) for _ in range(made != "before")]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for step, (rows, targets) in enumerate(batches(6)):
                parts = [torch.nn.functional.mse_loss(model(rows[r::size]), targets[r::size]) for r in ranks]
                torch.stack(parts).mean().backward()
                optimizer.step()
                for scheduler in decay:
                    scheduler.step()
                optimizer.zero_grad()
                if step == 2:
                    optimizer.load_state_dict(optimizer.state_dict())
        trained.append((*model.parameters(), torch.tensor(optimizer.param_groups[0]["lr"])))
    for expected, found in zip(*trained, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@runs_in("trio")
def test_step_hooks_and_what_users_put_around_methods_see_each_step_once(rank: int, size: int) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    seen: list[Any] = []
    optimizer.register_step_pre_hook(lambda optimizer, *_: seen.append(model.weight.grad.tolist()))
    optimizer.register_step_post_hook(lambda optimizer, *_: seen.append(model.weight.tolist()))
    step, zero_grad = optimizer.step, optimizer.zero_grad
    optimizer.step = lambda *arguments: (seen.append("step"), step(*arguments))  # type: ignore[method-assign]
    optimizer.zero_grad = lambda: (seen.append("zero"), zero_grad())  # type: ignore[method-assign]
    hvd.DistributedOptimizer(optimizer, model.named_parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for turn in range(2):
        scaler.scale(model(torch.full((1, 2), float(rank))).sum()).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert seen == ["step", [[1.0, 1.0]], [[-1.0 - turn] * 2], "zero"]
        seen.clear()
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # other ranks load a state


@runs_in("trio")
def test_parameters_that_are_added_later_are_reduced(rank: int, size: int) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    optimizer = torch.optim.SGD(parameters[:1], lr=1.0)
    groups = optimizer.param_groups
    hvd.DistributedOptimizer(optimizer, [("first", parameters[0])])
    optimizer.add_param_group({"params": parameters[1:], "lr": 2.0})
    assert optimizer.param_groups is groups
    for _ in range(2):
        sum(parameter.sum() * rank for parameter in parameters).backward()  # type: ignore[union-attr]
        optimizer.step()
        optimizer.zero_grad()
    assert [parameter.tolist() for parameter in parameters] == [[-2.0] * 2, [-4.0] * 2, [-4.0] * 2]
    parameters[1].sum().backward()
    with pytest.raises(AssertionError, match=r"before optimizer\.step"):  # the gradient's reduction has begun
        optimizer.zero_grad()
    optimizer.step()


@pytest.mark.parametrize("named", [True, False])
@runs_in("trio")
def test_parameters_that_are_unfrozen_or_slipped_in_later_are_reduced(rank: int, size: int, named: bool) -> None:
    """Ranks once had different parameters from then on, without an error."""
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    parameters[1].requires_grad_(False)
    optimizer = torch.optim.SGD(parameters[:2], lr=1.0)
    hvd.DistributedOptimizer(optimizer, [("a", parameters[0]), ("b", parameters[1])] if named else None)
    for turn in range(3):
        if turn == 1:
            parameters[1].requires_grad_(True)
            optimizer.param_groups[0]["params"].append(parameters[2])
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        sum(parameter.sum() * rank for parameter in trained).backward()  # type: ignore[union-attr]
        optimizer.step()
        optimizer.zero_grad()
        if turn == 0:
            parameters[2].grad = None
    assert [parameter.tolist() for parameter in parameters] == [[-3.0] * 2, [-2.0] * 2, [-2.0] * 2]


@runs_in("trio")
def test_an_optimizer_that_is_distributed_again_has_the_new_arguments(rank: int, size: int) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for op in (hvd.Average, hvd.Sum):
        hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=op)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert model.weight.tolist() == [[-4.0, -4.0]]


@runs_in("trio")
def test_arguments_that_differ_are_refused_at_all_ranks(rank: int, size: int) -> None:
    model = torch.nn.Linear(2, 1)
    other = torch.nn.Linear(2, 2)
    last = rank == size - 1
    operator, name = (hvd.Sum, "b") if last else (hvd.Average, "a")
    for options, text in (
        ({"op": operator}, r"op \(ranks 0, 1 have 'Average'; rank 2 has 'Sum'\)"),
        ({"backward_passes_per_step": 1 + last}, r"backward_passes_per_step \(ranks 0, 1 have 1; rank 2 has 2\)"),
        ({"compression": hvd.Compression.fp16 if last else hvd.Compression.none}, "compression"),
        ({"groups": [[model.weight, model.bias]] if last else None}, "groups"),
        ({"sparse_as_dense": last}, "sparse_as_dense"),
        ({"gradient_predivide_factor": 1.0 + last}, "gradient_predivide_factor"),
        ({"named_parameters": [(name, model.weight), ("c", model.bias)]}, r"parameter\.a .*parameter\.b"),
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ValueError, match=f"DistributedOptimizer must be the same .*, and differ: {text}"):
            hvd.DistributedOptimizer(optimizer, **options)  # type: ignore[arg-type]
        assert type(optimizer) is torch.optim.SGD
    optimizer = torch.optim.SGD((other if last else model).parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"noname\.0\.0 \(ranks 0, 1 have '\[1, 2\] of torch.float32'; rank 2 has"):
        hvd.DistributedOptimizer(optimizer)
    with pytest.raises(ValueError, match=r"refused at rank 2, and so at all ranks\. rank 2 says: backward_passes"):
        hvd.DistributedOptimizer(optimizer, backward_passes_per_step=0 if last else 1)


@runs_in("trio")
def test_gradients_may_be_changed_between_synchronize_and_step(rank: int, size: int) -> None:
    model = network(0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    ((model(torch.ones(1, 6)) * (rank + 1)).sum()).backward()
    with pytest.raises(AssertionError, match="This is prohibited as it can cause a race condition"):
        optimizer.zero_grad()
    optimizer.synchronize()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    assert norm > 0.5
    with optimizer.skip_synchronize():
        optimizer.step()
    moved = torch.cat([(a - b).flatten() for a, b in zip(before, model.parameters(), strict=True)])
    torch.testing.assert_close(moved.norm(), torch.tensor(0.05), rtol=1e-3, atol=1e-6)
    optimizer.zero_grad()
    model(torch.ones(1, 6)).sum().backward()
    with pytest.raises(AssertionError, match="Increase backward_passes_per_step"):
        model(torch.ones(1, 6)).sum().backward()
    optimizer.step()


@runs_in("trio")
def test_ranks_may_use_different_branches_of_the_model(rank: int, size: int) -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2, bias=False), "b": torch.nn.Linear(2, 2, bias=False)})
    for parameter in model.parameters():
        torch.nn.init.ones_(parameter)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    model["a" if rank == 0 else "b"](torch.ones(1, 2)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(model["a"].weight, torch.full((2, 2), 1 - 1 / 3))
    torch.testing.assert_close(model["b"].weight, torch.full((2, 2), 1 - 2 / 3))


@pytest.mark.parametrize("as_dense", [False, True])
@runs_in("trio")
def test_sparse_gradients(rank: int, size: int, as_dense: bool) -> None:
    embedding = torch.nn.Embedding(50, 4, sparse=True)
    torch.nn.init.zeros_(embedding.weight)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, embedding.named_parameters(), sparse_as_dense=as_dense)
    for _ in range(2):
        embedding(torch.tensor([rank, 10, 10])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    expected = torch.zeros(50, 4)
    expected[:size], expected[10] = -2 / 3, -4.0
    torch.testing.assert_close(embedding.weight.detach(), expected)


@pytest.mark.parametrize("first", ["all", "some", "none"])
@runs_in("trio")
def test_a_rank_without_a_token_takes_part_in_a_sparse_step(rank: int, size: int, first: str) -> None:
    """`first`: the ranks that have tokens in the first step."""
    embedding = torch.nn.Embedding(50, 4, sparse=True)
    torch.nn.init.zeros_(embedding.weight)
    model = torch.nn.ModuleDict({"embedding": embedding, "linear": torch.nn.Linear(4, 1, bias=False)})
    torch.nn.init.ones_(model["linear"].weight)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=1.0)
    optimizer.add_param_group({"params": model["linear"].parameters(), "lr": 0.0})
    hvd.DistributedOptimizer(optimizer, model.named_parameters())
    counts = {"all": size, "some": 2, "none": 0}[first], 1, size
    for count in counts:
        rows = embedding(torch.tensor([10, rank])) if rank < count else torch.ones(1, 4)
        model["linear"](rows).sum().backward()
        optimizer.step()
        assert embedding.weight.grad is not None
        optimizer.zero_grad()
    expected = torch.zeros(50, 4)
    for count in counts:
        expected[10] -= count / size
        expected[:count] -= 1 / size
    torch.testing.assert_close(embedding.weight.detach(), expected)


@runs_in("trio")
def test_broadcasts_give_all_ranks_the_roots_state(rank: int, size: int) -> None:
    model = network(rank)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1))
    if rank == 0:  # the other ranks' optimizers have no state yet
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
    hvd.broadcast_parameters(dict(model.named_parameters()), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    moments = [state["exp_avg"] for state in optimizer.state.values()]
    assert len(moments) == 4
    assert all(torch.equal(mine, roots) for mine, roots in zip(moments, hvd.broadcast_object(moments), strict=True))
    with pytest.raises(ValueError, match="cannot broadcast"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), root_rank=0)


@runs_in("trio")
def test_synchronized_batch_norm_equals_that_of_the_whole_batch(rank: int, size: int) -> None:
    torch.manual_seed(3)
    everything = torch.randn(9, 4, 5) * 3 + 100
    whole, parts = torch.nn.BatchNorm1d(4), hvd.SyncBatchNorm(4)
    begin, end = [(0, 2), (2, 5), (5, 9)][rank]
    inputs = [everything.clone().requires_grad_(), everything[begin:end].clone().requires_grad_()]
    expected, mine = whole(inputs[0]), parts(inputs[1])
    torch.testing.assert_close(mine, expected[begin:end], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(parts.running_mean, whole.running_mean)
    torch.testing.assert_close(parts.running_var, whole.running_var, rtol=1e-3, atol=1e-3)
    (expected**3).sum().backward()
    (mine**3).sum().backward()
    assert inputs[0].grad is not None and inputs[1].grad is not None
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad[begin:end], rtol=1e-2, atol=1e-2)
    parts.eval(), whole.eval()
    torch.testing.assert_close(parts(everything), whole(everything), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@runs_in("trio")
def test_synchronized_batch_norm_takes_half_precision_as_batch_norm_does(
    rank: int, size: int, dtype: torch.dtype
) -> None:
    """bfloat16 as in autocast, with float32 buffers; and a whole model in float16, whose sums and row counts exceed
    that type."""
    torch.manual_seed(3)
    everything = (torch.randn(90_000, 2) + 5).to(dtype)
    whole, parts = torch.nn.BatchNorm1d(2), hvd.SyncBatchNorm(2)
    if dtype is torch.float16:
        whole.half(), parts.half()
    mine = everything[rank::size].clone().requires_grad_()
    expected, found = whole(everything)[rank::size], parts(mine)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(parts.running_mean, whole.running_mean)
    torch.testing.assert_close(parts.running_var, whole.running_var)
    found.sum().backward()
    assert mine.grad is not None and mine.grad.dtype is dtype and mine.grad.isfinite().all()


@runs_in("trio")
def test_invalid_options_are_refused(rank: int, size: int) -> None:
    model = network(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    named = list(model.named_parameters())
    for options, text in (
        ({"op": hvd.Adasum}, "Adasum is not supported"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "not supported with op != Average"),
        ({"backward_passes_per_step": 0}, "must be > 0"),
        ({"named_parameters": named + named}, "must be unique. Found duplicates: 0.bias"),
        ({"named_parameters": named[1:]}, "were not named: 1 of 4"),
        ({"named_parameters": model.parameters()}, "sequence of tuples"),
    ):
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(optimizer, **options)  # type: ignore[arg-type]
