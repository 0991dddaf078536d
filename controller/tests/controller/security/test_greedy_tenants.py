"""A tenant that takes all it can stops nobody: the next one's jobs go to another switch, or wait and say for what.

The certificates, the service and the switches' P4Runtime servers are real. The workers ask, and send nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wiresum import join
from wiresum.controller import JoinServer, Limits, config
from wiresum.controller.p4runtime import P4RuntimeSwitch, targets_of
from wiresum.controller.security import Security
from wiresum_lab.doubles.controller import Client, JoinCall
from wiresum_lab.doubles.p4runtime_proxy import programmed_switch
from wiresum_lab.processes import wait_until

SWITCH = """\
[[switch]]
name = "{name}"
kind = "software"
p4runtime = "{p4runtime}"
address = "127.0.0.1"
port = {port}
lanes = 64
"""
NAMES = ("left", "right")
PATIENT = Limits(attend_ms_max=3_600_000, drain_ms_max=100)
"""Workers that never attend are not lost while a test runs."""

Start = Callable[..., "Cluster"]


class Cluster:
    def __init__(self, server: JoinServer, operator: Client, connect: Callable[[str], Client]) -> None:
        self.server, self.operator, self._connect = server, operator, connect
        self._clients: dict[str, Client] = {}

    def of(self, tenant: str) -> Client:
        if tenant not in self._clients:
            self._clients[tenant] = self._connect(tenant)
        return self._clients[tenant]

    def drain(self, switch_name: str, *, resume: bool = False) -> None:
        self.operator.operator.Drain(join.DrainRequest(switch_name=switch_name, resume=resume))

    def end(self, job_name: str) -> None:
        self.operator.operator.EndJob(join.EndJobRequest(job_name=job_name))

    def wait_for(self, tenant: str, job_name: str, world_size: int, **fields: object) -> tuple[list[JoinCall], str]:
        """Asks for a job that cannot begin now. Returns what it waits for, too."""
        client = self.of(tenant)
        calls = [
            client.join_soon(job_name=job_name, rank=rank, world_size=world_size, **fields)
            for rank in range(world_size)
        ]
        wait_until(lambda: self.state(job_name) == "queued", f"{job_name} is in the queue")
        return calls, next(job.waiting for job in self.operator.jobs() if job.name == job_name)

    def state(self, job_name: str) -> str:
        return next((job.state for job in self.operator.jobs() if job.name == job_name), "")


@pytest.fixture
def start(controller_tls: Path, operator_tls: Path, issue: Callable[..., Path], tmp_path: Path) -> Iterator[Start]:
    """Starts two switches and a controller; `tenants` is that part of the configuration."""
    with contextlib.ExitStack() as cleanup:

        def connect(port: int, tls: Path) -> Client:
            return cleanup.enter_context(contextlib.closing(Client(port, tls=tls)))

        def start(tenants: str = "") -> Cluster:
            text = tenants
            for name in NAMES:
                made = cleanup.enter_context(programmed_switch(lanes_max=64))
                text += SWITCH.format(name=name, p4runtime=made.p4runtime, port=made.switch.endpoint.port)
            (tmp_path / "cluster.toml").write_text(text)
            loaded = config.load(tmp_path / "cluster.toml")
            drivers = [P4RuntimeSwitch(target, election_id=1) for target in targets_of(loaded.switches)]
            for driver in drivers:
                cleanup.callback(driver.close)
                driver.wait_ready()
            security = Security(config.SecurityConfig(tls=controller_tls))
            cleanup.callback(security.close)
            service = JoinServer(drivers, PATIENT, quotas=loaded.quotas, security=security)
            service.start("127.0.0.1", 0)
            cleanup.callback(service.stop, 0.5)
            operator = connect(service.port, operator_tls)
            wait_until(lambda: {s.state for s in operator.report().switches} == {"ready"}, "the switches are ready")

            def connect_tenant(tenant: str) -> Client:
                return connect(service.port, issue("worker", f"of {tenant}", tenants=(tenant,)))

            return Cluster(service, operator, connect_tenant)

        yield start


def test_jobs_that_ask_for_everything_get_half_of_each_switch(start: Start) -> None:
    cluster = start("[[tenant]]\n")
    greedy = cluster.of("greedy")
    cluster.drain("right")
    assert greedy.join(job_name="first", slots=32768).slots == 2048
    (second,), why = cluster.wait_for("greedy", "second", 1, slots=32768)
    assert "one tenant may have 50% of left, 2048 slots; its jobs have 2048; right takes no new jobs" in why
    honest = cluster.of("honest").join_all(2, job_name="honest", slots=2048)
    assert {(reply.switch_name, reply.slots) for reply in honest} == {("left", 2048)}, "it has the other half"
    cluster.drain("right", resume=True)
    granted = second.result()
    assert (granted.switch_name, granted.slots) == ("right", 2048)
    (third,), why = cluster.wait_for("greedy", "third", 1)
    assert "one tenant may have 50% of left, 2048 slots; its jobs have 2048" in why
    assert "one tenant may have 50% of right, 2048 slots; its jobs have 2048" in why
    assert cluster.of("honest").join(job_name="later", slots=2048).switch_name == "right"
    tenants = {tenant.name: tenant for tenant in cluster.operator.report().tenants}
    assert {name: tenant.slots for name, tenant in tenants.items()} == {"greedy": 4096, "honest": 4096}
    for tenant in tenants.values():
        assert {each.switch_name: each.room_taken["slots"] for each in tenant.switches} == {"left": 2048, "right": 2048}
        assert {each.room["slots"] for each in tenant.switches} == {2048}
    cluster.end("first")
    assert third.result().switch_name == "left"
