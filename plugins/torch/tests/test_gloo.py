"""Gloo's failures are classified by its connections and by elapsed time, not by the words of its message."""

from __future__ import annotations

import datetime
import itertools
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroupGloo

from wiresum.torch import WiresumTimeoutError
from wiresum.torch.calls import Call
from wiresum.torch.gloo import Gloo, GlooCall
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
    return Gloo(ProcessGroupGloo(store, 0, 1, options), device, store, 0, 1, "rank 0")


@pytest.fixture
def broken(gloo: Gloo, monkeypatch: pytest.MonkeyPatch) -> Gloo:
    """A Gloo that has lost a connection."""
    monkeypatch.setattr(gloo, "_is_connected", lambda: False)
    return gloo


def test_a_failure_under_way_ends_the_group(broken: Gloo) -> None:
    error = broken._explain(call(), RuntimeError("words that nobody has foreseen"), None)
    assert type(error) is dist.DistBackendError and "nobody has foreseen" in str(error)
    with pytest.raises(dist.DistBackendError, match="nobody has foreseen"):
        broken.require_connected()


@pytest.mark.parametrize(
    ("began_s_ago", "timeout_s", "waits_with_a_limit", "is_over"),
    [(5.1, 5.0, False, True), (4.0, 5.0, False, False), (None, 5.0, False, False), (None, 5.0, True, True)],
)
def test_a_failure_after_the_timeout_is_a_timeout_whatever_gloo_says(
    broken: Gloo, began_s_ago: float | None, timeout_s: float, waits_with_a_limit: bool, is_over: bool
) -> None:
    gloo = broken
    clock = itertools.chain([100.0], itertools.repeat(100.5))  # at the start of the wait, and at its end
    work = GlooWork(
        FailedWork("connection closed" if is_over else "timed out"),
        [],
        finish=[],
        explain=partial(gloo._explain, call()),
        late=partial(gloo._late, call()),
        confirm=partial(gloo._confirm, call()),
        timeout_s=timeout_s,
        began=None if began_s_ago is None else 100.0 - began_s_ago,
        forget=lambda _: None,
        clock=clock.__next__,
    )
    with pytest.raises(dist.DistBackendError) as caught:
        work.wait(datetime.timedelta(microseconds=1) if waits_with_a_limit else datetime.timedelta(0))
    assert isinstance(caught.value, WiresumTimeoutError) == is_over
    with pytest.raises(type(caught.value)):
        gloo.require_connected()


def test_a_failure_with_all_connections_whole_leaves_the_group_usable(gloo: Gloo) -> None:
    error = gloo._explain(call(dtype=torch.int16), RuntimeError("connection timed out"), None)
    assert type(error) is dist.DistBackendError
    gloo.require_connected()


@pytest.mark.parametrize("name", ["broadcast", "monitored_barrier"])
def test_a_call_during_which_another_thread_destroys_the_group_raises_the_groups_error(
    gloo: Gloo, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    require = gloo._require

    def require_and_end(checked: GlooCall) -> None:
        require(checked)
        gloo.end()

    monkeypatch.setattr(gloo, "_require", require_and_end)
    with pytest.raises(dist.DistBackendError, match="rank 0 has left its process group"):
        if name == "broadcast":
            tensor = torch.zeros(1)
            gloo.run(name, name, [tensor], dist.BroadcastOptions(), written=[tensor])
        else:
            gloo.monitored_barrier(datetime.timedelta(seconds=1), False)
