"""A service answers only while no other one serves, and what a caller changes only once it is on disk."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from wiresum import join
from wiresum.controller import JoinServer
from wiresum.controller.controlling import VACANT_S
from wiresum.controller.jobs import outputs
from wiresum.controller.jobs.jobs import Jobs
from wiresum.controller.jobs.keys import Keys, KeySequence
from wiresum.controller.jobs.records import JobRecord
from wiresum.controller.service import effects as effects_module
from wiresum.controller.service.effects import SURE_S, Effects, Times
from wiresum.controller.service.join_server import LAG_KEPT_S
from wiresum.controller.store import Store, StoreError
from wiresum.join import JOIN_SERVICE
from wiresum_lab.clocks.by_hand import FrozenClock
from wiresum_lab.doubles.controller import Attendance, Client, RecordingDriver, switch
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

STOPPED_S = VACANT_S
TIMES = Times()


@pytest.fixture
def server(driver: RecordingDriver, store: Store, clock: FrozenClock) -> Iterator[JoinServer]:
    server = JoinServer(driver, store=store, clock=clock, times=Times(write_s_max=PATIENCE_S, write_retry_s=0.05))
    server.start(port=0)
    yield server
    server.stop(0.0)


@contextlib.contextmanager
def stopped(server: JoinServer, clock: FrozenClock, store: Store) -> Iterator[None]:
    """As by SIGSTOP. Meanwhile a standby has taken over."""
    assert server._loop is not None
    held, entered = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        held.wait()

    server._loop.call_soon_threadsafe(hold)
    assert entered.wait(PATIENCE_S)
    try:
        with contextlib.closing(Store(store.path.parent)) as newer:
            newer.begin()
        clock.now += STOPPED_S
        yield
    finally:
        held.set()


def soon(method: Any, request: Any) -> Any:
    """A call, as a future."""
    return method.future(request, timeout=PATIENCE_S)


def end(client: Client) -> Any:
    return soon(client.operator.EndJob, join.EndJobRequest(job_name="a-job", reason="no time"))


def create(client: Client) -> Any:
    return soon(client.operator.CreateJob, join.CreateJobRequest(job_name="another", world_size=2))


def drain(client: Client) -> Any:
    return soon(client.operator.Drain, join.DrainRequest())


CHANGES = [end, create, drain]


# What a caller changes.


def abort(client: Client, job: list[Attendance]) -> Any:
    return soon(client.stub.Abort, join.AbortRequest(member=job[0].member, reason="NaN"))


def leave_last(client: Client, job: list[Attendance]) -> Any:
    return soon(client.stub.Leave, join.LeaveRequest(member=job[1].member))


@pytest.mark.parametrize("change", [*CHANGES, abort, leave_last], ids=lambda change: change.__name__)
def test_a_change_is_answered_once_it_is_on_disk(
    client: Client, store: Store, job: list[Attendance], monkeypatch: pytest.MonkeyPatch, change: Callable[..., Any]
) -> None:
    answered = threading.Event()
    written: list[outputs.Write] = []
    early: list[bool] = []
    """Of the write of the change: was there an answer before?"""
    made = False
    write = store.write

    def slow_write(writes: Iterable[outputs.Write]) -> None:
        changes = [each for each in writes if not isinstance(each, outputs.CheckServing)]
        if made and changes and not early:
            client.report()  # an answer that waits for no disk comes before this one
            early.append(answered.is_set())
        write(changes)
        written.extend(changes)

    monkeypatch.setattr(store, "write", slow_write)
    if change is leave_last:
        client.stub.Leave(join.LeaveRequest(member=job[0].member), timeout=PATIENCE_S)
        wait_until(lambda: written, "that one has left is on disk")
    made = True
    call = change(client) if change in CHANGES else change(client, job)
    call.add_done_callback(lambda _: answered.set())
    call.result()
    assert early == [False]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_the_disk_does_not_take_is_an_error_that_says_so(
    client: Client, store: Store, job: list[Attendance], monkeypatch: pytest.MonkeyPatch, change: Callable[..., Any]
) -> None:
    write = store.write

    def refuse(_writes: object) -> None:
        raise StoreError("disk full")

    monkeypatch.setattr(store, "write", refuse)
    with pytest.raises(grpc.RpcError) as caught:
        change(client).result()
    assert caught.value.code() is grpc.StatusCode.INTERNAL, "after UNAVAILABLE another controller would be asked"
    assert "this is not on disk: disk full. It may yet be carried out" in caught.value.details()
    monkeypatch.setattr(store, "write", write)
    wait_until(lambda: not client.report().service.trouble, "the disk takes it")


def test_a_change_that_is_the_same_as_one_before_waits_for_that(
    client: Client, store: Store, job: list[Attendance], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To end a job that is being ended changes nothing more."""
    in_write, may_write = threading.Event(), threading.Event()
    write = store.write

    def hold(writes: Iterable[outputs.Write]) -> None:
        in_write.set()
        assert may_write.wait(PATIENCE_S)
        write(writes)

    monkeypatch.setattr(store, "write", hold)
    first = end(client)
    assert in_write.wait(PATIENCE_S)
    again = end(client)
    client.report()  # what was asked before it, and waits for no disk, is answered before it
    assert not (first.done() or again.done())
    may_write.set()
    assert (first.exception(), again.exception()) == (None, None)


def test_an_abort_that_the_disk_does_not_take_is_heard(
    client: Client, store: Store, job: list[Attendance], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other workers hear of it as well."""

    def refuse(_writes: object) -> None:
        raise StoreError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(store, "write", refuse)
        abort(client, job).result()
        assert job[1].wait_ended().reason


# Another controller serves.


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_at_a_service_that_does_not_serve_any_more_is_turned_away(
    client: Client, store: Store, job: list[Attendance], change: Callable[..., Any]
) -> None:
    """Without a stall: it is sure until the write shows it."""
    with contextlib.closing(Store(store.path.parent)) as newer:
        newer.begin()
    with pytest.raises(grpc.RpcError) as caught:
        change(client).result()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details().startswith(join.STANDS_BY)
    assert "another controller has begun to serve" in caught.value.details()
    assert job[0].ended is None


def test_a_service_that_was_stopped_says_nothing_until_it_knows_that_it_serves(
    server: JoinServer, client: Client, clock: FrozenClock, store: Store, job: list[Attendance]
) -> None:
    member = job[0].member
    calls: dict[str, Callable[[], Any]] = {
        "report": lambda: soon(client.operator.GetReport, join.GetReportRequest()),
        "ended": lambda: soon(client.operator.ListEnded, join.ListEndedRequest()),
        "no such job": lambda: soon(client.operator.EndJob, join.EndJobRequest(job_name="x")),
        "no such record": lambda: soon(client.operator.DiscardRecord, join.DiscardRecordRequest(job_name="x")),
        "no such member": lambda: soon(client.stub.Diagnose, join.Member(job=77)),
        "diagnose": lambda: soon(client.stub.Diagnose, member),
        "leave": lambda: soon(client.stub.Leave, join.LeaveRequest(member=member)),
        **{change.__name__: functools.partial(change, client) for change in CHANGES},
    }
    health = health_pb2_grpc.HealthStub(client.channel)
    with stopped(server, clock, store):
        asked = {what: call() for what, call in calls.items()}
        healthy = [soon(health.Check, health_pb2.HealthCheckRequest(service=of)) for of in ("", JOIN_SERVICE)]
        streams = [client.stub.Attend(iter([join.Heartbeat(member=join.Member(job=77))]), timeout=PATIENCE_S)]
        assert server.why_not_ready
    for what, call in asked.items():
        error = call.exception()
        assert error is not None, (what, call.result())
        assert (error.code(), error.details().startswith(join.STANDS_BY)) == (grpc.StatusCode.UNAVAILABLE, True), what
    assert [call.result().status for call in healthy] == 2 * [health_pb2.HealthCheckResponse.NOT_SERVING]
    for stream in streams:
        with pytest.raises(grpc.RpcError) as caught:
            list(stream)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, "it does not say that there is no such member"
    with pytest.raises(RuntimeError, match="another controller"):
        server.report()
    assert job[0].ended is None


def test_a_service_that_was_stopped_and_still_serves_answers(
    server: JoinServer, client: Client, clock: FrozenClock, job: list[Attendance]
) -> None:
    clock.now += STOPPED_S
    assert [found.name for found in client.jobs()] == ["a-job"]
    assert [found.name for found in server.report().jobs] == ["a-job"]
    clock.pass_at(server, LAG_KEPT_S)
    wait_until(lambda: not server.why_not_ready, "it is ready again")
    drain(client).result()


def test_a_service_that_nobody_asks_learns_that_another_one_serves(
    server: JoinServer, client: Client, store: Store
) -> None:
    with contextlib.closing(Store(store.path.parent)) as newer:
        newer.begin()
    wait_until(lambda: bool(server.deposed), "it ends")


# How it knows.


class Watched(Store):
    """A state that counts who looks at it."""

    looks = 0
    hangs = False

    def check_serving(self) -> None:
        self.looks += 1
        if self.hangs:
            raise StoreError("cannot use the state: disk I/O error. Look at its disk")
        super().check_serving()


def with_effects(
    folder: Path, check: Callable[[Effects, Watched, FrozenClock], Coroutine[Any, Any, None]], times: Times = TIMES
) -> None:
    async def run() -> None:
        clock = FrozenClock()
        jobs = Jobs([switch()], Keys(KeySequence.draw()))
        with contextlib.closing(Watched(folder)) as store:
            store.begin()
            with contextlib.closing(Effects(jobs, {}, store, clock, times)) as effects:
                await check(effects, store, clock)

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition, "it comes about")


def hang(until: threading.Event) -> None:
    until.wait(PATIENCE_S)


async def lives(effects: Effects) -> None:
    effects.show_life()
    await until(lambda: effects.is_sure)


def test_a_service_that_shows_life_answers_without_a_look(tmp_path: Path) -> None:
    async def check(effects: Effects, store: Watched, clock: FrozenClock) -> None:
        await lives(effects)
        looks = store.looks
        clock.now += SURE_S - 0.1
        for _ in range(100):
            assert await effects.why_silent() == ""
        assert store.looks == looks
        clock.now += 0.2
        assert await effects.why_silent() == ""
        clock.now += 0.1
        assert await effects.why_silent() == "", "without a sign of life it looks each time"
        assert store.looks == looks + 2

    with_effects(tmp_path, check)


def test_a_look_of_before_a_stall_says_nothing(tmp_path: Path) -> None:
    async def check(effects: Effects, store: Watched, clock: FrozenClock) -> None:
        looking, go_on = threading.Event(), threading.Event()
        look = store.check_serving

        def stopped_after_look() -> None:
            look()
            looking.set()
            go_on.wait(PATIENCE_S)

        store.check_serving = stopped_after_look  # type: ignore[method-assign]
        effects.show_life()
        await until(looking.is_set)
        with contextlib.closing(Store(tmp_path)) as newer:
            newer.begin()
        clock.now += STOPPED_S
        asked = asyncio.create_task(effects.why_silent())
        await asyncio.sleep(0)
        go_on.set()
        assert "another controller has begun" in await asked
        assert effects.deposed

    with_effects(tmp_path, check)


def test_a_service_that_cannot_look_says_so_within_a_bound(tmp_path: Path) -> None:
    async def check(effects: Effects, store: Watched, clock: FrozenClock) -> None:
        await lives(effects)
        store.hangs = True
        clock.now += STOPPED_S
        why = await effects.why_silent()
        assert f"whether another controller serves from {store.path} is not known" in why
        assert "disk I/O error" in why
        assert not effects.deposed
        store.hangs = False
        assert await effects.why_silent() == ""

    with_effects(tmp_path, check)


def test_a_look_that_hangs_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    async def check(effects: Effects, store: Watched, _clock: FrozenClock) -> None:
        go_on = threading.Event()
        store.check_serving = functools.partial(hang, go_on)  # type: ignore[method-assign]
        assert "is not known: it does not answer" in await asyncio.wait_for(effects.why_silent(), PATIENCE_S)
        go_on.set()

    with_effects(tmp_path, check, Times(write_s_max=0.2))


def test_a_write_that_hangs_keeps_no_service_from_knowing_that_it_serves(tmp_path: Path) -> None:
    async def check(effects: Effects, store: Watched, clock: FrozenClock) -> None:
        with contextlib.closing(Store(tmp_path)) as other, other._transaction():
            clock.now += STOPPED_S
            assert await effects.why_silent() == ""

    with_effects(tmp_path, check)


def test_a_service_whose_disk_hangs_learns_that_another_one_serves(tmp_path: Path) -> None:
    async def check(effects: Effects, store: Watched, _clock: FrozenClock) -> None:
        go_on = threading.Event()
        store.show_life = functools.partial(hang, go_on)  # type: ignore[method-assign]
        effects.show_life()
        with contextlib.closing(Store(tmp_path)) as newer:
            newer.begin()
        effects.show_life()
        await until(lambda: bool(effects.deposed))
        go_on.set()

    with_effects(tmp_path, check)


def test_every_change_in_progress_is_answered_when_the_service_is_deposed(tmp_path: Path) -> None:
    async def check(effects: Effects, store: Watched, clock: FrozenClock) -> None:
        jobs = effects._jobs
        record = JobRecord("leaf", 3, "a-job", "running", "{}")
        with contextlib.closing(Store(tmp_path)) as newer:
            newer.begin()
        changes = []
        for _ in range(3):
            jobs._outputs.append(outputs.Save(record))
            changes.append(asyncio.create_task(effects.carried_out()))
            await asyncio.sleep(0)
        answers = await asyncio.wait_for(asyncio.gather(*changes), PATIENCE_S)
        assert all("another controller has begun" in said for said in answers), answers
        assert "another controller has begun" in await effects.carried_out()

    with_effects(tmp_path, check)


def test_every_change_in_progress_is_answered_when_the_service_ends(tmp_path: Path) -> None:
    async def check(effects: Effects, store: Watched, clock: FrozenClock) -> None:
        with contextlib.closing(Store(tmp_path)) as other, other._transaction():
            effects._jobs._outputs.append(outputs.SaveDraining("leaf", draining=True))
            change = asyncio.create_task(effects.carried_out())
            await asyncio.sleep(0)
            effects.halt()
            assert await asyncio.wait_for(change, PATIENCE_S) == await effects.carried_out() == effects_module.ENDED

    with_effects(tmp_path, check)


def test_a_standby_waits_for_longer_than_a_service_is_sure() -> None:
    assert SURE_S < VACANT_S
