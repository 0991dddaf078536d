"""Gloo's failures are classified by the operation and by how long it took, not by the words of Gloo's message."""

from __future__ import annotations

import datetime
import time
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroupGloo

from wiresum.torch import WiresumTimeoutError
from wiresum.torch import gloo as gloo_module
from wiresum.torch.calls import Call
from wiresum.torch.gloo import Gloo, GlooCall, is_refused
from wiresum.torch.work import GlooWork

SUM, BAND = dist.ReduceOp.SUM, dist.ReduceOp.BAND


def call(operator: object = SUM, dtype: torch.dtype = torch.float64) -> GlooCall:
    return GlooCall(Call(0, "a test", operator, [(dtype, [1], 0)], 5.0))


class FailedWork(dist.Work):
    """A Gloo work that has already failed with this message."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        raise RuntimeError(self._words)

    def is_completed(self) -> bool:
        return True


@pytest.fixture
def gloo() -> Gloo:
    """Gloo with one worker, without a network."""
    store = dist.HashStore()
    options = ProcessGroupGloo._Options()
    device = ProcessGroupGloo.create_device(hostname="127.0.0.1")
    options._devices = [device]
    return Gloo(ProcessGroupGloo(store, 0, 1, options), device, store, 0, 1)


@pytest.mark.parametrize(
    ("operator", "dtype", "refused"),
    [
        (SUM, torch.float64, False),
        (SUM, torch.int64, False),
        (None, torch.uint8, False),
        (SUM, torch.int16, True),
        (None, torch.quint8, True),
        (BAND, torch.int32, False),
        (BAND, torch.float32, True),
        (dist.ReduceOp.MAX, torch.float32, False),
    ],
    ids=str,
)
def test_is_refused_agrees_with_gloo(operator: object, dtype: torch.dtype, refused: bool) -> None:
    assert is_refused(call(operator, dtype)) is refused


def test_that_gloo_refuses_a_call_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make(*arguments: Any) -> ProcessGroupGloo:
        made.append(arguments)
        return ProcessGroupGloo(*arguments)

    make._Options, make.create_device = ProcessGroupGloo._Options, ProcessGroupGloo.create_device  # type: ignore[attr-defined]
    monkeypatch.setattr(gloo_module, "ProcessGroupGloo", make)
    gloo_module._refuses.cache_clear()
    for _ in range(3):
        assert is_refused(call(dist.ReduceOp.MAX, torch.int16))
    assert len(made) == 1
    assert not is_refused(call(dist.ReduceOp.MAX, torch.int32))
    assert len(made) == 2


def test_a_failure_under_way_ends_the_group(gloo: Gloo) -> None:
    error = gloo._explain(call(), RuntimeError("words that nobody has foreseen"), None)
    assert type(error) is dist.DistBackendError and "nobody has foreseen" in str(error)
    with pytest.raises(dist.DistBackendError, match="nobody has foreseen"):
        gloo.require_connected()


@pytest.mark.parametrize(
    ("began_s_ago", "timeout_s", "waits_with_a_limit", "is_over"),
    [(5.1, 5.0, False, True), (4.0, 5.0, False, False), (None, 5.0, False, False), (None, 5.0, True, True)],
)
def test_a_failure_after_the_timeout_is_a_timeout_whatever_gloo_says(
    gloo: Gloo, began_s_ago: float | None, timeout_s: float, waits_with_a_limit: bool, is_over: bool
) -> None:
    work = GlooWork(
        FailedWork("connection closed" if is_over else "timed out"),
        [],
        finish=[],
        explain=partial(gloo._explain, call()),
        late=partial(gloo._late, call()),
        confirm=partial(gloo._confirm, call()),
        timeout_s=timeout_s,
        began=None if began_s_ago is None else time.monotonic() - began_s_ago,
        forget=lambda _: None,
    )
    with pytest.raises(dist.DistBackendError) as caught:
        work.wait(datetime.timedelta(microseconds=1) if waits_with_a_limit else datetime.timedelta(0))
    assert isinstance(caught.value, WiresumTimeoutError) == is_over
    with pytest.raises(type(caught.value)):
        gloo.require_connected()


def test_a_refused_operation_leaves_the_group_usable(gloo: Gloo) -> None:
    error = gloo._explain(call(dtype=torch.int16), RuntimeError("connection timed out"), None)
    assert type(error) is dist.DistBackendError
    gloo.require_connected()


def test_messages_of_any_type_are_accepted(gloo: Gloo) -> None:
    assert not is_refused(gloo._call("recv", "recv", ([torch.ones(2, dtype=torch.int16)], 0, 7), None))
