"""A thousand forged packets of every kind at a software switch, and a thousand malformed messages at its service, while
two workers of a job sum through it."""

from __future__ import annotations

import contextlib
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
from wiresum_lab.processes import PATIENCE_S, wait_until

HOST, ELSEWHERE = "127.0.0.1", "127.0.0.2"
PACKETS = 1000
BURST = 100
"""Sent without a pause: so many fit the switch's receive buffer, whatever their size."""
ELEMENTS = 20_000
THREADS = 2
STALE = 1
"""A round that is over, of cell 1."""


class Training:
    """Two workers that sum random numbers until they are stopped, and compare each sum with the integers' own."""

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

    def goes_on(self) -> None:
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
        switch=f"{HOST}:{server.port}", threads=THREADS, join_timeout_s=PATIENCE_S, tls=str(worker_tls)
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
    """What somebody sends who has seen a packet of the job, and changes what he likes."""

    def __init__(self, training: Training) -> None:
        self.grant = training.grant
        self.random = random.Random(1)

    def packet(self, **fields: object) -> bytes:
        """As rank 1 might send it, but for what `fields` say."""
        words = (1,) * self.grant.lanes if fields.get("kind", DATA) == DATA else ()
        seen = Packet(job=self.grant.job, key=self.grant.key, worker=1, cell=STALE % 2, round=STALE, words=words)
        return replace(seen, **fields).to_bytes()  # type: ignore[arg-type]

    def bits(self, count: int, but: int) -> int:
        """Any number of so many bits but one."""
        while (drawn := self.random.getrandbits(count)) == but:
            pass
        return drawn

    def noise(self) -> bytes:
        """Anything that is not of this version."""
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
"""What does not count as the job's: the switch's reason, and how it is made."""

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
"""What even somebody who knows the key cannot do; the job's own counters tell it."""


def bound(address: str) -> socket.socket:
    """Somebody's, at a port that is no worker's."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((address, 0))
    return made


def stolen(training: Training, thread: int = 0) -> socket.socket:
    """Of worker 1 itself: only its own process has it, and this is that. Nobody else can have its address and port."""
    address, port = training.ports[1]
    wanted = (address, port + thread), socket.SOCK_DGRAM
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile, or no socket
            copy = socket.fromfd(int(descriptor.name), socket.AF_INET, socket.SOCK_DGRAM)
            with contextlib.ExitStack() as cleanup:
                cleanup.enter_context(copy)
                if (copy.getsockname(), copy.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)) == wanted:
                    cleanup.pop_all()
                    return copy
    raise AssertionError(f"no descriptor of this process is a UDP socket at {address}:{port + thread}")


def flood(
    sender: socket.socket,
    switch: SoftwareSwitch,
    make: Callable[[], bytes],
    counted: Callable[[], int],
    *,
    thread: int = 0,
) -> int:
    """Sends the packets; returns how many more are counted by then."""
    before = counted()
    with sender:
        target = (switch.endpoint.address, switch.endpoint.port + thread)
        for sent in range(BURST, PACKETS + 1, BURST):
            for _ in range(BURST):
                sender.sendto(make(), target)
            wait_until(lambda sent=sent: counted() >= before + sent, f"{sent} packets are counted")
    return counted() - before


@pytest.mark.parametrize("kind", STRAY)
def test_forged_packets_of_strangers_are_counted_by_reason_and_change_no_sum(
    switch: SoftwareSwitch, training: Training, kind: str
) -> None:
    reason, make = STRAY[kind]
    forger = Forger(training)
    sender = stolen(training)  # so that nothing but what the kind says is wrong
    assert flood(sender, switch, lambda: make(forger), lambda: switch.stray().packets[reason]) == PACKETS
    training.goes_on()


@pytest.mark.parametrize("kind", WITH_THE_KEY)
def test_packets_with_the_jobs_key_that_break_its_rules_change_no_sum(
    switch: SoftwareSwitch, training: Training, kind: str
) -> None:
    reason, make = WITH_THE_KEY[kind]
    forger = Forger(training)
    counted = lambda: switch.counters(training.grant.job).packets[reason]  # noqa: E731
    count = flood(stolen(training), switch, lambda: make(forger), counted)
    assert count >= PACKETS if reason == "stale" else count == PACKETS  # the job itself may be late now and then
    training.goes_on()


def test_the_key_does_not_help_at_another_address(switch: SoftwareSwitch, training: Training) -> None:
    forger = Forger(training)
    count = flood(bound(ELSEWHERE), switch, forger.packet, lambda: switch.stray().packets["unknown"])
    assert count == PACKETS
    training.goes_on()


def test_the_key_does_not_help_another_process_of_the_workers_host(switch: SoftwareSwitch, training: Training) -> None:
    forger = Forger(training)
    count = flood(bound(HOST), switch, forger.packet, lambda: switch.stray().packets["unknown"])
    assert count == PACKETS
    training.goes_on()


def test_the_key_does_not_help_at_the_socket_of_another_thread(switch: SoftwareSwitch, training: Training) -> None:
    forger = Forger(training)
    count = flood(stolen(training, thread=1), switch, forger.packet, lambda: switch.stray().packets["unknown"])
    assert count == PACKETS
    training.goes_on()


def test_the_key_does_not_help_at_a_port_that_the_job_does_not_use(switch: SoftwareSwitch, training: Training) -> None:
    forger = Forger(training)
    count = flood(stolen(training), switch, forger.packet, lambda: switch.stray().packets["unknown"], thread=THREADS)
    assert count == PACKETS
    training.goes_on()


def test_results_that_are_not_the_switchs_do_not_reach_a_worker(training: Training) -> None:
    forger = Forger(training)
    result = forger.packet(kind=RESULT, words=(7,) * training.grant.lanes)
    received = [session.stats().rejected for session in training.sessions]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind((HOST, 0))
        for number in range(PACKETS):
            address, port = training.ports[number % 2]
            sender.sendto(result, (address, port + number // 2 % THREADS))
    training.goes_on()
    assert [session.stats().rejected for session in training.sessions] == received


# The control plane.


def malformed(numbers: random.Random) -> tuple[str, bytes]:
    """A method, and something that is no message of it, or one that makes no sense."""
    method = numbers.choice(("Join", "Attend", "Leave", "Abort", "Diagnose"))
    honest = join_request(job_name="a-job", rank=0, world_size=2).SerializeToString()
    guessed = join.Heartbeat(member=join.Member(job=1, token=f"{numbers.getrandbits(128):032x}")).SerializeToString()
    return method, numbers.choice(
        (
            b"\xff" + numbers.randbytes(numbers.randrange(200)),
            honest[: numbers.randrange(1, len(honest))],
            honest + b"\x0a" + bytes(numbers.randrange(20_000)),
            guessed,
            numbers.randbytes(numbers.randrange(100)),
            b"",
        )
    )


def test_malformed_messages_are_each_refused_and_counted_and_change_no_sum(
    server: JoinServer, security: Security, training: Training, worker_tls: Path
) -> None:
    numbers = random.Random(1)
    before = security.refusals.total()
    codes = set()
    with open_channel(f"{HOST}:{server.port}", tls=worker_tls) as channel:
        for _ in range(0, PACKETS, BURST):
            calls = []
            for _ in range(BURST):
                method, raw = malformed(numbers)
                call = channel.stream_stream(f"/wiresum.join.v1.JoinService/{method}")
                calls.append(call(iter([raw]), timeout=PATIENCE_S))
            for call in calls:
                with pytest.raises(grpc.RpcError):
                    list(call)
                codes.add(call.code().name)
    assert codes <= {
        "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "ALREADY_EXISTS", "FAILED_PRECONDITION",
        "PERMISSION_DENIED",
    }  # fmt: skip
    wait_until(lambda: security.refusals.total() == before + PACKETS, "each is counted")
    assert security.refusals["malformed"] > 100
    assert security.refusals["oversized"] > 0
    assert security.refusals["exception"] == 0
    training.goes_on()
