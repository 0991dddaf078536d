"""Sessions over a real software switch and a real join service, in one process."""

from __future__ import annotations

import array
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from wiresum.agent import (
    AgentConfig,
    CollectiveTimeoutError,
    DivergedError,
    Dtype,
    ImpossibleSumError,
    JobAbortedError,
    Region,
    Session,
    SessionClosedError,
    SwitchUnreachableError,
    WiresumError,
    WorkerLeftError,
    causes,
)
from wiresum.agent.aggregators import Bind
from wiresum.agent.job_membership import JobMembership
from wiresum.controller import Endpoint, JoinServer
from wiresum.controller.p4runtime import STANDBY_ID, P4RuntimeSwitch, Target, device_config
from wiresum.switch import SoftwareSwitch
from wiresum.switch.p4runtime import P4RuntimeServer
from wiresum_lab.doubles.controller import Client, RecordingDriver
from wiresum_lab.processes import PATIENCE_S, unused_port

HOST = "127.0.0.1"


@pytest.fixture
def start_switch() -> Iterator[Callable[..., str]]:
    """Starts a switch, and gives its control endpoint."""
    with ExitStack() as stack:

        def start(**settings: object) -> str:
            switch = SoftwareSwitch(**({"bind": HOST, "port": 0, "threads": 1, "slots": 512} | settings))  # type: ignore[arg-type]
            stack.callback(switch.close)
            server = JoinServer(switch)
            stack.callback(server.stop, 1.0)
            return f"{HOST}:{server.start(HOST, 0)}"

        yield start


@pytest.fixture
def control(start_switch: Callable[..., str]) -> str:
    """The control endpoint of a switch."""
    return start_switch()


def join_all(control: str, size: int, name: str = "test", **settings: object) -> list[Session]:
    config = AgentConfig(switch=control, join_timeout_s=PATIENCE_S, **settings)  # type: ignore[arg-type]

    def join(rank: int) -> Session:
        return Session.join(config, job_name=name, rank=rank, world_size=size)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(join, range(size)))


@pytest.fixture
def job(control: str) -> Iterator[Callable[..., list[Session]]]:
    made: list[Session] = []

    def make(size: int, **settings: object) -> list[Session]:
        sessions = join_all(control, size, **settings)
        made.extend(sessions)
        return sessions

    yield make
    for session in made:
        session.close()


def whole(values: array.array[int]) -> Region:
    address, elements = values.buffer_info()
    return Region(address, address, elements)


def test_members_of_a_job_sum_exactly_and_count_what_they_sent(job: Callable[..., list[Session]]) -> None:
    sessions = job(3)
    data = [array.array("i", range(rank, 5000 + rank)) for rank in range(3)]
    operations = [
        session.submit([whole(values)], dtype=Dtype.I32) for session, values in zip(sessions, data, strict=True)
    ]
    for operation in operations:
        operation.wait(PATIENCE_S)
    assert all(list(values) == [3 * i + 3 for i in range(5000)] for values in data)
    stats = sessions[0].stats()
    assert stats.results >= 14
    assert stats.bytes_sent >= 4 * 5000
    assert stats.round_newest >= 1


@pytest.mark.parametrize("dtype", [Dtype.I32, Dtype.F32, Dtype.RAW])
def test_a_null_pointer_is_refused_where_none_says_that_a_worker_has_no_part(
    job: Callable[..., list[Session]], dtype: Dtype
) -> None:
    sessions = job(2)
    for elements in (1, 5000, 500_000):
        values = array.array("i", [7]) * elements
        address, _ = values.buffer_info()
        for source, destination in ((0, 0), (0, address), (address, 0), (0, None), (None, 0)):
            with pytest.raises(ValueError, match=f"of {elements} elements is a null pointer"):
                sessions[0].submit([Region(source, destination, elements)], dtype=dtype)
        empty = Region(0, 0, 0)
        got = array.array("i", bytes(4 * elements))
        gives, takes = Region(address, None, elements), Region(None, got.buffer_info()[0], elements)
        both = zip(sessions, (gives, takes), strict=True)
        for operation in [session.submit([region, empty], dtype=dtype) for session, region in both]:
            operation.wait(PATIENCE_S)
        count = elements // 4 if dtype is Dtype.RAW else elements
        assert got[:count] == values[:count]


def test_jobs_of_one_thread_are_spread_over_the_threads_of_the_switch() -> None:
    with ExitStack() as stack:
        switch = SoftwareSwitch(bind=HOST, port=0, threads=4, slots=512)
        stack.callback(switch.close)
        server = JoinServer(switch)
        stack.callback(server.stop, 1.0)
        control = f"{HOST}:{server.start(HOST, 0)}"
        jobs = [join_all(control, 2, name=f"job-{number}", threads=1, slots=64) for number in range(4)]
        for sessions in jobs:
            for session in sessions:
                stack.callback(session.close)
        data = [[array.array("i", range(r + j, 5000 + r + j)) for r in range(2)] for j in range(4)]
        operations = [
            session.submit([whole(values)], dtype=Dtype.I32)
            for sessions, tensors in zip(jobs, data, strict=True)
            for session, values in zip(sessions, tensors, strict=True)
        ]
        for operation in operations:
            operation.wait(PATIENCE_S)
        for job, tensors in enumerate(data):
            assert all(list(values) == [2 * (i + job) + 1 for i in range(5000)] for values in tensors)
        assert min(switch.stats().received_by_thread) >= 28, "14 packets of each of a job's workers"


def test_only_data_ports_within_the_configured_range_are_used(control: str) -> None:
    first = unused_port(4)
    ports = f"{first}-{first + 3}"
    sessions = join_all(control, 2, threads=2, ports=ports)
    client = Client(int(control.rpartition(":")[2]))
    try:
        (listed,) = client.jobs()
        base = int(ports.partition("-")[0])
        assert sorted(worker.endpoint.port for worker in listed.workers) == [base, base + 2]
        with pytest.raises(
            OSError, match=r"no 2 consecutive UDP ports from 127.0.0.1:\d+ to \d+ are free.*WIRESUM_PORTS"
        ):
            Session.join(AgentConfig(switch=control, threads=2, ports=ports), job_name="more", rank=0, world_size=1)
        data = [array.array("i", [rank + 1] * 10_000) for rank in range(2)]
        for operation in [s.submit([whole(d)], dtype=Dtype.I32) for s, d in zip(sessions, data, strict=True)]:
            operation.wait(PATIENCE_S)
        assert set(data[0]) == {3}
    finally:
        client.close()
        for session in sessions:
            session.close()


@pytest.mark.parametrize("settings", [{"threads": 4}, {"lanes": 64}, {"slots": 16}, {"offload": False}])
def test_settings_reach_the_data_path(job: Callable[..., list[Session]], settings: dict[str, object]) -> None:
    sessions = job(2, **settings)
    assert sessions[0].threads == settings.get("threads", sessions[0].threads)
    assert sessions[0].lanes == settings.get("lanes", 360)
    data = [array.array("i", [rank + 1] * 100_000) for rank in range(2)]
    for operation in [s.submit([whole(values)], dtype=Dtype.I32) for s, values in zip(sessions, data, strict=True)]:
        operation.wait(PATIENCE_S)
    assert set(data[0]) == set(data[1]) == {3}


def test_a_job_over_several_switches_has_counters_for_each(start_switch: Callable[..., str]) -> None:
    group = start_switch(slots=128, multicast="239.192.8.0")
    endpoints = [start_switch(), start_switch(slots=64), group]
    sessions = join_all("+".join(endpoints), 3, threads=1)
    try:
        before = [session.stats() for session in sessions]
        data = [array.array("i", range(rank, 300 * 360 + rank)) for rank in range(3)]
        for operation in [s.submit([whole(v)], dtype=Dtype.I32) for s, v in zip(sessions, data, strict=True)]:
            operation.wait(PATIENCE_S)
        assert all(list(values) == [3 * i + 3 for i in range(300 * 360)] for values in data)
        for session, earlier in zip(sessions, before, strict=True):
            stats = session.stats()
            assert (session.threads, session.world_size) == (3, 3)
            assert [part.switch for part in stats.aggregators] == sorted(endpoints)
            parts = zip(stats.aggregators, earlier.aggregators, strict=True)
            assert [now.results - then.results for now, then in parts] == [100, 100, 100]
            assert [part.switch for part in stats.aggregators if part.by_group] == [group]
            assert stats.results == sum(part.results for part in stats.aggregators)
            assert stats.bytes_sent == sum(part.bytes_sent for part in stats.aggregators)
        sparse = sparse_sums(sessions)
        assert sparse[0] == sparse[1] == sparse[2]
        assert sessions[0].stats().sparse.streams == 1
    finally:
        for session in sessions:
            session.close()


def test_the_first_sum_detects_chunks_that_went_to_different_switches(
    start_switch: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers join the aggregators in the same order, but deal chunks to them in different orders."""
    config = AgentConfig(switch="+".join(start_switch() for _ in range(2)), threads=1, join_timeout_s=PATIENCE_S)
    dealt = JobMembership.join

    def join(rank: int) -> Session:
        return Session.join(config, job_name="test", rank=rank, world_size=2)

    def deal_in_turn(member: JobMembership, bind: Bind) -> list[tuple[str, dict[str, str]]]:
        ports: list[int] = []

        def bind_in_turn(address: str, count: int, within: tuple[int, int]) -> int:
            ports[:] = ports or [bind(address, count, within) for _ in range(2)]
            return ports.pop()

        *aggregators, joined = dealt(member, bind_in_turn if member._rank else bind)
        return [*(aggregators[::-1] if member._rank else aggregators), joined]

    monkeypatch.setattr(JobMembership, "join", deal_in_turn)
    with ThreadPoolExecutor(2) as pool:
        errors = [one.exception(PATIENCE_S) for one in [pool.submit(join, rank) for rank in range(2)]]
    assert all(isinstance(error, WiresumError) for error in errors)
    assert any("call the aggregators by the same names" in str(error) for error in errors)


def driven_over_p4runtime(switch: SoftwareSwitch, multicast: str, cleanup: ExitStack) -> P4RuntimeSwitch:
    server = P4RuntimeServer(switch, device_id=0)
    cleanup.callback(server.stop)
    target = Target(
        name="soft",
        kind="software",
        p4runtime=f"{HOST}:{server.start(f'{HOST}:0')}",
        device=0,
        pipeline=device_config.software(lanes=switch.sizes.lanes_max, slots=switch.sizes.slots),
        address=switch.endpoint.address,
        port=switch.endpoint.port,
        multicast=multicast,
    )
    driver = cleanup.enter_context(closing(P4RuntimeSwitch(target, election_id=STANDBY_ID + 1)))
    driver.wait_ready()
    driver.reconcile([])
    return driver


@pytest.mark.parametrize("by", ["the service", "a controller"])
def test_results_arrive_by_multicast_if_the_switch_uses_it(by: str) -> None:
    elements, rounds, multicast = 100_000, 3, "239.192.7.0"
    with ExitStack() as cleanup:
        own = {"multicast": multicast} if by == "the service" else {}
        switch = cleanup.enter_context(closing(SoftwareSwitch(bind=HOST, port=0, threads=1, slots=512, **own)))
        server = JoinServer(switch if own else driven_over_p4runtime(switch, multicast, cleanup))
        cleanup.callback(server.stop, 1.0)
        sessions = join_all(f"{HOST}:{server.start(HOST, 0)}", 3, threads=2)
        for _ in range(rounds):
            data = [array.array("i", [rank + 1] * elements) for rank in range(3)]
            submitted = [s.submit([whole(v)], dtype=Dtype.I32) for s, v in zip(sessions, data, strict=True)]
            for operation in submitted:
                operation.wait(PATIENCE_S)
            assert all(set(values) == {6} for values in data)
        results = sum(session.stats().results for session in sessions)
        assert sum(session.stats().by_group for session in sessions) >= results - 3 * switch.stats().packets["resent"]
        for session in sessions:
            session.close()
        stats = switch.stats()
        assert stats.results >= rounds * elements / 360
        assert results == 3 * stats.results  # each worker has had each result ...
        assert stats.datagrams_sent == stats.results + stats.packets["resent"]  # ... that was sent once


def sparse_sums(sessions: list[Session], **options: object) -> list[array.array[float]]:
    """Sums a tensor of 300 blocks, of which each worker has three that are not zero."""
    data = [array.array("f", [0.0] * (300 * 360)) for _ in sessions]
    for rank, values in enumerate(data):
        for block in (10 + rank, 100, 200 + rank):
            values[360 * block] = 1.0 + rank
    operations = [
        session.submit([whole(values)], dtype=Dtype.F32, may_be_sparse=True, **options)  # type: ignore[arg-type]
        for session, values in zip(sessions, data, strict=True)
    ]
    for operation in operations:
        operation.wait(PATIENCE_S)
    return data


def test_a_sparse_tensor_is_summed_and_statistics_count_the_saving(job: Callable[..., list[Session]]) -> None:
    sessions = job(2)
    before = sessions[0].stats()
    data = sparse_sums(sessions)
    assert data[0] == data[1]
    nonzero = {i: value for i, value in enumerate(data[0]) if value}
    assert nonzero == {360 * block: value for block, value in ((10, 1), (11, 2), (100, 3), (200, 1), (201, 2))}
    stats = sessions[0].stats()
    sparse = stats.sparse
    assert (sparse.prologues, sparse.streams, sparse.whole) == (1, 1, 0)
    assert (sparse.blocks_skipped, sparse.blocks_empty) == (295, 2)
    assert sparse.bytes_saved == 295 * 1464 + 2 * 1440 - 1464
    assert stats.bytes_sent - before.bytes_sent < 10 * 1464


@pytest.mark.parametrize("word", [-1, 1 << 31])
def test_a_worker_whose_counts_are_none_ends_the_job_with_an_error(
    job: Callable[..., list[Session]], word: int
) -> None:
    *honest, hostile = job(4)
    blocks, signature, prologue = 300, 77, 0x5A5A
    tensors = [array.array("f", [0.0] * (blocks * 360)) for _ in honest]
    operations = [
        session.submit([whole(values)], dtype=Dtype.F32, may_be_sparse=True, signature=signature)
        for session, values in zip(honest, tensors, strict=True)
    ]
    counted = blocks + 32 * 33  # and the sample's; four workers' counts have 3 bits each, ten in a word
    words = array.array("i", [0] * -(-counted // 10))
    words[-1] = word if word < 2**31 else word - 2**32
    hostile.submit([whole(words)], dtype=Dtype.I32, signature=signature ^ prologue)
    for operation in operations:
        with pytest.raises((ImpossibleSumError, JobAbortedError), match="a sum came back that the workers cannot"):
            operation.wait(PATIENCE_S)


def test_with_sparsity_turned_off_every_block_is_sent(job: Callable[..., list[Session]]) -> None:
    sessions = job(2, sparse=False)
    data = sparse_sums(sessions)
    assert data[0] == data[1]
    stats = sessions[0].stats().sparse
    assert (stats.prologues, stats.streams, stats.whole) == (0, 0, 0)


def test_wait_completed_returns_each_operation_once(job: Callable[..., list[Session]]) -> None:
    (session,) = job(1)
    values = array.array("i", [7] * 10)
    tokens = {session.submit([whole(values)], dtype=Dtype.I32).token for _ in range(20)}
    seen: list[int] = []
    while len(seen) < len(tokens):
        completed = session.wait_completed(PATIENCE_S)
        assert all(operation.done() and operation.error is None for operation in completed)
        seen += [operation.token for operation in completed]
    assert set(seen) == tokens
    assert len(seen) == len(tokens)


def test_an_operation_can_ask_later_to_be_returned_by_wait_completed(job: Callable[..., list[Session]]) -> None:
    (session,) = job(1)
    values = array.array("i", [7] * 10)
    operation = session.submit([whole(values)], dtype=Dtype.I32, notify=False)
    operation.wait(PATIENCE_S)
    assert session.wait_completed(0.01) == []
    session.notify(operation)
    session.notify(operation)
    (completed,) = session.wait_completed(PATIENCE_S)
    assert completed.token == operation.token
    assert session.wait_completed(0.01) == []


def test_other_workers_hear_of_a_failure_that_was_not_waited_for(job: Callable[..., list[Session]]) -> None:
    failing, other = job(2)
    failing.submit([], dtype=Dtype.I32, timeout_s=0.1)
    deadline = time.monotonic() + PATIENCE_S
    while other.failure is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert isinstance(failing.failure, CollectiveTimeoutError)
    assert isinstance(other.failure, JobAbortedError) and "Timed out" in other.failure.reason


def test_a_wait_that_times_out_leaves_the_operation_running(job: Callable[..., list[Session]]) -> None:
    early, late = job(2)
    operation = early.submit([], dtype=Dtype.I32)
    with pytest.raises(TimeoutError):
        operation.wait(0.05)
    late.submit([], dtype=Dtype.I32).wait(PATIENCE_S)
    operation.wait(PATIENCE_S)


def test_a_collective_that_one_worker_never_calls_times_out_and_names_it(job: Callable[..., list[Session]]) -> None:
    present, absent = job(2)
    operation = present.submit([], dtype=Dtype.I32, timeout_s=0.3)
    with pytest.raises(CollectiveTimeoutError, match="rank 1"):
        operation.wait(PATIENCE_S)
    # The first cause ends the job for all, and stays the cause.
    with pytest.raises(CollectiveTimeoutError):
        present.submit([], dtype=Dtype.I32)
    deadline = time.monotonic() + PATIENCE_S
    while absent.failure is None and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(JobAbortedError, match="Timed out"):
        absent.submit([], dtype=Dtype.I32)


def test_workers_that_call_different_collectives_get_an_error(job: Callable[..., list[Session]]) -> None:
    sessions = job(2)
    values = [array.array("i", [1] * 1000) for _ in sessions]
    operations = [
        session.submit([whole(own)], dtype=Dtype.I32, signature=number)
        for number, (session, own) in enumerate(zip(sessions, values, strict=True))
    ]
    for operation in operations:
        with pytest.raises(WiresumError, match="different collectives") as caught:
            operation.wait(PATIENCE_S)
        # The second worker to notice may first hear of it from the other one.
        assert isinstance(caught.value, DivergedError | JobAbortedError)


def test_abort_ends_the_job_at_every_worker_with_its_reason(job: Callable[..., list[Session]]) -> None:
    one, other = job(2)
    waiting = other.submit([], dtype=Dtype.I32)
    one.abort("the loss is not a number")
    with pytest.raises(JobAbortedError, match="the loss is not a number"):
        waiting.wait(PATIENCE_S)


@pytest.mark.slow
def test_operations_that_need_a_worker_that_left_end(job: Callable[..., list[Session]]) -> None:
    leaving, staying = job(2)
    leaving.close()
    with pytest.raises(WorkerLeftError, match=r"rank 0 .* left") as caught:
        staying.submit([], dtype=Dtype.I32).wait(PATIENCE_S)
    assert (caught.value.rank, caught.value.address) == (0, "127.0.0.1")
    with pytest.raises(WorkerLeftError):
        staying.submit([], dtype=Dtype.I32)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["aborts", "aborts and closes", "times out"])
def test_why_one_has_ended_the_job_while_its_switch_was_away_is_heard_by_the_others(how: str) -> None:
    """Nobody tells them that the switch is lost, and the next one does not know the job."""
    with ExitStack() as stack:

        def serve(port: int) -> tuple[int, JoinServer]:
            switch = stack.enter_context(closing(SoftwareSwitch(bind=HOST, port=0, threads=1, slots=512)))
            server = JoinServer(switch)
            stack.callback(server.stop, 0.0)
            return server.start(HOST, port), server

        port, server = serve(0)
        sessions = join_all(f"{HOST}:{port}", 2, fallback="off")
        closing_one = threading.Thread(target=sessions[0].close)
        server.stop(0.0, keep_jobs=True)
        if how == "times out":
            with pytest.raises(CollectiveTimeoutError):
                sessions[0].submit([], dtype=Dtype.I32, timeout_s=0.1).wait(PATIENCE_S)
            reason = "Timed out waiting for collective number"
        else:
            sessions[0].abort("the loss is NaN")
            reason = "the loss is NaN"
        if how == "aborts and closes":
            closing_one.start()
        serve(port)
        with pytest.raises(JobAbortedError, match=f"rank 0 .*ended the job: .*{reason}"):
            for _ in range(2):  # the first one may complete with what rank 0 has sent
                sessions[1].submit([], dtype=Dtype.I32).wait(PATIENCE_S)
        if how == "aborts and closes":
            closing_one.join(PATIENCE_S)
            assert not closing_one.is_alive()
        for session in sessions:
            session.close()


def test_close_is_final_and_idempotent(job: Callable[..., list[Session]]) -> None:
    session, _ = job(2)
    pending = session.submit([], dtype=Dtype.I32)
    session.close()
    session.close()
    with pytest.raises(SessionClosedError):
        pending.wait(PATIENCE_S)
    with pytest.raises(SessionClosedError):
        session.submit([], dtype=Dtype.I32)


def test_the_next_job_gets_the_slots_of_a_closed_one(control: str) -> None:
    for _ in range(5):
        for session in join_all(control, 2, slots=512):
            session.close()


def test_a_data_port_without_a_listener_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes, "GREETING_TIMEOUT_S", 0.5)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as held:
        held.bind((HOST, 0))  # keeps the port from other processes,
        held.connect((HOST, 9))  # and refuses what does not come from this address
        port = held.getsockname()[1]
        driver = RecordingDriver()
        driver.endpoint = Endpoint(HOST, port)
        server = JoinServer(driver)
        control_port = server.start(HOST, 0)
        try:
            with pytest.raises(SwitchUnreachableError, match=rf"UDP {HOST}:{port}.*refused"):
                join_all(f"{HOST}:{control_port}", 1)
        finally:
            server.stop(1.0)


def test_a_data_path_that_swallows_packets_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes, "GREETING_TIMEOUT_S", 0.5)
    driver = RecordingDriver()
    server = JoinServer(driver)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind((HOST, 0))
        driver.endpoint = Endpoint(HOST, silent.getsockname()[1])
        control_port = server.start(HOST, 0)
        try:
            with pytest.raises(SwitchUnreachableError, match="firewall"):
                join_all(f"{HOST}:{control_port}", 1)
        finally:
            server.stop(1.0)


def test_an_address_that_does_not_resolve_is_named() -> None:
    config = AgentConfig(switch="no-such-host.invalid:1234", join_timeout_s=1.0)
    with pytest.raises(SwitchUnreachableError, match="no-such-host"):
        Session.join(config, job_name="test", rank=0, world_size=1)


SHRINK = """
import array, contextlib, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from wiresum.agent import AgentConfig, Dtype, Region, Session, WiresumError
from wiresum.controller import JoinServer
from wiresum.switch import SoftwareSwitch

def mtu(size):
    subprocess.run(["ip", "link", "set", "lo", "up", "mtu", str(size)], check=True)

def sum_all(sessions):
    data = [array.array("i", [rank] * 4000) for rank in range(2)]
    regions = [Region(values.buffer_info()[0], values.buffer_info()[0], 4000) for values in data]
    operations = [session.submit([region], dtype=Dtype.I32) for session, region in zip(sessions, regions)]
    for operation in operations:
        operation.wait(20)
    assert set(data[0]) == {1}

mtu(1500)
switch = SoftwareSwitch(bind="127.0.0.1", port=0, threads=1, slots=512)
server = JoinServer(switch)
config = AgentConfig(switch=f"127.0.0.1:{server.start('127.0.0.1', 0)}", offload=sys.argv[1] == "offload")
with ThreadPoolExecutor(2) as pool:
    sessions = list(pool.map(lambda rank: Session.join(config, job_name="j", rank=rank, world_size=2), range(2)))
sum_all(sessions)
mtu(1000)
try:
    sum_all(sessions)
except WiresumError as error:
    print(error)
for session in sessions:
    session.close()
server.stop()
switch.close()
"""


@pytest.mark.parametrize("offload", ["offload", "plain"])
def test_a_path_mtu_that_shrinks_is_reported_at_once_with_what_fits(offload: str) -> None:
    name = f"wiresum-{uuid.uuid4().hex[:8]}"
    if (
        shutil.which("ip") is None
        or subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs `ip` of iproute2, and root")
    try:
        command = ["ip", "netns", "exec", name, sys.executable, "-c", SHRINK, offload]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)
    assert "IP packets of 1492 bytes do not fit" in done.stdout, done.stderr
    assert "the MTU there is 1000 now" in done.stdout
    assert "WIRESUM_LANES=232" in done.stdout
