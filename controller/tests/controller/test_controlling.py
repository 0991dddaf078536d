"""Controllers that are stopped, replaced, or killed at critical points: no job is lost, and nothing leaks.

The controllers are processes with state on disk, and program a software switch over P4Runtime. They are forked from one
process that has already imported all modules, so that each starts in a fraction of a second.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from wiresum import join
from wiresum.agent import AgentConfig, Dtype, Region, Session
from wiresum.controller import controlling
from wiresum.controller.jobs.limits import Limits
from wiresum.switch.software_switch import SoftwareSwitch
from wiresum_lab.doubles.controller import Client
from wiresum_lab.doubles.p4runtime_proxy import ProgrammedSwitch, programmed_switch
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import unused_port, wait_until

SLOTS, LANES = 64, 16
FORKER = '''
"""Each line of standard input is an order: a configuration, and where to die."""
import dataclasses, json, os, signal, sys
from pathlib import Path
from wiresum.controller import config, controlling
from wiresum.controller.service.effects import Effects
from wiresum.controller.jobs.outputs import Forget, Grant, Save, SaveKeys
from wiresum.controller.p4runtime import P4RuntimeSwitch
from wiresum.controller.serving import stop_on_signals
from wiresum.controller.store import Store

def die_at(place, when):
    """`place` is the name of a method, or what it is called with: `when` it is called, before or after."""
    owner, method, match = PLACES[place]
    original = getattr(owner, method)

    def fatal(self, *arguments, **options):
        if not match(*arguments):
            return original(self, *arguments, **options)
        if when == "after":
            original(self, *arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, method, fatal)

def writes(kind, state=None):
    def match(outputs):
        return any(isinstance(o, kind) and (state is None or getattr(o.record, "state", "") == state) for o in outputs)
    return Store, "write", match

PLACES = {
    "write keys": writes(SaveKeys),
    "write running": writes(Save, "running"),
    "write ending": writes(Save, "ending"),
    "write forget": writes(Forget),
    "reconcile": (P4RuntimeSwitch, "reconcile", lambda entries: True),
    "admit": (P4RuntimeSwitch, "admit", lambda entry: True),
    "evict": (P4RuntimeSwitch, "evict", lambda job: True),
    "grant": (Effects, "_carry_out_one", lambda output: isinstance(output, Grant)),
}

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        if order["place"]:
            die_at(order["place"], order["when"])
        wanted = config.load(Path(order["config"]))
        limits = dataclasses.replace(wanted.limits, reattend_ms_max=order["reattend_ms_max"])
        wanted = dataclasses.replace(wanted, limits=limits)
        store = Store(wanted.state)
        try:
            with stop_on_signals() as stop:
                targets = controlling.targets(wanted)
                if not order["standby"] or controlling.stand_by(wanted, targets, store, stop):
                    controlling.serve(wanted, targets, store, stop, lambda text: None)
        finally:
            store.close()
            os._exit(1)
    print(child, flush=True)
'''


class ControllerForker:
    """A process that forks controllers."""

    def __init__(self, config_path: Path) -> None:
        self._config_path = config_path
        self._process = subprocess.Popen(
            [sys.executable, "-c", FORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.controller = 0
        self.reattend_ms_max = Limits().reattend_ms_max
        """How long a controller waits for workers that had already left when their departure was not yet on disk."""

    def start(self, place: str = "", when: str = "", *, standby: bool = False, port: int = 0) -> int:
        """Returns the process id. The controller kills itself at `place`, `when` (before or after); it listens at
        `port`, or else at the port that all share."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {
            "config": str(self._config_at(port) if port else self._config_path),
            "place": place,
            "when": when,
            "standby": standby,
            "reattend_ms_max": self.reattend_ms_max,
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        self.controller = int(self._process.stdout.readline())
        return self.controller

    def _config_at(self, port: int) -> Path:
        path = self._config_path.with_name(f"{port}.toml")
        path.write_text(re.sub(r"listen = .*", f'listen = "127.0.0.1:{port}"', self._config_path.read_text()))
        return path

    @property
    def state(self) -> Path:
        return self._config_path.parent / "state"

    def is_alive(self) -> bool:
        return _is_alive(self.controller)

    def kill(self, sent: signal.Signals = signal.SIGKILL) -> None:
        victim = self.controller
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, sent)
        wait_until(lambda: not _is_alive(victim), "it is dead")

    def close(self) -> None:
        self.kill()
        self._process.kill()
        self._process.communicate()


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def switch() -> Iterator[ProgrammedSwitch]:
    with programmed_switch(slots=SLOTS, lanes_max=LANES) as switch:
        yield switch


@pytest.fixture(scope="module")
def port() -> int:
    return unused_port()


@pytest.fixture(scope="module")
def forker(switch: ProgrammedSwitch, port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllerForker]:
    folder = tmp_path_factory.mktemp("crash")
    path = folder / "cluster.toml"
    path.write_text(switch.configuration(port))
    with contextlib.closing(ControllerForker(path)) as forker:
        yield forker


class Cluster:
    """One switch, one controller at a time, and sessions of the real host agent."""

    def __init__(self, switch: SoftwareSwitch, forker: ControllerForker, port: int) -> None:
        self.switch, self.forker = switch, forker
        self.control = f"127.0.0.1:{port}"
        self.deaths = 0
        self.client = Client(port)
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._restart)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Replaces a controller that dies in this context by one that does not kill itself."""
        self._over.clear()
        self._watcher = threading.Thread(target=self._restart)
        self._watcher.start()
        try:
            yield
        finally:
            self._over.set()
            self._watcher.join()

    def run_a_job(self, name: str) -> None:
        """Two workers join, sum, and leave."""
        with ThreadPoolExecutor(2) as pool:
            sessions = list(pool.map(lambda rank: self.join(name, rank), range(2)))
            check_sums(sessions)
            for done in [pool.submit(session.close) for session in sessions]:
                done.result()

    def check_nothing_is_left(self) -> None:
        wait_until(lambda: self.jobs() == 0, "the last job is gone")
        report = self.client.report()
        assert report.switches[0].slots_free == SLOTS
        assert self.switch.stats().jobs_now == 0

    def join(self, name: str, rank: int, *standbys: int) -> Session:
        switch = ",".join([self.control, *(f"127.0.0.1:{port}" for port in standbys)])
        config = AgentConfig(switch=switch, join_timeout_s=PATIENCE_S, slots=SLOTS)
        return Session.join(config, job_name=name, rank=rank, world_size=2)

    def jobs(self) -> int:
        """The number of jobs; -1 while no controller answers."""
        with contextlib.suppress(grpc.RpcError):
            return len(self.client.jobs())
        return -1

    def _restart(self) -> None:
        while not self._over.wait(0.01):
            if not self.forker.is_alive():
                self.deaths += 1
                self.forker.start()

    def close(self) -> None:
        self.client.close()


def check_sums(sessions: Sequence[Session]) -> None:
    for n in range(3):
        data = [array.array("i", range(rank + n, 2000 + rank + n)) for rank in range(2)]
        regions = [Region(address, address, elements) for address, elements in map(array.array.buffer_info, data)]
        operations = [
            session.submit([region], dtype=Dtype.I32) for session, region in zip(sessions, regions, strict=True)
        ]
        for operation in operations:
            operation.wait(PATIENCE_S)
        assert all(list(values) == [2 * (i + n) + 1 for i in range(2000)] for values in data)


@pytest.fixture(scope="module")
def cluster(switch: ProgrammedSwitch, forker: ControllerForker, port: int) -> Iterator[Cluster]:
    cluster = Cluster(switch.switch, forker, port)
    yield cluster
    cluster.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "when"),
    [
        ("reconcile", "before"),
        ("reconcile", "after"),
        ("write keys", "before"),
        ("write keys", "after"),
        ("admit", "before"),
        ("admit", "after"),
        ("write running", "before"),
        ("grant", "before"),
        ("grant", "after"),
        ("write ending", "before"),
        ("evict", "before"),
        ("write forget", "before"),
        ("write forget", "after"),
    ],
)
def test_a_controller_that_dies_at_a_critical_point_loses_no_job_and_no_slot(
    cluster: Cluster, place: str, when: str
) -> None:
    cluster.forker.reattend_ms_max = 3000
    cluster.forker.start(place, when)
    deaths = cluster.deaths
    with cluster.watched():
        cluster.run_a_job(f"{place}-{when}".replace(" ", "-"))
        wait_until(lambda: cluster.deaths == deaths + 1, "it has died")
        cluster.check_nothing_is_left()
    cluster.forker.kill()


def test_killing_or_stopping_the_controller_does_not_disturb_running_sessions(cluster: Cluster) -> None:
    cluster.forker.reattend_ms_max = Limits().reattend_ms_max
    cluster.forker.start()
    deaths, moments = cluster.deaths, random.Random(1)
    with ThreadPoolExecutor(2) as pool, cluster.watched():
        sessions = list(pool.map(lambda rank: cluster.join("killed", rank), range(2)))
        for number, sent in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM), start=1):
            for _ in range(moments.randint(1, 20)):
                check_sums(sessions)
            cluster.forker.kill(sent)
            check_sums(sessions)
            wait_until(lambda number=number: cluster.deaths >= deaths + number, "it has ended")  # type: ignore[misc]
        check_sums(sessions)
        assert [session.failure for session in sessions] == [None, None]
        wait_until(lambda: cluster.jobs() == 1, "a controller answers")
        for done in [pool.submit(session.close) for session in sessions]:
            done.result()
        cluster.check_nothing_is_left()
    cluster.forker.kill()


def test_a_standby_takes_over_when_the_active_controller_is_killed(cluster: Cluster) -> None:
    first = cluster.forker.start()
    with ThreadPoolExecutor(2) as pool:
        sessions = list(pool.map(lambda rank: cluster.join("a-job", rank), range(2)))
        standby = cluster.forker.start(standby=True)
        check_sums(sessions)
        assert _is_alive(first), "a standby disturbs nobody"
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: cluster.jobs() == 1, "the standby serves the job")
        check_sums(sessions)
        for done in [pool.submit(session.close) for session in sessions]:
            done.result()
    cluster.check_nothing_is_left()
    assert _is_alive(standby)
    cluster.forker.kill()


@pytest.mark.nightly
def test_a_standby_takes_over_from_a_suspended_controller_which_then_ends_no_job(cluster: Cluster) -> None:
    first, other_port = cluster.forker.start(), unused_port()
    other = Client(other_port)

    def standby_serves() -> bool:
        with contextlib.suppress(grpc.RpcError):
            return [worker.state for job in other.jobs() for worker in job.workers] == ["attending"] * 2
        return False

    with ThreadPoolExecutor(2) as pool, contextlib.closing(other):
        sessions = list(pool.map(lambda rank: cluster.join("a-job", rank, other_port), range(2)))
        standby = cluster.forker.start(standby=True, port=other_port)
        check_sums(sessions)
        os.kill(first, signal.SIGSTOP)
        try:
            wait_until(standby_serves, "the standby has the job, and its workers")
            check_sums(sessions)
        finally:
            os.kill(first, signal.SIGCONT)
        wait_until(lambda: not _is_alive(first), "the suspended controller ends")
        check_sums(sessions)
        for done in [pool.submit(session.close) for session in sessions]:
            done.result()
        wait_until(lambda: other.jobs() == [], "the job is gone")
        assert cluster.switch.stats().jobs_now == 0
    assert _is_alive(standby)
    cluster.forker.kill()


def test_a_controller_may_be_deposed_while_its_switches_are_made_ready() -> None:
    class Server:
        deposed = ""

        def report(self) -> join.Report:
            self.deposed = "another controller has begun to serve"
            raise RuntimeError(self.deposed)

    server: Any = Server()
    controlling._wait_reconciled(server, threading.Event())
    assert server.deposed, "which the caller looks for next"
