"""A thousand forged packets of each kind to a software switch, and a thousand malformed messages to its service,
while two workers sum: no sum changes."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest

from wiresum import join
from wiresum.agent import AgentConfig, Dtype, Region, Session
from wiresum.controller import JoinServer
from wiresum.controller.config import SecurityConfig
from wiresum.controller.security import Security
from wiresum.join.credentials import open_channel
from wiresum.switch import SoftwareSwitch
from wiresum_lab.doubles.controller import join_request
from wiresum_lab.doubles.workers import DATA, EMPTY, META, MISSING, QUESTION, RESULT, Packet
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

HOST, OTHER_HOST = "127.0.0.1", "127.0.0.2"
PACKETS = 300
BURST = 100
"""Packets sent without a pause; they fit the switch's receive buffer, whatever their size."""
ELEMENTS = 20_000
THREADS = 2
STALE = 1
"""A completed round, in cell 1."""


class Training:
    """Two workers that sum random numbers until they are stopped, and check each sum."""

    def __init__(self, server: JoinServer, sessions: list[Session]) -> None:
        (job,) = server.report().jobs
        self.ports = [(worker.endpoint.address, worker.endpoint.port) for worker in job.workers]
        (aggregator,) = sessions[0]._membership._aggregators or ()
        self.grant = aggregator.membership.grant
        self.sums = 0
        self.failure: BaseException | None = None
        self.sessions = sessions
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        numbers = np.random.default_rng(1)
        try:
            while not self._stop.is_set():
                data = [numbers.integers(-(2**31), 2**31, ELEMENTS, np.int32) for _ in self.sessions]
                expected = (data[0].astype(np.int64) + data[1]).astype(np.int32)
                operations = [
                    session.submit([Region(own.ctypes.data, own.ctypes.data, own.size)], dtype=Dtype.I32)
                    for session, own in zip(self.sessions, data, strict=True)
                ]
                for operation, own in zip(operations, data, strict=True):
                    operation.wait(PATIENCE_S)
                    assert np.array_equal(own, expected), "a sum is wrong"
                self.sums += 1
        except BaseException as error:
            self.failure = error

    def assert_progress(self) -> None:
        before = self.sums
        wait_until(lambda: self.sums > before + 1 or self.failure is not None, "another sum is complete")
        assert self.failure is None, self.failure

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert self.failure is None, self.failure


@pytest.fixture(scope="module")
def switch() -> Iterator[SoftwareSwitch]:
    switch = SoftwareSwitch(bind=HOST, port=0, threads=1, slots=512)
    yield switch
    switch.close()


@pytest.fixture(scope="module")
def security(controller_tls: Path) -> Security:
    return Security(SecurityConfig(tls=controller_tls))


@pytest.fixture(scope="module")
def server(switch: SoftwareSwitch, security: Security) -> Iterator[JoinServer]:
    server = JoinServer(switch, security=security)
    server.start(HOST, 0)
    yield server
    server.stop(1.0)


@pytest.fixture(scope="module")
def training(server: JoinServer, worker_tls: Path) -> Iterator[Training]:
    config = AgentConfig(
        switch=f"{HOST}:{server.port}", threads=THREADS, join_timeout_s=PATIENCE_S, tls=str(worker_tls), share=False
    )
    with ThreadPoolExecutor(2) as pool:
        ranks = [pool.submit(Session.join, config, job_name="a-job", rank=rank, world_size=2) for rank in range(2)]
        sessions = [rank.result() for rank in ranks]
    training = Training(server, sessions)
    yield training
    training.stop()
    for session in sessions:
        session.close()


class Forger:
    """Makes packets of an attacker who has seen a packet of the job and changes fields of it."""

    def __init__(self, training: Training) -> None:
        self.grant = training.grant
        self.random = random.Random(1)

    def packet(self, **fields: object) -> bytes:
        """A packet of rank 1 with the given fields changed."""
        words = (1,) * self.grant.lanes if fields.get("kind", DATA) == DATA else ()
        seen = Packet(job=self.grant.job, key=self.grant.key, worker=1, cell=STALE % 2, round=STALE, words=words)
        return replace(seen, **fields).to_bytes()  # type: ignore[arg-type]

    def bits(self, count: int, but: int) -> int:
        """A random number of `count` bits other than `but`."""
        while (drawn := self.random.getrandbits(count)) == but:
            pass
        return drawn

    def noise(self) -> bytes:
        """Random bytes with another protocol version."""
        return bytes([self.random.choice((0, 2, 15)) << 4]) + self.random.randbytes(self.random.randrange(2000))


Make = Callable[[Forger], bytes]
STRAY: dict[str, tuple[str, Make]] = {
    "another key": ("unknown", lambda f: f.packet(key=f.bits(32, f.grant.key))),
    "another job": ("unknown", lambda f: f.packet(job=f.bits(16, f.grant.job))),
    "a worker that the job does not have": ("unknown", lambda f: f.packet(worker=f.random.randrange(2, 256))),
    "noise": ("malformed", lambda f: f.noise()),
    "less than a header": ("malformed", lambda f: f.packet()[: f.random.randrange(24)]),
    "half a word": ("malformed", lambda f: f.packet() + b"\0" * f.random.randrange(1, 4)),
    "a kind that there is not": ("malformed", lambda f: f.packet(kind=f.random.randrange(6, 16))),
    "a result": ("malformed", lambda f: f.packet(kind=RESULT)),
    "word that a packet is missing": ("malformed", lambda f: f.packet(kind=MISSING)),
    "a question with another key": ("unknown", lambda f: f.packet(kind=QUESTION, key=f.bits(32, f.grant.key))),
    "an empty packet with a payload": ("malformed", lambda f: f.packet(kind=EMPTY, words=(1,))),
    "a header packet with a payload": ("malformed", lambda f: f.packet(kind=META, words=(1,))),
}
"""Packets that belong to no job: the drop reason that is counted, and how to make one."""

WITH_THE_KEY: dict[str, tuple[str, Make]] = {
    "a round that is over": ("stale", lambda f: f.packet()),
    "an empty one of a round that is over": ("stale", lambda f: f.packet(kind=EMPTY)),
    "a question about a round that is over": ("stale", lambda f: f.packet(kind=QUESTION)),
    "a cell beyond the lease": ("out_of_lease", lambda f: f.packet(cell=2 * f.grant.slots + STALE % 2)),
    "a cell of another thread": ("out_of_lease", lambda f: f.packet(cell=f.grant.slots + STALE % 2)),
    "a cell of the other parity": ("malformed", lambda f: f.packet(cell=(STALE + 1) % 2)),
    "too few words": ("malformed", lambda f: f.packet(words=(1,) * f.random.randrange(f.grant.lanes))),
    "as many words as a datagram holds": ("malformed", lambda f: f.packet(words=(1,) * 16370)),
}
"""Invalid packets of an attacker who has the key: the drop reason that is counted for the job, and how to make one."""


def bound(address: str) -> socket.socket:
    """A socket of a stranger, at a port that no worker uses."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((address, 0))
    return made


def stolen(training: Training, thread: int = 0) -> socket.socket:
    """A copy of worker 1's own socket, found among the descriptors of this process. No other process can have its
    port."""
    address, port = training.ports[1]
    wanted = (address, port + thread), socket.SOCK_DGRAM
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed in the meantime, or not a socket
            duplicate = os.dup(int(descriptor.name))
            with contextlib.ExitStack() as cleanup:
                cleanup.callback(os.close, duplicate)
                copy = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, fileno=duplicate)
                cleanup.pop_all()
                cleanup.enter_context(copy)
                if (copy.getsockname(), copy.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)) == wanted:
                    cleanup.pop_all()
                    return copy
    raise AssertionError(f"no descriptor of this process is a UDP socket at {address}:{port + thread}")


ELSEWHERE: dict[str, Callable[[Training], tuple[socket.socket, int]]] = {
    "another address": lambda training: (bound(OTHER_HOST), 0),
    "another process of the worker's host": lambda training: (bound(HOST), 0),
    "the socket of another thread": lambda training: (stolen(training, thread=1), 0),
    "a port that the job does not use": lambda training: (stolen(training), THREADS),
}
"""Where an attacker uses the key: the socket, and the thread of the switch."""


def flood(
    sender: socket.socket,
    switch: SoftwareSwitch,
    make: Callable[[], bytes],
    counted: Callable[[], int],
    *,
    thread: int = 0,
) -> int:
    """Sends PACKETS packets in bursts and waits until they are counted; returns by how many the counter has risen."""
    before = counted()
    with sender:
        target = (switch.endpoint.address, switch.endpoint.port + thread)
        for sent in range(BURST, PACKETS + 1, BURST):
            for _ in range(BURST):
                sender.sendto(make(), target)
            wait_until(lambda sent=sent: counted() >= before + sent, f"{sent} packets are counted")
    return counted() - before


@pytest.mark.parametrize("kind", STRAY)
def test_forged_packets_are_counted_by_reason_and_change_no_sum(
    switch: SoftwareSwitch, training: Training, kind: str
) -> None:
    reason, make = STRAY[kind]
    forger = Forger(training)
    sender = stolen(training)  # so that the packet is wrong in nothing but its kind of forgery
    assert flood(sender, switch, lambda: make(forger), lambda: switch.stray().packets[reason]) == PACKETS
    training.assert_progress()


@pytest.mark.parametrize("kind", WITH_THE_KEY)
def test_packets_with_the_right_key_that_break_the_rules_change_no_sum(
    switch: SoftwareSwitch, training: Training, kind: str
) -> None:
    reason, make = WITH_THE_KEY[kind]
    forger = Forger(training)
    counted = lambda: switch.counters(training.grant.job).packets[reason]  # noqa: E731
    count = flood(stolen(training), switch, lambda: make(forger), counted)
    assert count >= PACKETS if reason == "stale" else count == PACKETS  # the job itself may send some late packets
    training.assert_progress()


@pytest.mark.parametrize("place", ELSEWHERE)
def test_the_key_is_useless_elsewhere(switch: SoftwareSwitch, training: Training, place: str) -> None:
    sender, thread = ELSEWHERE[place](training)
    forger = Forger(training)
    counted = lambda: switch.stray().packets["unknown"]  # noqa: E731
    assert flood(sender, switch, forger.packet, counted, thread=thread) == PACKETS
    training.assert_progress()


def test_results_that_do_not_come_from_the_switch_are_rejected_by_workers(training: Training) -> None:
    forger = Forger(training)
    result = forger.packet(kind=RESULT, words=(7,) * training.grant.lanes)
    received = [session.stats().rejected for session in training.sessions]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind((HOST, 0))
        for number in range(PACKETS):
            address, port = training.ports[number % 2]
            sender.sendto(result, (address, port + number // 2 % THREADS))
    training.assert_progress()
    assert [session.stats().rejected for session in training.sessions] == received


# Control plane.


MALFORMED_TO = {
    "another tenant": ("JoinService", ("Join", "Attend", "Leave", "Abort", "Diagnose", "Prove")),
    "the job's tenant": ("JoinService", ("Join", "Attend", "Leave", "Abort", "Diagnose", "Prove")),
    "an operator": ("OperatorService", ("EndJob", "CreateJob", "Drain", "DiscardRecord")),
}
"""Who sends malformed messages: to which service, and to which of its methods."""


def malformed(numbers: random.Random, method: str) -> bytes:
    """Bytes that are not its message or a message with invalid values."""
    honest = join_request(job_name="a-job", rank=0, world_size=2).SerializeToString()
    guessed = join.Heartbeat(member=join.Member(job=1, token=f"{numbers.getrandbits(128):032x}")).SerializeToString()
    wrong = [
        b"\xff" + numbers.randbytes(numbers.randrange(200)),
        honest + b"\x0a" + bytes(numbers.randrange(20_000)),
    ]
    if method in MALFORMED_TO["an operator"][1]:  # one that parses may name the job, and would be obeyed
        return numbers.choice(wrong)
    return numbers.choice(
        [*wrong, honest[: numbers.randrange(1, len(honest))], guessed, numbers.randbytes(numbers.randrange(100)), b""]
    )


@pytest.fixture
def malformed_by(
    request: pytest.FixtureRequest, issue: Callable[..., Path], worker_tls: Path, operator_tls: Path
) -> tuple[str, tuple[str, ...], Path]:
    service, methods = MALFORMED_TO[request.param]
    other = issue("worker", "mallory", tenants=("mallory",))
    tls = {"another tenant": other, "the job's tenant": worker_tls, "an operator": operator_tls}[request.param]
    return service, methods, tls


@pytest.mark.parametrize("malformed_by", MALFORMED_TO, indirect=True)
def test_malformed_messages_are_refused_and_counted_and_change_no_sum(
    server: JoinServer, security: Security, training: Training, malformed_by: tuple[str, tuple[str, ...], Path]
) -> None:
    service, methods, tls = malformed_by
    numbers = random.Random(1)
    before = security.refusals.copy()
    codes = set()
    with open_channel(f"{HOST}:{server.port}", tls=tls) as channel:
        for _ in range(0, PACKETS, BURST):
            calls = []
            for _ in range(BURST):
                method = numbers.choice(methods)
                call = channel.stream_stream(f"/wiresum.join.v1.{service}/{method}")
                calls.append(call(iter([malformed(numbers, method)]), timeout=PATIENCE_S))
            for call in calls:
                with pytest.raises(grpc.RpcError):
                    list(call)
                codes.add(call.code().name)
    assert codes <= {
        "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "ALREADY_EXISTS", "FAILED_PRECONDITION",
        "PERMISSION_DENIED",
    }  # fmt: skip
    wait_until(lambda: security.refusals.total() == before.total() + PACKETS, "each is counted")
    assert security.refusals["malformed"] > before["malformed"] + PACKETS / 10
    assert security.refusals["oversized"] > before["oversized"]
    assert security.refusals["exception"] == 0
    training.assert_progress()
