"""How a session behaves in its process after a fork."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from wiresum.controller import JoinServer
from wiresum.switch import SoftwareSwitch
from wiresum_lab.patience import PATIENCE_S

HOST = "127.0.0.1"

WORKER = """
import array, gc, os, signal, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # what Python 3.12 and newer say of any fork where threads are
from wiresum.agent import AgentConfig, Dtype, Region, Session
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
