"""If the network does not deliver a job's multicast group to a worker, sums are still right, and the worker warns
that it is slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from wiresum_lab.namespaces.star import STAR_DEVICE, Star
from wiresum_lab.namespaces.transports import start_switch, start_worker
from wiresum_lab.patience import PATIENCE_S

WORKERS = 2
PACKETS = 150
DEAF = 1
GROUPS = "239.192.0.0"
SAID = "did not come by it: each had to be asked for"
WORKER = """
import sys, numpy
from wiresum.agent import AgentConfig, Dtype, Region, Session
rank, size, elements = map(int, sys.argv[1:4])
session = Session.join(AgentConfig.from_environment(), job_name="deaf", rank=rank, world_size=size)
for timeout_s in (None, 0.01 if sys.argv[4] == "impatient" else None):
    values = numpy.arange(rank, rank + elements, dtype=numpy.int32)
    region = Region(values.ctypes.data, values.ctypes.data, elements)
    session.submit([region], dtype=Dtype.I32, notify=False, timeout_s=timeout_s).wait()
    assert (values == size * numpy.arange(elements) + sum(range(size))).all()
session.close()
"""

pytestmark = pytest.mark.usefixtures("namespaces")


@pytest.mark.nightly
@pytest.mark.parametrize("carried", [True, False])
def test_a_worker_that_does_not_receive_its_group_warns(carried: bool, tmp_path: Path) -> None:
    with Star(WORKERS, racks=1) as star:
        if not carried:
            # Makes the workers' Ethernet switch stop sending multicast frames to this worker's port.
            rack = star.rack_of(DEAF)
            rack.run(["ip", "link", "set", "dev", STAR_DEVICE, "type", "bridge", "mcast_snooping", "0"])
            rack.run(["ip", "link", "set", "dev", f"port{DEAF}", "type", "bridge_slave", "mcast_flood", "off"])
        start_switch(star, "udp", tmp_path / "switch.log", "--multicast", GROUPS)
        workers = []
        for rank, host in enumerate(star.workers):
            patience = "patient" if carried or rank != DEAF else "impatient"
            command = ["-c", WORKER, str(rank), str(WORKERS), str(PACKETS * 360), patience]
            workers.append(start_worker(star, host, "udp", command, tmp_path / f"rank-{rank}.log"))
        codes = [worker.process.wait(PATIENCE_S) for worker in workers]
    said = [worker.said() for worker in workers]
    if carried:
        assert codes == [0] * WORKERS, said
        assert said == [""] * WORKERS
    else:
        assert SAID in said[DEAF].splitlines()[0]
        assert SAID not in said[1 - DEAF].splitlines()[0]
        for text in said:
            assert f"rank {DEAF} of job" in text and "Timed out waiting for collective number" in text
            assert "does the network carry that from it to this worker (IGMP snooping needs a querier)" in text
