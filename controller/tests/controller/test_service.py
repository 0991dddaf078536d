"""The service as workers meet it: real gRPC, over loopback, and a switch that writes down what it is told."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from wiresum import join
from wiresum.controller import JobEntry, JoinServer, Limits
from wiresum.controller.testing import (
    PATIENCE_S,
    Attendance,
    Client,
    RecordingDriver,
    member_of,
    refusal_of,
    wait_until,
)


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


def test_sixteen_workers_that_join_at_once_get_one_job(driver: RecordingDriver, client: Client) -> None:
    replies = client.join_all(16)
    assert {reply.job for reply in replies} == {1}
    assert len({reply.key for reply in replies}) == 1
    assert [reply.worker for reply in replies] == list(range(16))
    assert len({reply.token for reply in replies}) == 16
    (entry,) = driver.entries
    assert isinstance(entry, JobEntry)
    assert [endpoint.port for endpoint in entry.endpoints] == [5000 + 16 * rank for rank in range(16)]


def test_many_jobs_run_side_by_side(driver: RecordingDriver, client: Client) -> None:
    for index in range(8):
        client.join_all(2, job_name=f"job {index}")
    assert len(driver.admitted) == 8
    assert {job.state for job in client.jobs()} == {"running"}


def test_every_refusal_has_its_code_and_says_what_to_do(client: Client) -> None:
    first = client.join_soon(rank=0, world_size=2)
    wait_until(lambda: len(client.jobs()) == 1, "the first worker is waiting")
    for fields, code, advice in (
        ({"protocol_version": 7}, "FAILED_PRECONDITION", "install the same release"),
        ({"rank": 1, "world_size": 3}, "FAILED_PRECONDITION", "start all with the same world size"),
        ({"rank": 0, "world_size": 2}, "ALREADY_EXISTS", "give each worker a rank of its own"),
        ({"rank": 1, "world_size": 2, "key": 9}, "PERMISSION_DENIED", "set WIRESUM_KEY"),
        ({"rank": 2, "world_size": 2}, "INVALID_ARGUMENT", "rank is 2"),
        ({"rank": 0, "world_size": 0}, "INVALID_ARGUMENT", "1 to 32 workers"),
        ({"rank": 0, "world_size": 33}, "INVALID_ARGUMENT", "1 to 32 workers"),
    ):
        refused_code, text = client.refusal(**fields)
        assert refused_code == code
        assert advice in text
    client.join(rank=1, world_size=2)
    assert first.result().worker == 0
    code, text = client.refusal(rank=1, world_size=2)
    assert code == "ALREADY_EXISTS"
    assert "choose another name (WIRESUM_JOB), or wait until it ends" in text


def test_a_refusal_is_told_apart_from_a_failure_of_grpc(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.join(world_size=0)
    assert (join.REFUSED_KEY, "1") in caught.value.trailing_metadata()


def test_a_refusal_of_the_switch_reaches_the_workers(driver: RecordingDriver, client: Client) -> None:
    driver.refuse_with = "the table is full"
    code, text = client.refusal()
    assert code == "INTERNAL"
    assert "the table is full" in text
    assert client.slots_free() == 4096


def test_when_nobody_comes_the_text_names_who_is_missing(client: Client) -> None:
    code, text = client.refusal(rank=1, world_size=3, timeout_ms=300)
    assert code == "DEADLINE_EXCEEDED"
    assert "ranks 0, 2 of 3 did not come" in text


def test_when_a_waiting_worker_goes_away_the_others_hear_who_is_missing(client: Client) -> None:
    staying = client.join_soon(rank=0, world_size=3)
    going = client.join_soon(rank=1, world_size=3)
    wait_until(lambda: [job.joined for job in client.jobs()] == [2], "two are waiting")
    going.cancel()
    with pytest.raises(grpc.RpcError) as caught:
        staying.result(PATIENCE_S)
    code, text = refusal_of(caught.value)
    assert code == "ABORTED"
    assert "rank 1 (host-1, process 1001) went away" in text
    assert "ranks 1, 2 of 3" in text


WORKER = """
import sys
from wiresum.controller.testing import Attendance, Client
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


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_killed_or_stopped_is_lost_to_all_others_by_name(
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
        assert "rank 2 (host-2, process 1002) was lost" in ended.reason
    wait_until(lambda: not driver.admitted, "the switch has forgotten the job")
    wait_until(lambda: client.slots_free() == 4096, "the lease is free")
    assert client.join(job_name="a job").job == 2, "the next job works"


def test_a_worker_that_is_silent_but_connected_is_lost(client: Client, attend: Callable[..., Attendance]) -> None:
    streams = [attend(reply) for reply in client.join_all(2)]
    streams[1].silent.set()
    ended = streams[0].wait_ended()
    assert ended.worker.rank == 1
    assert "no heartbeat" in ended.reason


@pytest.mark.parametrize("limits", [Limits(attend_ms_max=300)])
def test_a_worker_that_never_attends_is_lost(limits: Limits, client: Client, attend: Callable[..., Attendance]) -> None:
    stream = attend(client.join_all(2)[0])
    ended = stream.wait_ended()
    assert ended.worker.rank == 1
    assert "sent no heartbeat" in ended.reason


def test_an_abort_reaches_everybody_with_its_reason(client: Client, attend: Callable[..., Attendance]) -> None:
    replies = client.join_all(2)
    streams = [attend(reply) for reply in replies]
    client.stub.Abort(join.AbortRequest(member=member_of(replies[0]), reason="the loss is NaN"), timeout=PATIENCE_S)
    for stream in streams:
        ended = stream.wait_ended()
        assert ended.cause == join.JobEnded.ABORTED_BY_WORKER
        assert ended.reason == "rank 0 (host-0, process 1000) ended the job: the loss is NaN"


def test_after_all_have_left_the_same_name_works_at_once(
    client: Client, driver: RecordingDriver, attend: Callable[..., Attendance]
) -> None:
    for job in (1, 2, 3):
        replies = client.join_all(2)
        assert {reply.job for reply in replies} == {job}
        streams = [attend(reply, round_newest=1000) for reply in replies]
        for reply in replies:
            client.stub.Leave(member_of(reply), timeout=PATIENCE_S)
        wait_until(lambda: client.slots_free() == 4096, "the lease is free")
        wait_until(
            lambda streams=streams: all(stream.status is grpc.StatusCode.OK for stream in streams),  # type: ignore[misc]
            "the service has closed the streams",
        )
        assert [stream.ended for stream in streams] == [None, None]
    firsts = [entry.round_first for entry in driver.entries]
    assert firsts == sorted(set(firsts)), "each lease starts with newer rounds"


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_two_hundred_jobs_leave_nothing_behind(client: Client, driver: RecordingDriver) -> None:
    def one_job() -> None:
        replies = client.join_all(2)
        streams = [Attendance(client, reply) for reply in replies]
        for reply in replies:
            client.stub.Leave(member_of(reply), timeout=PATIENCE_S)
        for stream in streams:
            stream.hang_up()
        wait_until(lambda: not client.jobs(), "the job is gone")

    one_job()
    threads = threading.active_count()
    descriptors = _open_files()
    for _ in range(200):
        one_job()
    assert client.slots_free() == 4096
    assert driver.admitted == {}
    assert len({entry.job for entry in driver.entries}) == driver.sizes.jobs_max, "all numbers had their turn"
    wait_until(lambda: threading.active_count() <= threads, "the threads of the streams have ended")
    assert _open_files() <= descriptors + 4


def test_a_blocked_switch_does_not_stop_heartbeats(
    client: Client, driver: RecordingDriver, attend: Callable[..., Attendance]
) -> None:
    stream = attend(client.join())
    driver.released.clear()
    waiting = client.join_soon(job_name="another")
    wait_until(lambda: driver.calls[-1][0] == "admit" and len(driver.calls) == 2, "the switch is being told")
    pulses = stream.pulses
    wait_until(lambda: stream.pulses >= pulses + 40, "many pulses, over more than the time after which one is lost")
    assert stream.ended is None
    driver.released.set()
    assert waiting.result().job == 2


def test_a_failed_eviction_is_tried_again(client: Client, driver: RecordingDriver) -> None:
    driver.evictions_to_fail = 1
    reply = client.join()
    client.stub.Leave(member_of(reply), timeout=PATIENCE_S)
    wait_until(lambda: client.slots_free() == 4096, "the lease is free after all")
    assert [call for call, _ in driver.calls].count("evict") == 2


def test_diagnosis_says_what_the_switch_saw_of_whom(client: Client, attend: Callable[..., Attendance]) -> None:
    replies = client.join_all(2)
    for reply in replies:
        attend(reply)
    client.stub.Leave(member_of(replies[1]), timeout=PATIENCE_S)
    diagnosis = client.stub.Diagnose(member_of(replies[0]), timeout=PATIENCE_S)
    assert [worker.peer.host_name for worker in diagnosis.workers] == ["host-0", "host-1"]
    assert [worker.tensor_last for worker in diagnosis.workers] == [0, 1]
    assert [worker.contributions for worker in diagnosis.workers] == [5, 5]
    assert [worker.left for worker in diagnosis.workers] == [False, True]


def test_the_list_shows_forming_and_running_jobs_with_their_counters(client: Client) -> None:
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


def test_without_its_token_nobody_speaks_for_a_worker(client: Client, attend: Callable[..., Attendance]) -> None:
    reply = client.join()
    stream = attend(reply)
    forged = join.Member(job=reply.job, worker=reply.worker, token="0" * 32)
    for call in (
        lambda: client.stub.Leave(forged, timeout=PATIENCE_S),
        lambda: client.stub.Diagnose(forged, timeout=PATIENCE_S),
        lambda: client.stub.Abort(join.AbortRequest(member=forged), timeout=PATIENCE_S),
        lambda: list(client.stub.Attend(iter([join.Heartbeat(member=forged)]), timeout=PATIENCE_S)),
        lambda: client.stub.Leave(join.Member(), timeout=PATIENCE_S),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert refusal_of(caught.value)[0] == "NOT_FOUND"
    assert stream.ended is None


def test_an_attend_stream_that_says_nothing_is_closed(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(client.stub.Attend(iter([]), timeout=PATIENCE_S))
    assert refusal_of(caught.value)[0] == "INVALID_ARGUMENT"


def test_noise_on_the_port_disturbs_nobody(client: Client, attend: Callable[..., Attendance]) -> None:
    stream = attend(client.join())
    noise = random.Random(1)
    address = ("127.0.0.1", int(client.target.rpartition(":")[2]))
    for length in (0, 1, 23, 24, 4096, 100_000):
        with socket.create_connection(address, timeout=PATIENCE_S) as connection:
            for start in (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
                try:
                    connection.sendall(start + noise.randbytes(length))
                except OSError:  # the server has hung up already, as it may
                    break
    pulses = stream.pulses
    wait_until(lambda: stream.pulses > pulses, "heartbeats are answered")
    assert client.join(job_name="after the noise").workers == 1


def test_a_message_that_is_not_one_is_an_error_of_its_sender(client: Client) -> None:
    for method in ("Join", "Leave", "Abort", "Diagnose"):
        call = client.channel.unary_unary(f"/wiresum.join.v1.JoinService/{method}")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"\xff" * 50, timeout=PATIENCE_S)
        assert refusal_of(caught.value)[0] in ("UNKNOWN", "INTERNAL")
    assert client.join().workers == 1


def test_a_worker_that_sends_nonsense_on_its_stream_is_lost(client: Client, attend: Callable[..., Attendance]) -> None:
    replies = client.join_all(2)
    stream = attend(replies[0])
    nonsense = [join.Heartbeat(member=member_of(replies[1])).SerializeToString(), b"\xff" * 50]
    events = client.channel.stream_stream("/wiresum.join.v1.JoinService/Attend")(iter(nonsense), timeout=PATIENCE_S)
    assert stream.wait_ended().worker.rank == 1
    events.cancel()


def test_an_oversized_message_is_refused_unread(client: Client) -> None:
    code, _ = client.refusal(job_name="x" * 100_000)
    assert code == "RESOURCE_EXHAUSTED"
    assert client.jobs() == []


def test_a_flood_of_joins_is_bounded_by_the_jobs_of_the_switch(client: Client, driver: RecordingDriver) -> None:
    client.join_all(2, job_name="one that was there")
    flood = [client.join_soon(job_name=f"flood {n}", world_size=2, timeout_ms=1000) for n in range(200)]
    codes = [refusal_of(join_call.exception(PATIENCE_S))[0] for join_call in flood]
    assert codes.count("RESOURCE_EXHAUSTED") >= 200 - driver.sizes.jobs_max
    assert set(codes) == {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
    wait_until(lambda: len(client.jobs()) == 1, "only the one that was there is left")


def test_a_port_in_use_is_a_clear_error(server: JoinServer, driver: RecordingDriver) -> None:
    with pytest.raises(OSError, match="is another switch running there"):
        JoinServer(driver).start("127.0.0.1", server.port)


def test_stopping_tells_the_workers_and_a_new_server_can_take_the_port(
    server: JoinServer, driver: RecordingDriver, client: Client, attend: Callable[..., Attendance]
) -> None:
    stream = attend(client.join())
    waiting = client.join_soon(job_name="forming", world_size=2)
    wait_until(lambda: len(client.jobs()) == 2, "both are there")
    server.stop(PATIENCE_S)
    ended = stream.wait_ended()
    assert ended.cause == join.JobEnded.SWITCH_LOST
    assert ended.reason == "the switch was stopped"
    with pytest.raises(grpc.RpcError) as caught:
        waiting.result(PATIENCE_S)
    assert refusal_of(caught.value)[0] == "UNAVAILABLE"
    assert driver.admitted == {}
    server.stop()
    again = JoinServer(driver)
    assert again.start("127.0.0.1", server.port) == server.port
    second = Client(server.port)
    assert second.join().workers == 1
    second.close()
    again.stop(0.1)


def test_stopping_is_bounded_when_the_switch_hangs(server: JoinServer, driver: RecordingDriver, client: Client) -> None:
    driver.released.clear()
    waiting = client.join_soon()
    wait_until(lambda: bool(driver.calls), "the switch is being told")
    server.stop(0.2)
    assert "wiresum-join-service" not in {thread.name for thread in threading.enumerate()}
    driver.released.set()
    with pytest.raises(grpc.RpcError):
        waiting.result(PATIENCE_S)


def test_a_server_starts_once(server: JoinServer) -> None:
    with pytest.raises(RuntimeError, match="make a new one"):
        server.start("127.0.0.1", 0)
