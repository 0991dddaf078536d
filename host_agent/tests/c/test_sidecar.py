"""The sidecar's side of its protocol, with valid and invalid messages."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from concurrent import futures

import pytest

from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import SessionClosedError, WiresumError
from wiresum.agent.sidecar.lines import Channel, Line, LineError, decode, encode
from wiresum.agent.sidecar.process import serve
from wiresum.agent.sidecar.service import Service
from wiresum.join.constants import SIDECAR_FIELDS_MAX, SIDECAR_LINE_BYTES_MAX, SIDECAR_VERSION
from wiresum_lab.patience import PATIENCE_S


def test_a_message_survives_encoding() -> None:
    fields = {"error": "JoinError", "text": "a\tb\\n\nc = d", "results.0": ""}
    line = encode("ended", **fields)
    assert line.count(b"\n") == 1
    read = decode(line[:-1])
    assert (read.word, read.fields) == ("ended", fields)


def test_bytes_that_are_no_text_come_as_in_the_environment() -> None:
    assert decode(b"join\tjob=\xff").text("job") == os.fsdecode(b"\xff")


WRONG = [
    "", "\t", "Ended", "en ded", "ended\t", "ended\ta=1\t", "ended\ttext", "ended\t=a", "ended\tText=a",
    "ended\ta=1\ta=2", "ended\ta=\\", "ended\ta=\\x",
    "ended" + "".join(f"\tf{i}=1" for i in range(SIDECAR_FIELDS_MAX + 1)),
]  # fmt: skip


@pytest.mark.parametrize("line", [*(text.encode() for text in WRONG), b"\xff"])
def test_an_invalid_line_is_refused(line: bytes) -> None:
    with pytest.raises(LineError):
        decode(line)


def test_a_number_outside_its_limits_is_refused() -> None:
    line = decode("bind\tcount=16\tnegative=-1\tspaced= 1\tother=\u0661".encode())
    assert line.number("count", 16) == 16
    for name in ("negative", "spaced", "other", "missing"):
        with pytest.raises(LineError):
            line.number(name)
    with pytest.raises(LineError):
        line.number("count", 15)


def test_a_global_rank_is_a_setting_of_one_session() -> None:
    service = Service(Channel(socket.socketpair()[0]))

    def config_of(setting: str) -> AgentConfig:
        numbers = {"version": str(SIDECAR_VERSION), "timeout_ms": "1"}
        return service._config_of(Line("join", {"settings": f"{setting}\0", "environment": "", **numbers}))

    assert config_of("WIRESUM_GLOBAL_RANK=7").named(1) == "rank 1, global rank 7"
    assert config_of("WIRESUM_GLOBAL_RANK=0").named(0) == config_of("WIRESUM_BITS=8").named(0) == "rank 0"
    for wrong in ("", "-1", "first", str(2**31)):
        with pytest.raises(ValueError, match=f"WIRESUM_GLOBAL_RANK is '{wrong}': it must be 0 to 2147483647"):
            config_of(f"WIRESUM_GLOBAL_RANK={wrong}")


def test_a_worker_is_halted_and_moved_and_says_why_it_cannot_be() -> None:
    ours, theirs = socket.socketpair()
    service, worker = Service(Channel(ours)), Channel(theirs)

    def answer(word: str, **fields: str) -> Line:
        """The worker's, to what it is asked."""
        asked = worker.receive()
        assert asked is not None
        service._take(Line(word, {"id": asked.text("id"), **fields}))
        return asked

    with futures.ThreadPoolExecutor() as pool:
        halted = pool.submit(service._halt, 1)
        assert answer("halted", positions="00000007").text("aggregator") == "1"
        assert halted.result(PATIENCE_S) == "00000007"
        moved = pool.submit(service._move, {"aggregator": "1", "roles": "2"})
        assert answer("moved").text("roles") == "2"
        moved.result(PATIENCE_S)
        unmoved = pool.submit(service._move, {"aggregator": "1", "roles": "9"})
        answer("unmoved", error="WiresumError", text="it has not halted")
        with pytest.raises(WiresumError, match="it has not halted"):
            unmoved.result(PATIENCE_S)
        leaves = pool.submit(service._halt, 0)
        answer("unmoved", error="SessionClosedError", text="the session was left")
        with pytest.raises(SessionClosedError):
            leaves.result(PATIENCE_S)
        service._over.set()
        with pytest.raises(SessionClosedError):
            service._halt(0)


def test_a_worker_that_does_not_answer_is_stopped_and_what_it_says_late_answers_nothing() -> None:
    ours, theirs = socket.socketpair()
    service, worker = Service(Channel(ours)), Channel(theirs)

    def answer(state: str) -> None:
        asked = worker.receive()
        assert asked is not None
        service._take(Line("state", {"id": asked.text("id"), "state": state}))

    service._answer_s_max = 0.0
    assert service._state() is None
    answer("late")
    service._answer_s_max = PATIENCE_S
    with futures.ThreadPoolExecutor() as pool:
        asked = pool.submit(service._state)
        answer("now")
        assert asked.result(PATIENCE_S) == {"state": "now"}


ENDS = """
import builtins, os, sys, threading
from wiresum.agent.sidecar import process

class Waits:
    def __init__(self):
        self.lock = threading.Lock()
        self.lock.acquire()
    def __del__(self):
        self.lock.acquire()

builtins.waits = Waits()
os.dup2(int(sys.argv[1]), process.CONTROL_DESCRIPTOR)
process.main()
"""


def test_a_sidecar_ends_though_the_interpreters_end_would_wait() -> None:
    """As it does for gRPC's calls, whose lock a thread may hold that is stopped then."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen([sys.executable, "-c", ENDS, f"{theirs.fileno()}"], pass_fds=[theirs.fileno()])
    ours.close()
    try:
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def sidecar() -> socket.socket:
    """The control socket of a sidecar, which ends with the test."""
    ours, theirs = socket.socketpair()
    threading.Thread(target=serve, args=(theirs,), daemon=True).start()
    return ours


def session_of(sidecar: socket.socket) -> tuple[socket.socket, Channel]:
    ours, theirs = socket.socketpair()
    socket.send_fds(sidecar, [b"s"], [theirs.fileno()])
    theirs.close()
    ours.settimeout(PATIENCE_S)
    return ours, Channel(ours)


@pytest.mark.parametrize(
    "junk", [b"\xff\xfe\n", b"hello\n", b"x" * SIDECAR_LINE_BYTES_MAX, b"leave\n", b"", b"explain\n"]
)
def test_a_session_with_invalid_messages_ends_and_the_next_is_served(sidecar: socket.socket, junk: bytes) -> None:
    with sidecar:
        end, channel = session_of(sidecar)
        end.sendall(junk)
        end.shutdown(socket.SHUT_WR)
        while (line := channel.receive()) is not None:
            assert line.word == "failed"
        _, channel = session_of(sidecar)
        channel.send("join", version=SIDECAR_VERSION + 1, job="a", rank=0, world_size=1)
        answer = channel.receive()
        assert answer is not None
        assert "of different versions" in answer.text("text")


def test_closing_the_control_socket_ends_its_sessions(sidecar: socket.socket) -> None:
    _, channel = session_of(sidecar)
    sidecar.close()
    assert channel.receive() is None
