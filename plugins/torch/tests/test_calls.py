"""The error when workers call different collectives: it compares the logs of their calls."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from wiresum.torch import calls
from wiresum.torch.calls import Call, CallLog, kinds_of


def logs(store: Store, size: int) -> list[CallLog]:
    """Logs that wait for each other without a limit."""
    return [CallLog(store, rank, size, clock=lambda: 0.0) for rank in range(size)]


class Ended(NamedTuple):
    """An operation that has ended well."""

    number: int
    error: None = None

    def done(self) -> bool:
        return True


def note(worker: CallLog, call: Call) -> None:
    worker.note(Ended(call.number), *call[1:7])  # type: ignore[arg-type]


def a_sum(number: int, *tensors: torch.Tensor, root: int = -1) -> Call:
    return Call(number, "all_reduce", dist.ReduceOp.SUM, kinds_of(tensors), 1.0, root)


def ask(workers: list[CallLog], numbers: list[int | None]) -> list[str]:
    with ThreadPoolExecutor(len(workers)) as threads:
        return list(threads.map(lambda worker, number: worker.compare(number), workers, numbers))


def test_all_workers_report_the_same_call_though_they_notice_at_different_calls() -> None:
    workers = logs(dist.HashStore(), 3)
    for rank, worker in enumerate(workers):
        for number in range(5):
            note(worker, a_sum(number, torch.ones(number, rank + 1)))
    said = ask(workers, [3, 4, None])
    assert len(set(said)) == 1
    number = said[0].split()[2]
    assert number in ("3", "4")
    for rank in range(3):
        assert f"rank {rank} called all_reduce(SUM, float32[{number}, {rank + 1}])" in said[0]


def test_a_worker_that_is_behind_and_one_that_is_far_ahead() -> None:
    workers = logs(dist.HashStore(), 2)
    for number in range(calls.KEPT + 10):
        note(workers[0], Call(number, "barrier", None, [], 1.0))
    for said in ask(workers, [7, None]):
        assert f"rank 0 has called {calls.KEPT + 2} more since" in said
        assert "rank 1 called nothing" in said


def test_a_call_that_is_noted_late_was_called() -> None:
    """The data path knows of a call before its thread has noted it."""
    looks = itertools.chain([[]], itertools.repeat([a_sum(3, torch.ones(2))]))
    worker = CallLog(dist.HashStore(), 0, 1, more=looks.__next__)
    assert worker.compare(3) == "As number 3 rank 0 called all_reduce(SUM, float32[2])"


def test_calls_through_gloo_say_so() -> None:
    workers = logs(dist.HashStore(), 3)
    note(workers[0], a_sum(5, torch.ones(2)))
    note(workers[1], a_sum(5, torch.ones(2).double())._replace(through_gloo=True))
    said = ask(workers, [5, None, None])
    assert set(said) == {
        "As number 5 rank 0 called all_reduce(SUM, float32[2]), rank 1 called all_reduce(SUM, float64[2]), through "
        "Gloo, rank 2 called nothing"
    }


SPARSE = torch.sparse_coo_tensor(torch.tensor([[1, 3]]), torch.ones(2, 2), (4, 2))
MANY = [torch.ones(5)] * 9


@pytest.mark.parametrize(
    ("called", "said"),
    [
        (
            [a_sum(5, torch.ones(2), root=0), a_sum(5, torch.ones(2), root=1)],
            ["all_reduce(SUM, root 0, float32[2])", "all_reduce(SUM, root 1, float32[2])"],
        ),
        (
            [a_sum(5, torch.ones(4, 2)), a_sum(5, SPARSE)],
            ["all_reduce(SUM, float32[4, 2])", "all_reduce(SUM, float32[4, 2] sparse in 1 dimension)"],
        ),
        (
            [a_sum(5, *MANY, torch.ones(3)), a_sum(5, *MANY, torch.ones(4))],
            [
                "all_reduce(..., float32[5], float32[5], float32[5], float32[5], float32[3], ... 11 in all)",
                "all_reduce(..., float32[5], float32[5], float32[5], float32[5], float32[4], ... 11 in all)",
            ],
        ),
        (
            [a_sum(5, *MANY, torch.ones(3)), a_sum(5, torch.ones(4))],
            [
                "all_reduce(SUM, float32[5], float32[5], float32[5], float32[5], ... 11 in all)",
                "all_reduce(SUM, float32[4])",
            ],
        ),
    ],
    ids=["roots", "sparse", "many tensors", "many tensors and one"],
)
def test_the_comparison_shows_what_differs(called: list[Call], said: list[str]) -> None:
    workers = logs(dist.HashStore(), 2)
    for worker, call in zip(workers, called, strict=True):
        note(worker, call)
    expected = f"As number 5 rank 0 called {said[0]}, rank 1 called {said[1]}"
    assert ask(workers, [5, None]) == [expected, expected]


def test_settings_that_differ_are_part_of_sums() -> None:
    store = dist.HashStore()
    workers = [CallLog(store, rank, 2, settings=settings) for rank, settings in enumerate(([], ["fixed scale 0.5"]))]
    for worker in workers:
        note(worker, a_sum(5, torch.ones(2)))
    (said, _) = ask(workers, [5, 5])
    assert said.endswith(
        "rank 0 called all_reduce(SUM, float32[2]), rank 1 called all_reduce(SUM, fixed scale 0.5, float32[2])"
    )


def test_without_any_logged_call_the_comparison_is_empty() -> None:
    clock = itertools.count().__next__  # a second for each look
    assert CallLog(dist.HashStore(), 0, 2, clock=clock).compare(None) == ""


def test_a_store_that_is_gone_gives_an_empty_comparison() -> None:
    server = dist.TCPStore("127.0.0.1", 0, world_size=2, is_master=True, wait_for_workers=False)
    worker = CallLog(dist.TCPStore("127.0.0.1", server.port, world_size=2, wait_for_workers=False), 1, 2)
    note(worker, Call(0, "barrier", None, [], 1.0))
    del server
    assert worker.compare(0) == ""
