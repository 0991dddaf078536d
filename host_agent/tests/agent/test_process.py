"""How a session behaves in its process: after a fork, and when it gets too few threads or too little memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from wiresum.agent import AgentConfig, Session
from wiresum.controller import JoinServer
from wiresum.switch import SoftwareSwitch

PATIENCE_S = 40.0
HOST = "127.0.0.1"

WORKER = """
import array, gc, os, resource, signal, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # what Python 3.12 and newer say of any fork where threads are
from wiresum.agent import AgentConfig, Dtype, Region, Session
from wiresum.agent.job_membership import JobMembership

def join():
    config = AgentConfig(switch=sys.argv[1], threads=4)
    return Session.join(config, job_name="a-job", rank=0, world_size=1)

def sum_up(session):
    values = array.array("i", range(1000))
    address, elements = values.buffer_info()
    operation = session.submit([Region(address, address, elements)], dtype=Dtype.I32)
    operation.wait(10)
    return operation

exec(sys.argv[2])
"""

FORK = """
session = join()
done = sum_up(session)
for child in range(4):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
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
sum_up(session)
session.close()
print("went on")
"""

FEW_THREADS = """
attend, leave = JobMembership.attend, JobMembership.leave
user = 1_900_000_000 + os.getpid()
before = resource.getrlimit(resource.RLIMIT_NPROC)
threads = 0

def attend_with_few_threads(*arguments):  # and then the data path is opened
    global threads
    attend(*arguments)
    threads = len(os.listdir("/proc/self/task"))
    if os.getuid() == 0:
        os.setgroups([])
        os.setresuid(user, user, user)
    most = threads + 2 if os.getuid() == user else 1
    resource.setrlimit(resource.RLIMIT_NPROC, (most, before[1]))

def leave_with_more(*arguments):
    assert len(os.listdir("/proc/self/task")) <= threads
    resource.setrlimit(resource.RLIMIT_NPROC, before)
    leave(*arguments)

JobMembership.attend, JobMembership.leave = attend_with_few_threads, leave_with_more
try:
    join()
except RuntimeError as error:
    print(error)
"""


@pytest.fixture
def control() -> Iterator[str]:
    switch = SoftwareSwitch(bind=HOST, port=0, threads=1, slots=512)
    server = JoinServer(switch)
    yield f"{HOST}:{server.start(HOST, 0)}"
    server.stop(1.0)
    switch.close()


def run_worker(control: str, code: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", WORKER, control, code], check=False, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    return finished.stdout


def test_forked_children_end_cleanly_and_the_parent_goes_on(control: str) -> None:
    assert run_worker(control, FORK) == "went on\n"


def test_joining_with_too_few_threads_names_the_thread_and_the_limit(control: str) -> None:
    text = run_worker(control, FEW_THREADS)
    which = 3 if os.getuid() == 0 else 1
    assert f"cannot start engine thread {which} of 4 of this session" in text
    assert "ulimit -u" in text


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ("no-memory", "this worker's process could not allocate"),
        ("impossible", "in collective number 7 a sum came back that the workers cannot have made"),
    ],
)
def test_a_failure_of_the_data_path_names_the_worker(control: str, status: str, text: str) -> None:
    session = Session.join(AgentConfig(switch=control), job_name="a-job", rank=0, world_size=1)
    try:
        state = session._membership._ask()
        assert state is not None
        error = session._membership.explain("explain", {**state, "status": status, "tensor": "7"})
        assert f"rank 0 of job 'a-job': {text}" in str(error)
        session.native.abort(error)
        assert session.failure is error
    finally:
        session.close()
