"""A process that was itself stopped (SIGSTOP) says so, and does not blame others for the lost time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from wiresum.agent.absence import Absence, Patience
from wiresum.agent.awake import LOOK_S, AwakeClock
from wiresum.agent.statistics import NO_TRAFFIC
from wiresum.controller import JoinServer, Limits
from wiresum_lab.doubles.controller import Client, RecordingDriver
from wiresum_lab.processes import wait_until


class Time:
    """The test itself looks, too, when its own time goes on."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.clock = AwakeClock(lambda: self.now)
        self.clock.watch()

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / LOOK_S)):
            self.now += LOOK_S
            self.clock.now()


@pytest.fixture
def time() -> Iterator[Time]:
    made = Time()
    yield made
    made.clock.unwatch()


def test_all_time_counts_while_the_process_runs(time: Time) -> None:
    time.run(100)
    assert time.clock.now() == 1100
    assert time.clock.explain() == ""


def test_time_while_stopped_does_not_count_and_errors_mention_it_for_a_while(time: Time) -> None:
    time.run(10)
    time.now += 45 + LOOK_S
    assert time.clock.now() == 1010 + LOOK_S
    assert "this process itself was stopped for 45 s (SIGSTOP" in time.clock.explain()
    time.run(61)
    assert time.clock.explain() == ""


def test_time_before_the_first_look_is_no_stop(time: Time) -> None:
    clock = AwakeClock(lambda: time.now)
    time.now += 500
    assert (clock.now(), clock.explain()) == (1500, "")


def test_time_after_the_last_look_is_no_stop(time: Time) -> None:
    time.run(10)
    time.clock.unwatch()
    time.now += 500
    assert (time.clock.now(), time.clock.explain()) == (1510, "")


def test_all_clocks_of_a_process_share_one_thread(time: Time) -> None:
    others = [Time() for _ in range(3)]
    assert [thread.name for thread in threading.enumerate()].count("wiresum-awake") == 1
    for other in others:
        other.clock.unwatch()


def test_a_service_gets_its_full_time_after_this_process_was_stopped(time: Time) -> None:
    absence = Absence("x", Patience(3, 30, 120, 3), lambda: NO_TRAFFIC, lambda: "", time.clock.now)
    time.run(10)
    time.now += 600
    assert absence.error() is None, "it was us"
    time.run(21)
    assert absence.error() is not None


WORKER = """
import sys, time
from wiresum.agent.config import AgentConfig
from wiresum.agent.membership import Membership
membership = Membership.join(
    AgentConfig(switch=sys.argv[1]), job_name="a-job", rank=1, world_size=2, address="127.0.0.1", port=6000,
    threads_max=1, lanes_max=100,
)
membership.attend(on_ended=lambda error: print(type(error).__name__, error, flush=True), progress=lambda: 1)
print("attends", flush=True)
time.sleep(600)
"""


@pytest.fixture
def server() -> Iterator[JoinServer]:
    limits = Limits(heartbeat_lost_ms=1000, connection_lost_ms=1000, suspect_ms=300, counted_ms=100)
    server = JoinServer(RecordingDriver(), limits)
    server.start("127.0.0.1", 0)
    yield server
    server.stop(0.5)


@pytest.mark.slow
def test_a_worker_that_was_stopped_says_so_and_does_not_blame_the_switch(server: JoinServer) -> None:
    client = Client(server.port)
    other = client.join_soon(rank=0, world_size=2)
    command = [sys.executable, "-c", WORKER, f"127.0.0.1:{server.port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "attends\n"
            other.result()
            os.kill(worker.pid, signal.SIGSTOP)
            wait_until(lambda: client.jobs() == [], "it was taken for lost")
            threading.Event().wait(3)  # long enough to be reported
            os.kill(worker.pid, signal.SIGCONT)
            said = worker.stdout.readline()
        finally:
            worker.kill()
            client.close()
    assert said.startswith("WorkerLostError")
    assert "this process itself was stopped for" in said
