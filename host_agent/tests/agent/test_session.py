"""Sessions over a real software switch and a real join service, in one process."""

from __future__ import annotations

import array
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from wiresum.agent import (
    AgentConfig,
    CollectiveTimeoutError,
    Dtype,
    ImpossibleSumError,
    JobAbortedError,
    Region,
    Session,
    SessionClosedError,
    WiresumError,
    WorkerLeftError,
)
from wiresum.agent.aggregators import Bind
from wiresum.agent.job_membership import JobMembership
from wiresum.controller import JoinServer, Limits
from wiresum.switch import SoftwareSwitch
from wiresum_lab.doubles.controller import Client
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import unused_port, wait_until

HOST = "127.0.0.1"


@pytest.fixture
def start_switch() -> Iterator[Callable[..., str]]:
    """Starts a switch, and gives its control endpoint."""
    with ExitStack() as stack:

        def start(**settings: object) -> str:
            switch = SoftwareSwitch(**({"bind": HOST, "port": 0, "threads": 1, "slots": 512} | settings))  # type: ignore[arg-type]
            stack.callback(switch.close)
            server = JoinServer(switch, Limits(leave_grace_ms=0))
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


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"threads": 4, "lanes": 64, "slots": 16, "transport": "udp:plain"},
        {"check_word": "1"},
        {"check_word": "1", "share": False},
    ],
)
def test_members_of_a_job_sum_exactly_and_count_what_they_sent(
    job: Callable[..., list[Session]], settings: dict[str, object]
) -> None:
    sessions = job(3, **settings)
    assert sessions[0].threads == settings.get("threads", sessions[0].threads)
    assert sessions[0].lanes == settings.get("lanes", 359 if settings.get("check_word") else 360)
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
    assert stats.sums_wrong == 0


def test_a_null_pointer_is_refused_where_none_says_that_a_worker_has_no_part(job: Callable[..., list[Session]]) -> None:
    sessions = job(2)
    values, got = array.array("i", [7]), array.array("i", [0])
    (address, _), (at, _) = values.buffer_info(), got.buffer_info()
    for source, destination in ((0, 0), (0, address), (address, 0), (0, None), (None, 0)):
        with pytest.raises(ValueError, match="of 1 elements is a null pointer"):
            sessions[0].submit([Region(source, destination, 1)], dtype=Dtype.I32)
    both = zip(sessions, (Region(address, None, 1), Region(None, at, 1)), strict=True)
    for operation in [session.submit([region, Region(0, 0, 0)], dtype=Dtype.I32) for session, region in both]:
        operation.wait(PATIENCE_S)
    assert got == values


def test_only_data_ports_within_the_configured_range_are_used(control: str) -> None:
    first = unused_port(4)
    ports = f"{first}-{first + 3}"
    sessions = join_all(control, 2, threads=2, ports=ports, share=False)
    client = Client(int(control.rpartition(":")[2]))
    try:
        (listed,) = client.jobs()
        base = int(ports.partition("-")[0])
        assert sorted(worker.endpoint.port for worker in listed.workers) == [base, base + 2]
        with pytest.raises(
            OSError, match=r"no 2 consecutive UDP ports from 127.0.0.1:\d+ to \d+ are free.*WIRESUM_PORTS"
        ):
            Session.join(AgentConfig(switch=control, threads=2, ports=ports), job_name="more", rank=0, world_size=1)
    finally:
        client.close()
        for session in sessions:
            session.close()


def test_a_job_over_several_switches_has_counters_for_each(start_switch: Callable[..., str]) -> None:
    group = start_switch(slots=128, multicast="239.192.8.0")
    endpoints = [start_switch(), start_switch(slots=64), group]
    sessions = join_all("+".join(endpoints), 3, threads=1, share=False)
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


def test_the_first_sum_detects_chunks_that_went_to_different_switches(  # R7.10
    start_switch: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers join the aggregators in the same order, but deal chunks to them in different orders."""
    switches = "+".join(start_switch() for _ in range(2))
    config = AgentConfig(switch=switches, threads=1, join_timeout_s=PATIENCE_S, share=False)
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


def test_results_arrive_by_multicast_if_the_switch_uses_it() -> None:  # R3.28, R3.29
    elements, rounds = 100_000, 3
    with ExitStack() as cleanup:
        switch = SoftwareSwitch(bind=HOST, port=0, threads=1, slots=512, multicast="239.192.7.0")
        server = JoinServer(cleanup.enter_context(closing(switch)))
        cleanup.callback(server.stop, 1.0)
        sessions = join_all(f"{HOST}:{server.start(HOST, 0)}", 3, threads=2, share=False)
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

        def sent_once() -> bool:
            stats = switch.stats()
            return stats.datagrams_sent == stats.results + stats.packets["resent"]

        wait_until(sent_once, "each result was sent once, but to those that asked for it again")
        stats = switch.stats()
        assert stats.results >= rounds * elements / 360
        assert results == 3 * stats.results, "each worker has had each result"


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
    before = sent_once(sessions[0])
    data = sparse_sums(sessions)
    assert data[0] == data[1]
    nonzero = {i: value for i, value in enumerate(data[0]) if value}
    assert nonzero == {360 * block: value for block, value in ((10, 1), (11, 2), (100, 3), (200, 1), (201, 2))}
    sparse = sessions[0].stats().sparse
    assert (sparse.prologues, sparse.streams, sparse.whole) == (1, 1, 0)
    assert (sparse.blocks_skipped, sparse.blocks_empty) == (295, 2)
    assert sparse.bytes_saved == 295 * 1464 + 2 * 1440 - 1464
    assert sent_once(sessions[0]) - before < 10 * 1464


def sent_once(session: Session) -> int:
    """Bytes, without those of the packets that were sent again, at most: a busy machine makes more of these."""
    stats = session.stats()
    return stats.bytes_sent - 1464 * stats.retransmissions


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


def test_an_operation_can_ask_later_to_be_returned_by_wait_completed(job: Callable[..., list[Session]]) -> None:
    (session,) = job(1)
    values = array.array("i", [7] * 10)
    operation = session.submit([whole(values)], dtype=Dtype.I32, notify=False)
    operation.wait(PATIENCE_S)
    assert session.wait_completed(0.01) == []
    session.notify(operation)
    session.notify(operation)
    (completed,) = session.wait_completed(PATIENCE_S)
    assert completed.token == operation.token and completed.done() and completed.error is None
    assert session.wait_completed(0.01) == []
    notifies = session.submit([whole(values)], dtype=Dtype.I32)
    assert [each.token for each in session.wait_completed(PATIENCE_S)] == [notifies.token]


def test_a_wait_that_times_out_leaves_the_operation_running(job: Callable[..., list[Session]]) -> None:
    early, late = job(2)
    operation = early.submit([], dtype=Dtype.I32)
    with pytest.raises(TimeoutError):
        operation.wait(0.05)
    late.submit([], dtype=Dtype.I32).wait(PATIENCE_S)
    operation.wait(PATIENCE_S)


def test_a_collective_that_one_worker_never_calls_times_out_for_all(job: Callable[..., list[Session]]) -> None:
    """Who lags is said if the service says so within a second: test_aggregators.py."""
    present, absent = job(2)
    operation = present.submit([], dtype=Dtype.I32, timeout_s=0.3)
    with pytest.raises(CollectiveTimeoutError, match="Timed out waiting for collective"):
        operation.wait(PATIENCE_S)
    # The first cause ends the job for all, and stays the cause.
    with pytest.raises(CollectiveTimeoutError):
        present.submit([], dtype=Dtype.I32)
    wait_until(lambda: absent.failure is not None, "the absent one hears of it")
    with pytest.raises(JobAbortedError, match="Timed out"):
        absent.submit([], dtype=Dtype.I32)


def test_abort_ends_the_job_at_every_worker_with_its_reason(job: Callable[..., list[Session]]) -> None:  # R4.31
    one, other = job(2)
    waiting = other.submit([], dtype=Dtype.I32)
    one.abort("the loss is not a number")
    with pytest.raises(JobAbortedError, match="the loss is not a number"):
        waiting.wait(PATIENCE_S)


def test_operations_that_need_a_worker_that_left_end(job: Callable[..., list[Session]]) -> None:
    leaving, staying = job(2)
    leaving.close()
    with pytest.raises(WorkerLeftError, match=r"rank 0 .* left") as caught:
        staying.submit([], dtype=Dtype.I32).wait(PATIENCE_S)
    assert (caught.value.rank, caught.value.address) == (0, "127.0.0.1")
    with pytest.raises(WorkerLeftError):
        staying.submit([], dtype=Dtype.I32)


def test_close_is_final_and_idempotent(job: Callable[..., list[Session]]) -> None:
    session, _ = job(2)
    pending = session.submit([], dtype=Dtype.I32)
    session.close()
    session.close()
    with pytest.raises(SessionClosedError):
        pending.wait(PATIENCE_S)
    with pytest.raises(SessionClosedError):
        session.submit([], dtype=Dtype.I32)


SHRINK = """
import array, contextlib, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from wiresum.agent import AgentConfig, Dtype, Region, Session, WiresumError
from wiresum.controller import JoinServer, Limits
from wiresum.switch import SoftwareSwitch
from wiresum_lab.patience import PATIENCE_S

def mtu(size):
    subprocess.run(["ip", "link", "set", "lo", "up", "mtu", str(size)], check=True)

def sum_all(sessions):
    data = [array.array("i", [rank] * 4000) for rank in range(2)]
    regions = [Region(values.buffer_info()[0], values.buffer_info()[0], 4000) for values in data]
    operations = [session.submit([region], dtype=Dtype.I32) for session, region in zip(sessions, regions)]
    for operation in operations:
        operation.wait(PATIENCE_S)
    assert set(data[0]) == {1}

mtu(1500)
switch = SoftwareSwitch(bind="127.0.0.1", port=0, threads=1, slots=512)
server = JoinServer(switch)
config = AgentConfig(
    switch=f"127.0.0.1:{server.start('127.0.0.1', 0)}", transport=sys.argv[1], share=False
)
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


@pytest.mark.parametrize("transport", ["udp", "udp:plain"])
def test_a_path_mtu_that_shrinks_is_reported_at_once_with_what_fits(transport: str) -> None:
    name = f"wiresum-{uuid.uuid4().hex[:8]}"
    if (
        shutil.which("ip") is None
        or subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs `ip` of iproute2, and root")
    try:
        command = ["ip", "netns", "exec", name, sys.executable, "-c", SHRINK, transport]
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)
    assert "IP packets of 1492 bytes do not fit" in done.stdout, done.stderr
    assert "the MTU there is 1000 now" in done.stdout
    assert "WIRESUM_LANES=232" in done.stdout
