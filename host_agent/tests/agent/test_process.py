"""How a session behaves in its process after a fork, and a membership at the end of its process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from wiresum.agent import lifetime
from wiresum.controller import JoinServer
from wiresum.switch import SoftwareSwitch
from wiresum_lab.patience import PATIENCE_S

HOST = "127.0.0.1"

WORKER = """
import array, gc, os, signal, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # what Python 3.12 and newer say of any fork where threads are
from wiresum.agent import AgentConfig, Dtype, Region, Session, lifetime
from wiresum_lab.patience import PATIENCE_S

def join():
    config = AgentConfig(switch=sys.argv[1], threads=4)
    return Session.join(config, job_name="a-job", rank=0, world_size=1)

def sum_up(session):
    values = array.array("i", range(1000))
    address, elements = values.buffer_info()
    operation = session.submit([Region(address, address, elements)], dtype=Dtype.I32)
    operation.wait(PATIENCE_S)
    return operation

session = join()
done = sum_up(session)
for child in range(4):
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(PATIENCE_S))
        assert not lifetime._open and not lifetime._threads, "calls of the parent, which would never end here"
        if child == 1:
            session.native = session._membership = done = None
            gc.collect()
        if child == 2:
            session.close()
        if child == 3:
            try:
                sum_up(session)
            except RuntimeError as error:
                assert "a forked child must join by itself" in str(error)
        sys.exit(0)  # with all that an interpreter does at its end
    assert os.waitpid(pid, 0)[1] == 0, child
    assert lifetime._open
sum_up(session)
session.close()
print("went on")
"""

ENDS = """
import atexit, builtins, sys, threading
from grpc import _channel
from wiresum.agent import AgentConfig, lifetime
from wiresum.agent.control import Control
from wiresum.agent.membership import Membership
from wiresum.agent.statistics import TrafficStats
from wiresum_lab.patience import PATIENCE_S

ends, closes = threading.Event(), threading.Event()
atexit.register(ends.set)

class Call:  # as gRPC's, but that nobody else refers to it: it is destroyed at the very end
    def __init__(self, lock):
        self.lock = lock
    def __del__(self):
        with self.lock:
            pass

def event_handler(*what, make=_channel._event_handler):
    handler = make(*what)

    def handle(event):
        if ends.is_set() and "wiresum" not in threading.current_thread().name:
            closes.wait(PATIENCE_S)  # gRPC's thread hears late that the call is over ...
        return handler(event)
    return handle

def handle(*what, handle=_channel._handle_event):
    if closes.is_set():
        threading.Event().wait(1.0)  # ... and then holds the call's lock
    return handle(*what)

def watch(call, watch=lifetime.watch):
    vars(builtins).setdefault("calls", []).append(Call(call._state.condition))
    watch(call)

def close(control, close=Control.close):
    closes.set()
    close(control)

_channel._event_handler, _channel._handle_event = event_handler, handle
lifetime.watch, lifetime.CALLS_S_MAX, Control.close = watch, PATIENCE_S, close
member = Membership.join(
    AgentConfig(switch=sys.argv[1]), job_name="a-job", rank=0, world_size=1, address="127.0.0.1", port=1,
    threads_max=1, lanes_max=64,
)
member.attend(on_ended=print, progress=TrafficStats, traffic=TrafficStats, halt=bytes, move=print)
print("ends")
"""


@pytest.fixture
def control() -> Iterator[str]:
    switch = SoftwareSwitch(bind=HOST, port=0, threads=1, slots=512)
    server = JoinServer(switch)
    yield f"{HOST}:{server.start(HOST, 0)}"
    server.stop(1.0)
    switch.close()


def test_forked_children_end_cleanly_and_the_parent_goes_on(control: str) -> None:
    command = [sys.executable, "-c", WORKER, control]
    finished = subprocess.run(command, check=False, capture_output=True, text=True, timeout=2 * PATIENCE_S)
    assert (finished.returncode, finished.stderr, finished.stdout) == (0, "", "went on\n")


def test_a_process_ends_though_a_thread_of_grpc_holds_the_lock_of_a_call(control: str) -> None:
    """Python would stop that thread, and wait for ever for the lock."""
    command = [sys.executable, "-c", ENDS, control]
    finished = subprocess.run(command, check=False, capture_output=True, text=True, timeout=2 * PATIENCE_S)
    assert (finished.returncode, finished.stderr, finished.stdout) == (0, "", "ends\n")


def test_the_end_of_a_process_cancels_calls_and_waits_until_no_thread_uses_them() -> None:
    call, is_cancelled = Mock(), threading.Event()
    call.cancel.side_effect = is_cancelled.set

    def serve() -> None:
        """As gRPC's thread does for the call's channel, which it serves for a moment longer."""
        is_cancelled.wait(PATIENCE_S)
        threading.Event().wait(0.1)
        call.add_callback.call_args.args[0]()
        threading.Event().wait(0.1)

    lifetime.watch(call)
    thread = threading.Thread(target=serve)
    thread.start()
    lifetime._end_calls()
    assert is_cancelled.is_set() and not thread.is_alive()
    assert call not in lifetime._open.values()


def test_the_end_of_a_process_waits_for_its_calls_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetime, "CALLS_S_MAX", 0.0)
    monkeypatch.setattr(lifetime, "_open", {})
    may_end, uses = threading.Event(), threading.Event()

    def use_one() -> None:
        lifetime.use()
        uses.set()
        may_end.wait(PATIENCE_S)

    thread = threading.Thread(target=use_one)
    thread.start()
    assert uses.wait(PATIENCE_S)
    lifetime.watch(Mock())
    lifetime._end_calls()
    assert thread.is_alive()
    may_end.set()
    thread.join()
