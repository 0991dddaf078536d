"""`reconfigure`: the members of a group change while it stays the same group.

PyTorch has it from 2.14 on. With an older one, the tests call what PyTorch would call, and put a group around it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, HashStore
from torch.nn.parallel import DistributedDataParallel

import wiresum.torch
from wiresum.agent.errors import JobAbortedError, WorkerLostError
from wiresum.torch import creation, extension
from wiresum.torch.contact import Contact, Handle
from wiresum.torch.gloo import group_of
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import unused_port, wait_until
from wiresum_lab.ranks.cluster import MARKS_TIMEOUT_S, Cluster, await_marks, runs_in
from wiresum_lab.ranks.cluster_worker import implementation, world

HAS_RECONFIGURE = hasattr(dist.ProcessGroup, "reconfigure")
SHORT = timedelta(seconds=2)
"""For those that wait in vain."""
MakeCluster = Callable[..., Cluster]

pytestmark = pytest.mark.usefixtures("compiled")
needs_reconfigure = pytest.mark.skipif(
    not HAS_RECONFIGURE, reason=f"PyTorch {torch.__version__} has no reconfigure, so its own calls are not tested"
)


class Options(NamedTuple):
    """PyTorch's ReconfigureOptions."""

    uuid: int
    handles: list[str] | set[str]
    timeout: timedelta | None = None


def handle_of(group: Any) -> str:
    return str(group.get_reconfigure_handle() if HAS_RECONFIGURE else implementation(group).spec.handle)


def reconfigure(
    group: Any, uuid: int, handles: list[str] | set[str], timeout: timedelta = timedelta(seconds=PATIENCE_S - 1)
) -> Any:
    """The group with its new members: another one if PyTorch has no reconfigure."""
    if HAS_RECONFIGURE:
        dist._reconfigure(uuid, handles, group, timeout).wait()  # type: ignore[attr-defined]
        return group
    before = implementation(group)
    made = before.spec.reconfigured(Options(uuid, handles, timeout), before)
    native: Any = extension.load()
    backend = native.PythonBackend(made, made.rank, made.size)
    return group_of(backend, dist.ProcessGroup.BackendType.CUSTOM, made.spec.store, made.rank, made.size)


def handles_of(folder: Path, group: Any, me: str, members: Sequence[str]) -> list[str]:
    """The members' handles, in this order."""
    folder.mkdir(exist_ok=True)
    unfinished = folder.parent / f"{folder.name}-{me}"
    unfinished.write_text(handle_of(group))
    unfinished.rename(folder / me)
    wait_until(lambda: {*members} <= {path.name for path in folder.iterdir()}, "all have handles", MARKS_TIMEOUT_S)
    return [(folder / member).read_text() for member in members]


def change(folder: str, uuid: int, group: Any, rank: int, members: Sequence[int]) -> Any:
    handles = handles_of(Path(folder, str(uuid)), group, str(rank), [str(member) for member in members])
    return reconfigure(group, uuid, handles)


def sum_of(group: Any, value: float, dtype: torch.dtype = torch.float32) -> float:
    """Not by `dist.all_reduce`, which must know the group to report an error."""
    tensor, opts = torch.full((20_000,), value, dtype=dtype), AllreduceOptions()
    opts.asyncOp = False
    group.allreduce([tensor], opts).wait()
    assert len(tensor.unique()) == 1
    return float(tensor[0])


@runs_in("new_trio")
def test_members_leave_come_back_and_change_their_order(rank: int, size: int, marks: Path) -> None:
    group, jobs = world(), {wiresum.torch.stats().job}
    for uuid, members in enumerate(([2, 0, 1], [1, 2], [1, 0, 2])):
        if rank not in members:
            continue
        group = change(str(marks), uuid, group, rank, members)
        assert (group.rank(), group.size()) == (members.index(rank), len(members))
        expected = sum(4.0**member for member in members)
        assert sum_of(group, 4.0**rank) == sum_of(group, 4.0**rank, torch.float64) == expected
        stats = wiresum.torch.stats(group)
        assert stats.collectives_network["all_reduce"] and stats.collectives_gloo["all_reduce"]
        jobs.add(stats.job)
        backend = implementation(group)
        assert backend.timeout.total_seconds() == PATIENCE_S, "that of the group, not of a reconfiguration"
        assert backend.network is not None
        number = backend.rank
        assert backend.network.name == f"rank {number}" + (f", global rank {rank}" if number != rank else "")
    assert len(jobs) == (3 if rank == 0 else 4)


@needs_reconfigure
@runs_in("new_trio")
def test_a_set_of_handles_has_the_same_order_everywhere(rank: int, size: int, marks: Path) -> None:
    handles = handles_of(marks / "all", world(), str(rank), [str(member) for member in range(size)])
    group = reconfigure(world(), 1, set(handles))
    assert dist.get_rank() == rank and sum_of(group, 1.0) == 3.0


@needs_reconfigure
@runs_in("new_trio")
def test_the_same_ddp_goes_on_with_fewer(rank: int, size: int, marks: Path) -> None:
    model = DistributedDataParallel(torch.nn.Linear(100, 10))
    for uuid, members in enumerate(([0, 1, 2], [2, 0])):
        if rank not in members:
            return
        change(str(marks), uuid, world(), rank, members)
        model.zero_grad()
        model(torch.full((1, 100), float(rank))).sum().backward()
        assert torch.all(model.module.weight.grad == sum(members) / len(members))


def goes_on_with_a_new_one(rank: int, size: int, folder: str) -> tuple[float, int]:
    """Rank 0 is killed, at whose store the members have met, and one that is started later comes in its place."""
    group = change(folder, 1, world(), rank, [0, 1, 2])
    Path(folder, f"ready-{rank}").touch()
    if rank == 0:
        threading.Event().wait()  # until it is killed
    with pytest.raises(dist.DistBackendError) as caught:
        sum_of(group, 1.0)
    cause = caught.value.__cause__
    assert isinstance(cause, WorkerLostError), repr(caught.value)
    group = reconfigure(group, 2, handles_of(Path(folder, "2"), group, str(rank), ["new", "1", "2"]))
    return sum_of(group, 4.0**rank), cause.rank


def comes_later(rank: int, size: int, folder: str) -> float:
    """A program of its own, with a store of its own."""
    dist.init_process_group("wiresum", store=HashStore(), rank=0, world_size=1)
    return sum_of(reconfigure(world(), 2, handles_of(Path(folder, "2"), world(), "new", ["new", "1", "2"])), 1.0)


def test_a_new_worker_takes_the_place_of_one_that_was_killed(make_cluster: MakeCluster, marks: Path) -> None:
    cluster, later = make_cluster(3), make_cluster(1, grouped=False)
    cluster.start(goes_on_with_a_new_one, str(marks))
    wait_until(lambda: len(list(marks.glob("ready-*"))) == 3, "all three are members", MARKS_TIMEOUT_S)
    cluster.kill(0)
    later.start(comes_later, str(marks))
    assert cluster.collect(ranks=[1, 2]) == [(21.0, 0)] * 2
    assert later.collect() == [21.0]


@runs_in("quartet")
def test_two_groups_may_be_made_at_once_with_the_same_uuid(rank: int, size: int, marks: Path) -> None:
    whole = dist.new_group(range(size))
    members = [0, 2] if rank % 2 == 0 else [3, 1]
    handles = handles_of(marks / "all", whole, str(rank), [str(member) for member in range(size)])
    pair = reconfigure(whole, 7, [handles[member] for member in members])
    assert sum_of(pair, 4.0**rank) == sum(4.0**member for member in members)
    assert pair.rank() == members.index(rank)
    dist.barrier()


@runs_in("new_trio")
def test_an_aborted_collective_is_no_hindrance(rank: int, size: int, marks: Path) -> None:
    """Rank 1 aborts while the others wait for its part."""
    handles = handles_of(marks / "1", world(), str(rank), [str(member) for member in range(size)])
    if rank == 1:
        implementation().abort()
    else:
        with pytest.raises(dist.DistBackendError) as caught:
            sum_of(world(), 1.0)
        assert isinstance(caught.value.__cause__, JobAbortedError), repr(caught.value)
    assert sum_of(reconfigure(world(), 1, handles), 1.0) == 3.0


GOOD = "wiresum:1:0123456789abcdef:10.0.0.1:4711"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gloo:0:-1:0:",
        GOOD[:-5],
        GOOD + "\n",
        GOOD.replace(":1:", ":-1:"),
        GOOD.replace(":1:", ":٣:"),
        GOOD.replace("4711", "65536"),
        GOOD.replace("4711", "9" * 5000),
        GOOD.replace("10.0.0.1", "host/../x"),
        GOOD.replace("10.0.0.1", "h" * 300),
        GOOD.replace("0123", "01\0003"),
        GOOD.replace("a", "A"),
        "\x00" * 1_000_000,
    ],
)
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no handle of the wiresum backend: ") as caught:
        Handle.parse(text)
    assert len(str(caught.value)) < 400
    assert str(Handle.parse(GOOD)) == GOOD


@runs_in("new_trio")
def test_a_group_stays_as_it_is_if_it_is_given_what_cannot_be(rank: int, size: int) -> None:
    own = handle_of(world())
    assert handle_of(world()) == own
    wrong: list[tuple[list[Any] | set[Any], type[Exception], str]] = [
        ([], ValueError, "handle of this member is not among"),
        ([GOOD], ValueError, "handle of this member is not among"),
        ([own, own], ValueError, "given twice"),
        ([own, own[:-1] + "x"], ValueError, "no handle of the wiresum backend"),
    ]
    if HAS_RECONFIGURE:
        wrong.append(([own, b"\xff\xfe"], ValueError, "can't decode"))
    for handles, error, text in wrong:
        with pytest.raises(error, match=text):
            reconfigure(world(), 1, handles)
    assert sum_of(world(), 1.0) == 3.0
    alone = reconfigure(world(), 1, {own})
    assert alone.size() == 1 and sum_of(alone, 5.0) == 5.0
    with pytest.raises(RuntimeError, match="uuid 1 was already used"):
        reconfigure(alone, 1, [own])
    assert sum_of(reconfigure(alone, 2, [own]), 5.0) == 5.0


@runs_in("new_trio")
def test_those_that_do_not_come_are_named_in_time(rank: int, size: int, marks: Path) -> None:
    """Rank 2 does not go on. The others try it with it, and, after they waited in vain, without it."""
    handles = handles_of(marks / "1", world(), str(rank), [str(member) for member in range(size)])
    if rank == 2:
        await_marks(marks, 3)
        return
    expected = r"rank 0 waited 2 s for rank(s 1,)? 2 to make" if rank == 0 else "for rank 0 to make|2 of 3 did not come"
    with pytest.raises(wiresum.torch.WiresumTimeoutError, match=expected):
        reconfigure(world(), 1, handles, SHORT)
    with pytest.raises(dist.DistBackendError):
        sum_of(world(), 1.0)
    (marks / f"late-{rank}").touch()
    assert sum_of(reconfigure(world(), 2, handles[:2]), 1.0) == 2.0


@runs_in("new_pair")
def test_a_store_that_does_not_answer_is_named(rank: int, size: int) -> None:
    mine = Handle.parse(handle_of(world()))
    gone = mine._replace(name="0" * 16, port=unused_port())
    text = re.escape(f"rank 1 cannot meet those that go on: the store of the new rank 0, {gone.host}:{gone.port}, does")
    with pytest.raises(dist.DistNetworkError, match=text):
        reconfigure(world(), 1, [str(gone), str(mine)], SHORT)


@runs_in("new_pair")
def test_one_thread_at_a_time_may_reconfigure(rank: int, size: int) -> None:
    contact = implementation().spec.contact
    with (
        contact.reconfiguring(Options(1, [handle_of(world())])),
        pytest.raises(RuntimeError, match="another thread is reconfiguring"),
    ):
        reconfigure(world(), 2, [handle_of(world())])
    assert sum_of(world(), 1.0) == 2.0


@runs_in("new_pair")
def test_a_forked_child_has_no_handle(rank: int, size: int) -> None:
    assert handle_of(world())
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            said = handle_of(world())
        except RuntimeError as error:
            said = str(error)
        os.write(writing, json.dumps(said).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert "is none itself" in json.loads(os.read(reading, 4096))


@needs_reconfigure
@runs_in("make_cluster", 2, grouped=False)
def test_a_group_that_waits_for_its_members_refuses_collectives(rank: int, size: int, marks: Path) -> None:
    """Each with a store of its own, and so rank 0 of its program."""
    dist.init_process_group(
        "wiresum", store=HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=PATIENCE_S),
        enable_reconfigure=True,
    )  # fmt: skip
    group = world()
    assert dist._supports_reconfigure()  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match=r"allreduce: .* no members before reconfigure\(\)"):
        sum_of(group, 1.0)
    with pytest.raises(ValueError, match="statistics are for"):
        wiresum.torch.stats()
    group.abort()
    group.set_timeout(timedelta(seconds=PATIENCE_S / 2))
    handles = handles_of(marks / "1", group, str(rank), ["1", "0"])
    reconfigure(group, 1, handles)
    assert dist.get_rank() == 1 - rank and sum_of(group, 4.0**rank) == 5.0
    backend = implementation()
    assert backend.timeout.total_seconds() == PATIENCE_S / 2
    assert backend.network is not None and backend.network.name == f"rank {1 - rank}", "all were rank 0 of a program"
    assert group._get_backend(torch.device("cpu")).get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS


@needs_reconfigure
@runs_in("new_pair")
def test_works_outlive_their_members(rank: int, size: int) -> None:
    """What the old group has not ended fails, and what it has ended can still be asked."""
    tensor, other = torch.full((1000,), 2.0), torch.ones(1000)
    ended = dist.all_reduce(tensor, async_op=True)
    ended.wait()
    pending = dist.all_reduce(other, async_op=True) if rank == 0 else None
    reconfigure(world(), 1, [handle_of(world())])
    assert ended.is_success() and torch.all(tensor == 4.0) and torch.all(ended.result()[0] == 4.0)
    if pending is not None:
        with pytest.raises(dist.DistBackendError, match=r"left|closed"):
            pending.wait()
    assert sum_of(world(), 3.0) == 3.0


@needs_reconfigure
@runs_in("make_cluster", 1, grouped=False, variables={"CXX": "/no-compiler", "TORCH_EXTENSIONS_DIR": "/no-compiler"})
def test_without_its_cpp_part_a_group_says_what_reconfiguring_needs(rank: int, size: int) -> None:
    for enabled in (True, False):
        with pytest.raises(TypeError, match=r"needs the C\+\+ part .* wiresum.torch.extension"):
            dist.init_process_group("wiresum", store=HashStore(), rank=0, world_size=1, enable_reconfigure=enabled)
            assert not dist._supports_reconfigure()  # type: ignore[attr-defined]
            dist._get_reconfigure_handle()  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"needs the C\+\+ part"):
        dist._reconfigure(1, [GOOD])  # type: ignore[attr-defined]


def reconfigures_while_another_dies(rank: int, size: int, folder: str) -> tuple[str, int]:
    handles = handles_of(Path(folder, "1"), world(), str(rank), [str(member) for member in range(size)])
    if rank == 1:

        def die(*_: object) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

        creation.make_gloo = die
    make = creation.make_gloo
    creation.make_gloo = lambda store, rank, size, _, *more: make(store, rank, size, timedelta(seconds=1), *more)
    with pytest.raises(dist.DistBackendError) as caught:
        reconfigure(world(), 1, handles)
    cause = caught.value.__cause__
    assert isinstance(cause, WorkerLostError), repr(caught.value)
    group = reconfigure(world(), 2, [handles[0], handles[2]])
    assert sum_of(group, 4.0**rank) == 17.0
    return str(caught.value), cause.rank


def test_a_worker_that_is_lost_while_members_change_is_named(
    hasty_service: str, make_cluster: MakeCluster, marks: Path
) -> None:
    cluster = make_cluster(3, variables={"WIRESUM_SWITCH": hasty_service})
    cluster.start(reconfigures_while_another_dies, str(marks))
    for text, lost in cluster.collect(ranks=[0, 2]):
        assert lost == 1 and "rank 1" in text


def test_a_set_of_handles_is_put_in_the_order_of_their_ranks() -> None:
    """The order of a set differs between programs, which a test of forked workers does not show."""
    contact = Contact(15, wiresum.torch.Options(address="127.0.0.2"))
    others = {GOOD.replace(":1:", f":{rank}:") for rank in range(30) if rank != 15}
    with contact.reconfiguring(SimpleNamespace(uuid=1, handles={*others, str(contact.handle)})) as members:
        assert [member.rank for member in members] == [*range(30)]


def test_a_contact_listens_only_where_the_data_path_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIRESUM_SWITCH", "127.0.0.1:1")
    contact = Contact(3, wiresum.torch.Options(address="127.0.0.2"))
    handle = contact.handle
    assert (handle.rank, handle.host) == (3, "127.0.0.2") and handle == contact.handle
    listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    assert re.findall(rf" ([0-9A-F]+):{handle.port:04X} [0-9A-F]+:0000 0A ", listening) == ["0200007F"]
