"""The service as workers see it: real gRPC over loopback, in front of a switch that records its calls."""

from __future__ import annotations

import asyncio
import errno
import gc
import queue
import random
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from wiresum import join
from wiresum.agent.control import ask_again_after_s
from wiresum.cli.service import Service
from wiresum.controller import JoinServer, Limits, SwitchSizes
from wiresum.controller.jobs.job import Job, Members, Terms
from wiresum.controller.service.effects import Times
from wiresum_lab.clocks.by_hand import FrozenClock
from wiresum_lab.doubles.controller import Attendance, Client, RecordingDriver, join_request, member_of, refusal_of
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until


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


def let_pass(server: JoinServer, clock: FrozenClock, seconds: float, *streams: Attendance) -> None:
    """Meanwhile these beat."""
    for _ in range(round(2 * seconds)):
        pulses = [stream.pulses for stream in streams]
        clock.pass_at(server, 0.5)

        def go_on(pulses: Sequence[int] = pulses) -> bool:
            return all(each.pulses > n or each.ended for each, n in zip(streams, pulses, strict=True))

        wait_until(go_on, "they beat on, or have heard of an end")


def test_ended_jobs_come_in_pages_and_a_command_gets_them_all(server: JoinServer, client: Client) -> None:
    assert server._operators is not None
    names = [f"job-{number}" for number in range(60)]
    for name in names:
        server._operators._jobs.history.note_given_up(Job(name, 0.0, Terms(), Members(1)), "r" * 1000, 1.0)
    first = client.operator.ListEnded(join.ListEndedRequest(), timeout=PATIENCE_S)
    assert first.ByteSize() < 1.1 * join.PAGE_BYTES_MAX
    assert first.next_page
    with Service(f"127.0.0.1:{server.port}") as service:
        assert [job.name for job in service.ended().jobs] == names[::-1]


def resumed_request(**fields: object) -> join.JoinRequest:
    said = join.Resumed(slots=16, threads=1, lanes=90, positions=bytes(64), reason="it was lost", job_id=bytes(16))
    return join_request(world_size=2, threads_max=1, lanes_max=90, resumed=said, **fields)


@pytest.mark.parametrize("limits", [Limits(positions_tenant_bytes_max=100)])
def test_a_worker_asks_again_where_there_is_no_room_yet_for_its_positions(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(client.stub.Join(resumed_request(), timeout=PATIENCE_S))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert ask_again_after_s(caught.value) == 1.0


def test_large_messages_are_not_held_while_their_calls_last(client: Client) -> None:
    """A thousand calls may wait, and each message may have 144 KiB."""

    def held() -> int:
        """Those of this test: others in this process may hold theirs."""
        requests = (each for each in gc.get_objects() if isinstance(each, join.JoinRequest))
        beats = (each for each in gc.get_objects() if isinstance(each, join.Heartbeat))
        of_join = sum(each.job_name == "large" and bool(each.resumed.positions) for each in requests)
        return of_join + sum(each.member.switch_name == "s" * 1000 for each in beats)

    ask = client.channel.unary_stream("/wiresum.join.v1.JoinService/Join")
    waiting = ask(resumed_request(job_name="large").SerializeToString())
    wait_until(lambda: [job.joined for job in client.jobs()] == [1], "it waits for the other worker")
    wait_until(lambda: held() == 0, "the request is not held")
    waiting.cancel()
    member = member_of(client.join(job_name="other"))
    member.switch_name = "s" * 1000
    beats = queue.SimpleQueue[bytes | None]()
    stream = client.channel.stream_stream("/wiresum.join.v1.JoinService/Attend")(iter(beats.get, None))
    for _ in range(3):  # the service waits for a fourth
        beats.put(join.Heartbeat(member=member).SerializeToString())
        next(stream)
        wait_until(lambda: held() == 0, "no heartbeat is held")
    beats.put(None)


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
def test_the_others_are_told_who_is_missing_when_a_waiting_worker_goes_away(client: Client) -> None:  # R7.2
    staying = client.join_soon(rank=0, world_size=3)
    going = client.join_soon(rank=1, world_size=3)
    wait_until(lambda: [job.joined for job in client.jobs()] == [2], "two are waiting")
    going.cancel()
    code, text = staying.refusal()
    assert code == "ABORTED"
    assert "rank 1 (127.0.0.1, process 1001 on 'host-1') went away" in text
    assert "ranks 1, 2 of 3" in text


@pytest.mark.parametrize("wrong", [{"world_size": 4}, {"protocol_version": 1}], ids=["in the job", "in the request"])
def test_the_report_says_why_a_worker_that_others_wait_for_was_refused(client: Client, wrong: dict[str, int]) -> None:
    waiting = client.join_soon(rank=0, world_size=3)
    wait_until(lambda: [job.joined for job in client.jobs()] == [1], "one is waiting")
    _, text = client.join_soon(**{"rank": 1, "world_size": 3} | wrong).refusal()
    assert f"(rank 1, which called from 127.0.0.1, was refused: {text})" in client.jobs()[0].waiting
    waiting.cancel()


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


@pytest.mark.parametrize("sizes", [SwitchSizes(slots=4096, lanes_max=360, jobs_max=4)])
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
    for _ in range(8):
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


def test_a_switch_that_blocks_does_not_delay_heartbeats(
    server: JoinServer,
    client: Client,
    clock: FrozenClock,
    driver: RecordingDriver,
    attend: Callable[..., Attendance],
) -> None:
    stream = attend(client.join())
    driver.released.clear()
    waiting = client.join_soon(job_name="another")
    wait_until(lambda: driver.calls[-1] == ("admit", 2), "the switch is being told")
    let_pass(server, clock, 3.0, stream)
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


def test_a_worker_that_sends_invalid_heartbeats_is_lost(
    server: JoinServer, client: Client, clock: FrozenClock, attend: Callable[..., Attendance]
) -> None:
    replies = client.join_all(2)
    stream = attend(replies[0])
    nonsense = [join.Heartbeat(member=member_of(replies[1])).SerializeToString(), b"\xff" * 50]
    events = client.channel.stream_stream("/wiresum.join.v1.JoinService/Attend")(iter(nonsense), timeout=PATIENCE_S)
    wait_until(lambda: stream.ended, "it is lost", meanwhile=lambda: let_pass(server, clock, 0.5, stream))
    assert stream.wait_ended().worker.rank == 1
    events.cancel()


def test_a_port_in_use_is_a_clear_error(server: JoinServer, driver: RecordingDriver) -> None:
    with pytest.raises(OSError, match="does another one run there"):
        JoinServer(driver).start("127.0.0.1", server.port)


def test_a_service_that_gets_no_event_loop_does_not_start(
    driver: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process without descriptors."""

    def fails(serving: Coroutine[Any, Any, None]) -> None:
        serving.close()
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("asyncio.run", fails)
    with pytest.raises(OSError, match="Too many open files"):
        JoinServer(driver).start(port=0)


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


def test_the_report_has_all_fields(client: Client, attend: Callable[..., Attendance]) -> None:
    attend(client.join(tenant="vision"))
    client.refusal(world_size=0)
    report = client.report()
    (job,), (switch,) = report.jobs, report.switches
    assert (job.switch_name, job.tenant, job.priority) == ("recording switch", "vision", 0)
    assert (job.state, job.world_size, job.joined, job.results) == ("running", 1, 1, 1)
    assert (job.slots, job.lanes, job.threads) == (256, 360, 4)
    (worker,) = job.workers
    assert (worker.peer.host_name, worker.endpoint.port, worker.state) == ("host-0", 5000, "attending")
    assert (worker.contributions, worker.tensor_last) == (5, 0)
    assert worker.heartbeat_age_ms < 60_000
    assert (switch.kind, switch.state, switch.slots_free, switch.jobs) == ("software", "ready", 4096 - 256, 1)
    assert dict(switch.stray_packets) == {"unknown": 3}
    assert report.service.role == "active"
    assert dict(report.service.refusals) == {"invalid_argument": 1}


@pytest.mark.parametrize("times", [Times(count_s_max=0.1)])
def test_a_switch_that_does_not_give_its_counters_in_time_is_slow_and_takes_jobs(
    server: JoinServer, driver: RecordingDriver, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.join()
    wait_until(lambda: not client.jobs()[0].uncounted, "the switch gives its counters")
    assert client.jobs()[0].packets["admitted"] == 10
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
    wait_until(lambda: client.report().switches[0].state == "ready", "it is ready")
    assert "never retrieved" not in caplog.text
