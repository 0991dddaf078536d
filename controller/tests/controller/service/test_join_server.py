"""The service as workers see it: real gRPC over loopback, in front of a switch that records its calls."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from wiresum import join
from wiresum.controller import JobEntry, JoinServer, Limits, SwitchSizes
from wiresum.controller.jobs import keys
from wiresum.controller.store import Store
from wiresum_lab.doubles.controller import Attendance, Client, RecordingDriver, member_of, refusal_of
from wiresum_lab.processes import PATIENCE_S, wait_until


@pytest.fixture
def attend(client: Client) -> Iterator[Callable[..., Attendance]]:
    """Opens Attend streams, and closes them after the test."""
    open_streams: list[Attendance] = []

    def attend_one(reply: join.JoinReply, **options: float) -> Attendance:
        open_streams.append(Attendance(client, reply, **options))  # type: ignore[arg-type]
        return open_streams[-1]

    yield attend_one
    for stream in open_streams:
        stream.hang_up()


def test_sixteen_workers_that_join_at_once_form_one_job(driver: RecordingDriver, client: Client) -> None:
    replies = client.join_all(16)
    assert {reply.job for reply in replies} == {1}
    assert len({reply.key for reply in replies}) == 1
    assert [reply.worker for reply in replies] == list(range(16))
    assert len({reply.token for reply in replies}) == 16
    (entry,) = driver.entries
    assert isinstance(entry, JobEntry)
    assert [endpoint.port for endpoint in entry.endpoints] == [5000 + 16 * rank for rank in range(16)]


def test_every_refusal_has_its_status_code_and_says_what_to_do(client: Client) -> None:
    first = client.join_soon(rank=0, world_size=2)
    wait_until(lambda: len(client.jobs()) == 1, "the first worker is waiting")
    for fields, code, advice in (
        ({"protocol_version": 7}, "FAILED_PRECONDITION", "release"),
        ({"rank": 1, "world_size": 3}, "FAILED_PRECONDITION", "start all with the same world size"),
        ({"rank": 0, "world_size": 2}, "ALREADY_EXISTS", "give each worker a rank of its own"),
        ({"rank": 1, "world_size": 2, "key": 9}, "PERMISSION_DENIED", "set WIRESUM_KEY"),
        ({"rank": 2, "world_size": 2}, "INVALID_ARGUMENT", "rank is 2"),
        ({"rank": 0, "world_size": 0}, "INVALID_ARGUMENT", "1 to 4096"),
        ({"rank": 0, "world_size": 4097}, "INVALID_ARGUMENT", "1 to 4096"),
        ({"job_name": "large", "world_size": 33}, "RESOURCE_EXHAUSTED", "sum for in one job, 32"),
    ):
        refused_code, text = client.refusal(**fields)
        assert refused_code == code
        assert advice in text
    client.join(rank=1, world_size=2)
    assert first.result().worker == 0
    code, text = client.refusal(rank=1, world_size=2)
    assert code == "ALREADY_EXISTS"
    assert "choose another name (WIRESUM_JOB), or wait until it ends" in text


def test_a_refusal_can_be_told_from_a_failure_of_grpc(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.join(world_size=0)
    assert (join.REFUSED_KEY, "1") in caught.value.trailing_metadata()


def test_a_refusal_by_the_switch_reaches_the_workers(driver: RecordingDriver, client: Client) -> None:
    driver.refuse_with = "the table is full"
    code, text = client.refusal()
    assert code == "INTERNAL"
    assert "the table is full" in text
    assert client.slots_free() == 4096


@pytest.mark.parametrize("limits", [Limits(ask_again_ms_max=200)])
def test_the_others_are_told_who_is_missing_when_a_waiting_worker_goes_away(client: Client) -> None:
    staying = client.join_soon(rank=0, world_size=3)
    going = client.join_soon(rank=1, world_size=3)
    wait_until(lambda: [job.joined for job in client.jobs()] == [2], "two are waiting")
    going.cancel()
    code, text = staying.refusal()
    assert code == "ABORTED"
    assert "rank 1 (127.0.0.1, process 1001 on 'host-1') went away" in text
    assert "ranks 1, 2 of 3" in text


WORKER = """
import sys
from wiresum_lab.doubles.controller import Attendance, Client
client = Client(int(sys.argv[1]))
stream = Attendance(client, client.join(rank=int(sys.argv[2]), world_size=3))
print("attends", flush=True)
stream.wait_ended()
"""


@pytest.fixture
def spawn_worker(client: Client) -> Iterator[Callable[[int], subprocess.Popen[str]]]:
    """Starts processes that join and attend, and kills them after the test."""
    processes: list[subprocess.Popen[str]] = []

    def spawn(rank: int) -> subprocess.Popen[str]:
        port = client.target.rpartition(":")[2]
        command = [sys.executable, "-c", WORKER, port, str(rank)]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return processes[-1]

    yield spawn
    for process in processes:
        process.kill()
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("limits", [Limits(heartbeat_lost_ms=2000, connection_lost_ms=500)])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_the_others_are_told_which_worker_was_killed_or_stopped(
    sent: signal.Signals,
    client: Client,
    driver: RecordingDriver,
    attend: Callable[..., Attendance],
    spawn_worker: Callable[[int], subprocess.Popen[str]],
) -> None:
    victim = spawn_worker(2)
    asked = [client.join_soon(rank=rank, world_size=3) for rank in range(2)]
    streams = [attend(answer.result()) for answer in asked]
    assert victim.stdout is not None
    assert victim.stdout.readline() == "attends\n"
    os.kill(victim.pid, sent)
    for stream in streams:
        ended = stream.wait_ended()
        assert ended.cause == join.JobEnded.WORKER_LOST
        assert (ended.worker.rank, ended.worker.host_name, ended.worker.process_id) == (2, "host-2", 1002)
        assert "rank 2 (127.0.0.1, process 1002 on 'host-2') was lost" in ended.reason
    wait_until(lambda: not driver.admitted, "the switch has forgotten the job")
    wait_until(lambda: client.slots_free() == 4096, "the lease is free")
    assert client.join(job_name="a-job").job == 2, "the next job works"


def test_an_abort_reaches_all_workers_with_its_reason(client: Client, attend: Callable[..., Attendance]) -> None:
    replies = client.join_all(2)
    streams = [attend(reply) for reply in replies]
    client.stub.Abort(join.AbortRequest(member=member_of(replies[0]), reason="the loss is NaN"), timeout=PATIENCE_S)
    for stream in streams:
        ended = stream.wait_ended()
        assert ended.cause == join.JobEnded.ABORTED_BY_WORKER
        assert ended.reason == "rank 0 (127.0.0.1, process 1000 on 'host-0') ended the job: the loss is NaN"


def test_a_jobs_name_is_free_as_soon_as_all_have_left(
    client: Client, driver: RecordingDriver, attend: Callable[..., Attendance]
) -> None:
    for job in (1, 2, 3):
        replies = client.join_all(2)
        assert {reply.job for reply in replies} == {job}
        streams = [attend(reply) for reply in replies]
        for reply in replies:
            client.leave(reply)
        wait_until(lambda: client.slots_free() == 4096, "the lease is free")
        wait_until(
            lambda streams=streams: all(stream.status is grpc.StatusCode.OK for stream in streams),  # type: ignore[misc]
            "the service has closed the streams",
        )
        assert [stream.ended for stream in streams] == [None, None]
    assert len({entry.key for entry in driver.entries}) == 3


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _tasks(server: JoinServer) -> int:
    async def count() -> int:
        return len(asyncio.all_tasks()) - 1

    assert server._loop is not None
    return asyncio.run_coroutine_threadsafe(count(), server._loop).result(PATIENCE_S)


@pytest.mark.parametrize("sizes", [SwitchSizes(slots=4096, lanes_max=360, jobs_max=16)])
def test_many_jobs_leave_nothing_behind(server: JoinServer, client: Client, driver: RecordingDriver) -> None:
    def one_job() -> None:
        replies = client.join_all(2)
        streams = [Attendance(client, reply) for reply in replies]
        for reply in replies:
            client.leave(reply)
        for stream in streams:
            stream.hang_up()
        wait_until(lambda: not client.jobs(), "the job is gone")

    one_job()
    threads, descriptors, tasks = threading.active_count(), _open_files(), _tasks(server)
    for _ in range(40):
        one_job()
    assert client.slots_free() == 4096
    assert driver.admitted == {}
    assert len({entry.job for entry in driver.entries}) == driver.sizes.jobs_max, "all numbers had their turn"
    wait_until(lambda: threading.active_count() <= threads, "the threads of the streams have ended")
    wait_until(lambda: _tasks(server) <= tasks, "the tasks of the streams and of the calls to the switch have ended")
    assert _open_files() <= descriptors + 4
    effects = server._effects
    assert effects is not None
    assert (effects._joins, effects._streams, effects._tasks) == ({}, {}, set())


@pytest.mark.slow
@pytest.mark.parametrize("limits", [Limits(heartbeat_lost_ms=2000)])
def test_a_switch_that_blocks_does_not_delay_heartbeats(
    client: Client, driver: RecordingDriver, attend: Callable[..., Attendance]
) -> None:
    stream = attend(client.join())
    driver.released.clear()
    waiting = client.join_soon(job_name="another")
    wait_until(lambda: driver.calls[-1] == ("admit", 2), "the switch is being told")
    pulses = stream.pulses
    wait_until(lambda: stream.pulses >= pulses + 25, "many pulses, over more than the time after which one is lost")
    assert stream.ended is None
    driver.released.set()
    assert waiting.result().job == 2


def test_a_failed_eviction_is_retried(client: Client, driver: RecordingDriver) -> None:
    driver.evictions_to_fail = 1
    reply = client.join()
    client.leave(reply)
    wait_until(lambda: client.slots_free() == 4096, "the lease is free after all")
    assert [call for call, _ in driver.calls].count("evict") == 2


def test_a_diagnosis_says_whose_packets_the_switch_has_counted(
    client: Client, attend: Callable[..., Attendance]
) -> None:
    replies = client.join_all(2)
    for reply in replies:
        attend(reply)
    client.leave(replies[1])
    diagnosis = client.stub.Diagnose(member_of(replies[0]), timeout=PATIENCE_S)
    assert [worker.peer.host_name for worker in diagnosis.workers] == ["host-0", "host-1"]
    assert [worker.tensor_last for worker in diagnosis.workers] == [0, 1]
    assert [worker.contributions for worker in diagnosis.workers] == [5, 5]
    assert [worker.left for worker in diagnosis.workers] == [False, True]


def test_the_report_lists_forming_and_running_jobs_with_their_counters(client: Client) -> None:
    client.join(job_name="runs", slots=64)
    waiting = client.join_soon(job_name="forms", rank=1, world_size=4)
    wait_until(lambda: len(client.jobs()) == 2, "both are there")
    listed = {job.name: job for job in client.jobs()}
    assert (listed["runs"].state, listed["runs"].slots, listed["runs"].results) == ("running", 64, 1)
    assert dict(listed["runs"].packets) == {"admitted": 10}
    assert (listed["forms"].state, listed["forms"].slots) == ("forming", 0)
    assert (listed["forms"].joined, listed["forms"].world_size) == (1, 4)
    assert client.slots_free() == 4096 - 64
    waiting.cancel()


def test_an_attend_stream_without_messages_is_closed(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(client.stub.Attend(iter([]), timeout=PATIENCE_S))
    assert refusal_of(caught.value)[0] == "INVALID_ARGUMENT"


def test_random_bytes_on_the_port_disturb_nobody(client: Client, attend: Callable[..., Attendance]) -> None:
    stream = attend(client.join())
    noise = random.Random(1)
    address = ("127.0.0.1", int(client.target.rpartition(":")[2]))
    for length in (0, 1, 23, 24, 4096, 100_000):
        with socket.create_connection(address, timeout=PATIENCE_S) as connection:
            for start in (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
                try:
                    connection.sendall(start + noise.randbytes(length))
                except OSError:  # the server may have closed the connection already
                    break
    pulses = stream.pulses
    wait_until(lambda: stream.pulses > pulses, "heartbeats are answered")
    assert client.join(job_name="after-the-noise").workers == 1


@pytest.mark.slow
def test_a_worker_that_sends_invalid_heartbeats_is_lost(client: Client, attend: Callable[..., Attendance]) -> None:
    replies = client.join_all(2)
    stream = attend(replies[0])
    nonsense = [join.Heartbeat(member=member_of(replies[1])).SerializeToString(), b"\xff" * 50]
    events = client.channel.stream_stream("/wiresum.join.v1.JoinService/Attend")(iter(nonsense), timeout=PATIENCE_S)
    assert stream.wait_ended().worker.rank == 1
    events.cancel()


@pytest.mark.parametrize("limits", [Limits(waiting_max=20)])
def test_a_flood_of_joins_is_bounded(client: Client) -> None:
    client.join_all(2, job_name="one-that-was-there")
    flooders = [
        Client(int(client.target.rpartition(":")[2])) for _ in range(4)
    ]  # a connection may have 100 calls at once
    flood = [flooders[n % 4].join_soon(job_name=f"flood-{n}", world_size=2) for n in range(200)]
    wait_until(lambda: client.report().service.refusals["resource_exhausted"] == 180, "all others were refused")
    assert len(client.jobs()) == 21
    for call in flood:
        call.cancel()
    for flooder in flooders:
        flooder.close()


def test_a_port_in_use_is_a_clear_error(server: JoinServer, driver: RecordingDriver) -> None:
    with pytest.raises(OSError, match="does another one run there"):
        JoinServer(driver).start("127.0.0.1", server.port)


def test_stopping_tells_the_workers_and_frees_the_port(
    server: JoinServer, driver: RecordingDriver, client: Client, attend: Callable[..., Attendance]
) -> None:
    stream = attend(client.join())
    waiting = client.join_soon(job_name="forming", world_size=2)
    wait_until(lambda: len(client.jobs()) == 2, "both are there")
    server.stop(PATIENCE_S)
    ended = stream.wait_ended()
    assert ended.cause == join.JobEnded.SWITCH_LOST
    assert ended.reason == "the switch was stopped"
    assert waiting.refusal()[0] == "UNAVAILABLE"
    assert driver.admitted == {}
    server.stop()
    again = JoinServer(driver)
    assert again.start("127.0.0.1", server.port) == server.port
    second = Client(server.port)
    assert second.join().workers == 1
    second.close()
    again.stop(0.1)


def test_stopping_is_bounded_when_the_switch_hangs(server: JoinServer, driver: RecordingDriver, client: Client) -> None:
    wait_until(lambda: client.report().switches[0].state == "ready", "the switch is ready")
    driver.released.clear()
    waiting = client.join_soon()
    wait_until(lambda: driver.calls[-1][0] == "admit", "the switch is being told")
    server.stop(0.2)
    assert "wiresum-join-service" not in {thread.name for thread in threading.enumerate()}
    driver.released.set()
    with pytest.raises(grpc.RpcError):
        waiting.result()


def test_a_server_can_be_started_once(server: JoinServer) -> None:
    with pytest.raises(RuntimeError, match="make a new one"):
        server.start("127.0.0.1", 0)


# Several switches, operators, and state.


def test_a_worker_that_waits_for_slots_is_told_so_and_gets_them_later(
    client: Client, attend: Callable[..., Attendance]
) -> None:
    holder = client.join(job_name="holder", slots=4096)
    attend(holder)
    waiting = client.join_soon(job_name="waits")
    said = waiting.next_waiting()
    assert said.queue_position == 1
    assert (
        "no 16 slots in a row are free at recording switch, where 0 of 4096 are: job 'holder' has 4096" in said.reason
    )
    (listed,) = [job for job in client.jobs() if job.name == "waits"]
    assert (listed.state, listed.queue_position, listed.waiting) == ("queued", 1, said.reason)
    client.leave(holder)
    assert waiting.result().slots == 256


def test_a_repeated_join_keeps_its_place(client: Client) -> None:
    broken = client.join_soon(rank=0, world_size=2, attempt="first")
    wait_until(lambda: len(client.jobs()) == 1, "it waits")
    broken.cancel()
    again = client.join_soon(rank=0, world_size=2, attempt="first")
    client.join(rank=1, world_size=2)
    reply = again.result()
    assert client.join(rank=0, world_size=2, attempt="first") == reply, "the same grant, if that was lost"


def test_two_switches_form_one_service() -> None:
    left = RecordingDriver(name="left", addresses=["127.0.0.1"])
    right = RecordingDriver(name="right", addresses=["127.0.0.2", "127.0.0.1"])
    server = JoinServer([left, right])
    client = Client(server.start(port=0))
    both = [client.join(job_name=name) for name in ("a", "b")]
    assert {reply.switch_name for reply in both} == {"left", "right"}
    assert client.join(job_name="c", endpoint=join.Endpoint(address="127.0.0.2", port=9000)).switch_name == "right"
    code, text = client.refusal(job_name="d", endpoint=join.Endpoint(address="127.0.0.3", port=9000))
    assert code == "FAILED_PRECONDITION"
    assert "no switch here knows a host with the address 127.0.0.3" in text
    assert [(switch.name, switch.jobs) for switch in server.report().switches] == [("left", 1), ("right", 2)]
    for reply in both:
        client.leave(reply)
    wait_until(lambda: [job.name for job in client.jobs()] == ["c"], "each was forgotten by its own switch")
    client.close()
    server.stop(0.1)


def test_names_of_switches_must_differ() -> None:
    with pytest.raises(ValueError, match="each switch needs a name of its own"):
        JoinServer([RecordingDriver(), RecordingDriver()])


def test_operators_create_drain_and_end_jobs(client: Client, attend: Callable[..., Attendance]) -> None:
    token = client.operator.CreateJob(join.CreateJobRequest(job_name="created", world_size=1)).job_token
    assert client.refusal(job_name="created")[0] == "PERMISSION_DENIED"
    assert [(job.name, job.state) for job in client.jobs()] == [("created", "created")]
    stream = attend(client.join(job_name="created", job_token=token))
    assert client.operator.Drain(join.DrainRequest()).jobs == 1
    assert client.report().switches[0].state == "draining"
    client.operator.EndJob(join.EndJobRequest(job_name="created", reason="maintenance"))
    assert stream.wait_ended().cause == join.JobEnded.ENDED_BY_OPERATOR
    client.operator.Drain(join.DrainRequest(resume=True))
    assert client.join(job_name="another").workers == 1
    with pytest.raises(grpc.RpcError) as caught:
        client.operator.EndJob(join.EndJobRequest(job_name="created"))
    assert refusal_of(caught.value)[0] == "NOT_FOUND"


def test_the_report_has_all_fields(client: Client, attend: Callable[..., Attendance]) -> None:
    attend(client.join(tenant="vision", priority=3))
    client.refusal(world_size=0)
    report = client.report()
    (job,), (switch,) = report.jobs, report.switches
    assert (job.switch_name, job.tenant, job.priority, job.lanes, job.threads) == (
        "recording switch",
        "vision",
        3,
        360,
        4,
    )
    (worker,) = job.workers
    assert (worker.peer.host_name, worker.endpoint.port, worker.state) == ("host-0", 5000, "attending")
    assert (worker.contributions, worker.tensor_last) == (5, 0)
    assert worker.heartbeat_age_ms < 60_000
    assert (switch.kind, switch.state, switch.slots_free, switch.jobs) == ("software", "ready", 4096 - 256, 1)
    assert dict(switch.stray_packets) == {"unknown": 3}
    assert report.service.role == "active"
    assert dict(report.service.refusals) == {"invalid_argument": 1}


def test_a_switch_that_was_lost_and_came_back_is_used_again(
    client: Client, driver: RecordingDriver, attend: Callable[..., Attendance]
) -> None:
    stream = attend(client.join())
    driver.change("no answer since noon")
    waiting = client.join_soon(job_name="another")
    assert "recording switch cannot be used now (no answer since noon)" in waiting.next_waiting().reason
    assert client.report().switches[0].trouble == "no answer since noon"
    driver.change("", forgetting=True)
    assert "started anew" in stream.wait_ended().reason
    assert waiting.result().workers == 1


def test_a_grant_is_sent_only_after_it_was_stored(driver: RecordingDriver, tmp_path: Path) -> None:
    with contextlib.closing(Store(tmp_path)) as store, ThreadPoolExecutor() as pool:
        store.begin()
        server = JoinServer(driver, store=store)
        client = Client(server.start(port=0))
        with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as other:
            other.execute("CREATE TRIGGER full BEFORE INSERT ON jobs BEGIN SELECT RAISE(FAIL, 'disk full'); END")
            waiting = pool.submit(client.join)
            wait_until(lambda: bool(driver.admitted), "the switch has it")
            wait_until(lambda: "disk full" in client.report().service.trouble, "operators see it")
            assert not waiting.done()
            other.execute("DROP TRIGGER full")
        wait_until(lambda: client.report().service.trouble == "", "operators see that the trouble is over")
        assert waiting.result(PATIENCE_S).reattach_ms == Limits().reattach_with_state_ms
        client.close()
        server.stop(keep_jobs=True)
        assert [record.state for record in store.load().jobs] == ["running"]
        assert len(driver.admitted) == 1, "the job goes on"


def test_no_switch_gets_a_key_that_could_be_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Includes a restart of the service."""
    monkeypatch.setattr(keys, "BLOCK", 3)
    again: list[set[int]] = []

    class Switch(RecordingDriver):
        def admit(self, entry: JobEntry) -> None:
            with contextlib.closing(Store(tmp_path)) as who_comes_next:
                left = who_comes_next.keys()
                left.reserve()
                again.append({left.draw() for _ in range(keys.BLOCK)} & {entry.key})
            super().admit(entry)

    driver = Switch()
    for name in ("first", "second"):
        with contextlib.closing(Store(tmp_path)) as store:
            store.begin()
            server = JoinServer(driver, store=store)
            with contextlib.closing(Client(server.start("127.0.0.1", 0))) as client:
                for number in range(8):
                    client.leave(client.join(job_name=f"{name}-{number}"))
            server.stop(keep_jobs=True)
    assert again == [set()] * 16
    assert len({entry.key for entry in driver.entries}) == 16


@pytest.mark.slow
def test_a_switch_that_does_not_give_its_counters_in_time_is_slow_and_takes_jobs(
    server: JoinServer, driver: RecordingDriver, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.join()
    (job,) = client.jobs()
    assert (job.uncounted, job.packets["admitted"]) == (False, 10 * job.job)
    driver.released.clear()  # like a busy switch: connected, but it answers late
    report = client.report()
    assert [(job.uncounted, dict(job.packets)) for job in report.jobs] == [(True, {})]
    (switch,) = report.switches
    assert (switch.state, switch.uncounted) == ("slow", True)
    assert switch.trouble == "it did not say in time what it counted"
    assert server._operators._jobs.cluster.is_usable()  # type: ignore[union-attr]
    driver.trouble = "it is gone"  # the late answer is an error, and nobody waits for it any more
    driver.released.set()
    wait_until(lambda: not server._effects._counting, "the switch has answered")  # type: ignore[union-attr]
    driver.trouble = ""
    gc.collect()
    wait_until(lambda: not client.jobs()[0].uncounted, "the switch gives its counters again")
    assert client.report().switches[0].state == "ready"
    assert "never retrieved" not in caplog.text


def test_a_service_whose_loop_is_blocked_is_not_alive(server: JoinServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wiresum.controller.service.join_server.TICK_S_MAX", 0.5)
    assert server.is_alive
    held, loop = threading.Event(), server._loop
    assert loop is not None
    loop.call_soon_threadsafe(held.wait, PATIENCE_S)
    wait_until(lambda: not server.is_alive, "the blocked loop is noticed")
    held.set()
    wait_until(lambda: server.is_alive, "it is alive again")
