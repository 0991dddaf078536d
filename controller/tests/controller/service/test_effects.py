"""What the service still does while its state cannot be written to disk."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wiresum import join
from wiresum.controller import JoinServer, Limits
from wiresum.controller import store as store_module
from wiresum.controller.store import Store
from wiresum_lab.doubles.controller import Attendance, Client, RecordingDriver
from wiresum_lab.processes import PATIENCE_S, wait_until

LIMITS = Limits(connection_lost_ms=200, attend_ms_max=500, evict_retry_ms=50)
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
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(store_module, "BUSY_S_MAX", 3600.0)
    with contextlib.closing(Store(tmp_path)) as store:
        store.begin()
        yield store


@pytest.fixture
def server(driver: RecordingDriver, store: Store) -> Iterator[JoinServer]:
    server = JoinServer(driver, LIMITS, store=store)
    server.start(port=0)
    yield server
    server.stop(0.2)


@pytest.fixture
def job(client: Client) -> Iterator[list[Attendance]]:
    """Two attending workers of a running job."""
    streams = [Attendance(client, reply) for reply in client.join_all(2)]
    yield streams
    for stream in streams:
        stream.hang_up()


def states(store: Store) -> list[str]:
    """The states of the jobs on disk."""
    with contextlib.closing(Store(store.path.parent)) as reader:
        return [record.state for record in reader.load().jobs]


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_worker_whose_grant_waits_for_the_disk_is_not_counted_as_late(
    store: Store, client: Client, driver: RecordingDriver
) -> None:
    with full(store):
        asked = [client.join_soon(rank=rank, world_size=2) for rank in range(2)]
        wait_until(lambda: "disk full" in client.report().service.trouble, "operators see it")
        wait_until(lambda: bool(driver.admitted), "the switch has the job")
        time.sleep(3 * LIMITS.attend_ms_max / 1000)
        (found,) = client.jobs()
        assert found.state == "running"
    assert [call.result().rank for call in asked] == [0, 1]


@pytest.mark.slow
def test_a_worker_whose_grant_waits_for_the_disk_is_told_of_the_end_of_its_job(store: Store, client: Client) -> None:
    with full(store):
        asked = [client.join_soon(rank=rank, world_size=2) for rank in range(2)]
        wait_until(lambda: "disk full" in client.report().service.trouble, "operators see it")
        client.operator.EndJob(join.EndJobRequest(job_name="a-job", reason="no time"), timeout=PATIENCE_S)
        for call in asked:
            code, text = call.refusal()
            assert (code, "an operator ended it: no time" in text) == ("ABORTED", True)
    wait_until(lambda: client.jobs() == [], "it is gone")


def test_a_deposed_service_ends_no_job(
    store: Store, server: JoinServer, job: list[Attendance], driver: RecordingDriver
) -> None:
    with contextlib.closing(Store(store.path.parent)) as newer:
        newer.begin()
        job[1].hang_up()
        wait_until(lambda: bool(server.deposed), "the service learns that it is deposed")
    assert job[0].ended is None
    assert driver.admitted


@pytest.mark.slow
def test_a_job_that_ended_while_the_disk_failed_also_ends_after_a_restart(
    store: Store, server: JoinServer, client: Client, job: list[Attendance], driver: RecordingDriver
) -> None:
    """On disk the job still runs, as if the service had died before it could tell the survivors."""
    with full(store):
        job[1].hang_up()
        job[0].wait_ended()
        wait_until(lambda: not driver.admitted, "the switch has forgotten the job")
        server.stop(0.2)
    assert states(store) == ["running"]
    store.begin()
    again = JoinServer(driver, LIMITS, store=store)
    with contextlib.closing(Client(again.start(port=0))) as other:
        wait_until(lambda: other.slots_free() == driver.sizes.slots, "no slot is lost")
        assert other.jobs() == []
    again.stop(0.2)


def test_nobody_hears_of_a_move_before_it_is_written_down(
    client: Client, driver: RecordingDriver, store: Store, broken: Disk
) -> None:
    """A service that is killed meanwhile leaves a job whose workers have halted, and none that has gone on."""
    streams = [Attendance(client, reply) for reply in client.join_all(2, can_move=True)]
    key = streams[0].grant.key
    streams[1].obeys = False
    driver.change("it was killed", forgetting=True)
    driver.change("")
    wait_until(lambda: streams[0].halted is not None, "one worker has halted")
    wait_until(lambda: len(driver.entries) == 2, "the switch has the next lease")
    with broken(store):
        streams[1].halted = messages_halted(streams[1])
        time.sleep(0.5)
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
