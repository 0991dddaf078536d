"""What the service still does while its state cannot be written to disk."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from wiresum import join
from wiresum.controller import JoinServer, Limits
from wiresum.controller.jobs import moving, outputs
from wiresum.controller.jobs.jobs import Jobs
from wiresum.controller.service.effects import Effects, Times
from wiresum.controller.store import Store
from wiresum_lab.clocks.by_hand import FrozenClock
from wiresum_lab.doubles.controller import Attendance, Client, RecordingDriver, join_request, switch
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

LIMITS = Limits(connection_lost_ms=200, evict_retry_ms=50)
STEP_S = 0.9 * LIMITS.stall_ms_max / 1000
Disk = Callable[[Store], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def full(store: Store) -> Iterator[None]:
    with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        for event in ("INSERT ON jobs", "DELETE ON jobs"):
            name = event.split()[0].lower()
            other.execute(f"CREATE TRIGGER {name}_fails BEFORE {event} BEGIN SELECT RAISE(FAIL, 'disk full'); END")
        yield
        for name in ("insert", "delete"):
            other.execute(f"DROP TRIGGER {name}_fails")


@contextlib.contextmanager
def read_only(store: Store) -> Iterator[None]:
    store._database.execute("PRAGMA query_only = 1")
    yield
    store._database.execute("PRAGMA query_only = 0")


@contextlib.contextmanager
def hanging(store: Store) -> Iterator[None]:
    """Writes hang until the end of this context."""
    with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.fixture(params=[full, read_only, hanging], ids=["full", "read-only", "hangs"])
def broken(request: pytest.FixtureRequest) -> Disk:
    found: Disk = request.param
    return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with contextlib.closing(Store(tmp_path, busy_s_max=3600.0)) as store:
        store.begin()
        yield store


@pytest.fixture
def times() -> Times:
    return Times(write_s_max=0.2, write_retry_s=0.05)


@pytest.fixture
def server(driver: RecordingDriver, store: Store, clock: FrozenClock, times: Times) -> Iterator[JoinServer]:
    server = JoinServer(driver, LIMITS, store=store, clock=clock, times=times)
    server.start(port=0)
    yield server
    server.stop(0.0)


def states(store: Store) -> list[str]:
    """The states of the jobs on disk."""
    with contextlib.closing(Store(store.path.parent)) as reader:
        return [record.state for record in reader.load().jobs]


def test_survivors_are_told_of_a_lost_worker_while_the_disk_fails(
    store: Store, client: Client, job: list[Attendance], driver: RecordingDriver, broken: Disk
) -> None:
    survivor, victim = job
    with broken(store):
        victim.hang_up()
        ended = survivor.wait_ended()
        assert (ended.cause, ended.worker.host_name) == (join.JobEnded.WORKER_LOST, "host-1")
        wait_until(lambda: not driver.admitted, "the switch has forgotten the job, too")
        assert client.report().service.trouble, "operators see why the slots are not given to others"
    wait_until(lambda: not client.report().service.trouble, "the disk takes what was to be written")
    wait_until(lambda: client.slots_free() == driver.sizes.slots, "no slot is lost")
    wait_until(lambda: states(store) == [], "nothing of the job is left")


def test_heartbeats_are_answered_while_the_disk_fails(
    store: Store, client: Client, job: list[Attendance], broken: Disk
) -> None:
    with broken(store):
        client.stub.Leave(join.LeaveRequest(member=job[1].member), timeout=PATIENCE_S)  # causes a write
        pulses = job[0].pulses
        wait_until(lambda: job[0].pulses > pulses + 10, "they are answered")
        assert job[0].ended is None


def test_no_job_begins_that_could_not_be_stored_and_waiting_workers_are_told_why(
    store: Store, client: Client, job: list[Attendance], driver: RecordingDriver, broken: Disk
) -> None:
    with broken(store):
        job[1].hang_up()
        job[0].wait_ended()
        waiting = client.join_soon(job_name="another")
        assert "the controller's state cannot be written" in waiting.next_waiting().reason
        assert len(driver.entries) == 1
    assert waiting.result().workers == 1


def test_a_worker_whose_grant_waits_for_the_disk_is_not_counted_as_late(
    store: Store, server: JoinServer, client: Client, driver: RecordingDriver, clock: FrozenClock
) -> None:
    with full(store):
        asked = [client.join_soon(rank=rank, world_size=2) for rank in range(2)]
        wait_until(lambda: "disk full" in client.report().service.trouble, "operators see it")
        wait_until(lambda: bool(driver.admitted), "the switch has the job")
        clock.pass_at(server, 3 * LIMITS.attend_ms_max / 1000, STEP_S)
        (found,) = client.jobs()
        assert found.state == "running"
    assert [call.result().rank for call in asked] == [0, 1]


def test_a_worker_whose_grant_waits_for_the_disk_is_told_of_the_end_of_its_job(
    store: Store, server: JoinServer, client: Client, clock: FrozenClock
) -> None:
    with full(store):
        asked = [client.join_soon(rank=rank, world_size=2) for rank in range(2)]
        wait_until(lambda: "disk full" in client.report().service.trouble, "operators see it")
        with pytest.raises(grpc.RpcError, match="this is not on disk"):
            client.operator.EndJob(join.EndJobRequest(job_name="a-job", reason="no time"), timeout=PATIENCE_S)
        for call in asked:
            code, text = call.refusal()
            assert (code, "an operator ended it: no time" in text) == ("ABORTED", True)
    clock.pass_at(server, LIMITS.drain_ms_max / 1000 + STEP_S, STEP_S)
    wait_until(lambda: client.jobs() == [], "it is gone")


@pytest.mark.parametrize("times", [Times(write_s_max=PATIENCE_S)])
def test_a_deposed_service_ends_no_job(
    store: Store, server: JoinServer, job: list[Attendance], driver: RecordingDriver
) -> None:
    with contextlib.closing(Store(store.path.parent)) as newer:
        newer.begin()
        job[1].hang_up()
        wait_until(lambda: bool(server.deposed), "the service learns that it is deposed")
    assert job[0].ended is None
    assert driver.admitted


def test_a_job_that_ended_while_the_disk_failed_also_ends_after_a_restart(
    store: Store,
    server: JoinServer,
    client: Client,
    job: list[Attendance],
    driver: RecordingDriver,
    clock: FrozenClock,
    times: Times,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On disk the job still runs, as if the service had died before it could tell the survivors; it cannot move."""
    monkeypatch.setattr(moving, "POSITIONS_MAX", 0)
    with full(store):
        job[1].hang_up()
        job[0].wait_ended()
        wait_until(lambda: not driver.admitted, "the switch has forgotten the job")
        server.stop(0.0)
    assert states(store) == ["running"]
    store.begin()
    again = JoinServer(driver, LIMITS, store=store, clock=clock, times=times)
    with contextlib.closing(Client(again.start(port=0))) as other:
        clock.pass_at(again, LIMITS.drain_ms_max / 1000 + STEP_S, STEP_S)
        wait_until(lambda: other.slots_free() == driver.sizes.slots, "no slot is lost")
        assert other.jobs() == []
    again.stop(0.2)


def test_nobody_hears_of_a_move_before_it_is_written_down(
    client: Client, driver: RecordingDriver, store: Store, broken: Disk
) -> None:
    """A service that is killed meanwhile leaves a job whose workers have halted, and none that has gone on."""
    streams = [Attendance(client, reply) for reply in client.join_all(2)]
    key = streams[0].grant.key
    streams[1].obeys = False
    driver.change("it was killed", forgetting=True)
    driver.change("")
    wait_until(lambda: streams[0].halted is not None, "one worker has halted")
    wait_until(lambda: len(driver.entries) == 2, "the switch has the next lease")
    with broken(store):
        streams[1].halted = messages_halted(streams[1])
        pulses = streams[0].pulses + 5
        wait_until(lambda: streams[0].pulses > pulses, "there was time to tell it")
        assert streams[0].halted is not None
        assert streams[0].grant.key == key
    streams[1].obeys = True
    wait_until(lambda: streams[0].halted is None, "it has moved")
    assert streams[0].grant.key == driver.entries[-1].key != key
    pulses = streams[0].pulses + 5
    wait_until(lambda: streams[0].pulses > pulses, "there was time to tell it again")
    assert [(stream.ended, stream.orders) for stream in streams] == [(None, 2), (None, 2)]
    for stream in streams:
        stream.hang_up()


def messages_halted(stream: Attendance) -> join.Halted:
    return join.Halted(move_number=1, positions=bytes(4 * stream.grant.slots))


def test_no_worker_is_told_to_halt_for_a_move_whose_number_is_not_written_down(
    client: Client, driver: RecordingDriver, store: Store, broken: Disk
) -> None:
    """The next service would take that number for one that nobody has given. No worker counts as late meanwhile."""
    streams = [Attendance(client, reply) for reply in client.join_all(2)]
    with broken(store):
        driver.change("it was killed", forgetting=True)
        driver.change("")
        wait_until(lambda: client.jobs()[0].state == "moving", "it moves")
        wait_until(lambda: bool(client.report().service.trouble), "the disk takes nothing")
        assert [stream.halted for stream in streams] == [None, None]
    wait_until(lambda: {stream.orders for stream in streams} == {2}, "both have halted, and moved")
    assert [stream.ended for stream in streams] == [None, None]
    for stream in streams:
        stream.hang_up()


def test_a_flood_of_refused_jobs_is_bounded_while_the_disk_fails_and_heartbeats_do_not_walk_it(
    store: Store, clock: FrozenClock, times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked: list[object] = []
    without_disk = Effects._without_disk

    def walk(effects: Effects, batch: list[object], *others: list[object]) -> object:
        walked.extend(batch)
        return without_disk(effects, batch, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(Effects, "_without_disk", walk)

    async def check() -> None:
        jobs = Jobs([switch()], store.keys())
        jobs.history._ended_max = 10
        with contextlib.closing(Effects(jobs, {}, store, clock, times)) as effects:
            with read_only(store):
                jobs.drain("", resume=False)
                assert await effects.carried_out() != ""
                for n in range(100):
                    request = join_request(job_name=f"job-{n}", admission=join.Admission.FURTHER)
                    worker = jobs.ask(request, clock())
                    effects.carry_out()
                assert sum(map(len, effects._batches)) == 10
                jobs._outputs.append(outputs.Grant(worker, join.JoinReply()))
                effects.carry_out()
                walked.clear()
                clock.now += 5
                now = clock()
                effects.carry_out()
                assert (walked, worker.heard_at >= now) == ([], True), "a worker whose grant waits is not late"
            await asyncio.to_thread(wait_until, lambda: effects.idle, "the disk takes what was to be written")

    asyncio.run(check())
    assert [record.job.name for record in store.load().ended] == [f"job-{n}" for n in range(90, 100)]
