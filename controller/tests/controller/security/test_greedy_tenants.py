"""A tenant that takes all it can stops nobody: the next one's jobs go to another switch, or wait and say for what.

The certificates, the service and the switches' P4Runtime servers are real. The workers ask, and send nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wiresum import join
from wiresum.cli.setup import plan
from wiresum.controller import JoinServer, Limits, config
from wiresum.controller.p4runtime import P4RuntimeSwitch, targets_of
from wiresum.controller.security import Security
from wiresum.switch.p4runtime import P4RuntimeServer
from wiresum.switch.software_switch import SoftwareSwitch
from wiresum_lab.doubles.controller import Client, JoinCall
from wiresum_lab.processes import wait_until

SWITCH = """\
[[switch]]
name = "{name}"
kind = "software"
p4runtime = "127.0.0.1:{p4runtime}"
address = "127.0.0.1"
port = {port}
lanes = 64
"""
NAMES = ("left", "right")
PATIENT = Limits(attend_ms_max=3_600_000, drain_ms_max=100)
"""Workers that never attend are not lost while a test runs."""
WIDE = {"slots": 16, "threads_max": 16}
"""A job of 32 such workers takes 512 of the 4,096 entries of table admit, and 16 of as many slots."""

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

    def taken(self, resource: str) -> dict[str, int]:
        return {switch.name: switch.room_taken[resource] for switch in self.operator.report().switches}

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
                switch = cleanup.enter_context(contextlib.closing(SoftwareSwitch(port=0, threads=1, lanes_max=64)))
                server = P4RuntimeServer(switch, 0)
                port = server.start("127.0.0.1:0")
                cleanup.callback(server.stop)
                text += SWITCH.format(name=name, p4runtime=port, port=switch.endpoint.port)
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


@pytest.mark.slow
def test_eight_jobs_of_one_certificate_stop_nobody(start: Start) -> None:
    cluster = start()
    cluster.drain("right")
    for n in range(8):
        cluster.of("greedy").join_all(32, job_name=f"greedy-{n}", **WIDE)
    assert cluster.taken("admit") == {"left": 4096, "right": 0}
    assert cluster.taken("slots")["left"] == 128
    cluster.drain("right", resume=True)
    honest = cluster.of("honest").join(job_name="honest", tenant="honest", threads_max=1)
    assert honest.switch_name == "right", "the other switch has room"
    for n in range(8, 15):
        cluster.of("greedy").join_all(32, job_name=f"greedy-{n}", **WIDE)
    calls, why = cluster.wait_for("honest", "wide", 32, **WIDE)
    assert why.endswith(
        "table admit of left has room for 4096 entries; 4096 are taken and this job needs 512: 8 jobs of other tenants "
        "have 4096; table admit of right has room for 4096 entries; 3585 are taken and this job needs 512: job "
        "'honest' has 1, 7 jobs of other tenants have 3584"
    )
    cluster.end("greedy-3")
    assert {call.result().switch_name for call in calls} == {"left"}, "it begins when a job has ended there"
    ended = cluster.operator.operator.ListEnded(join.ListEndedRequest()).jobs
    assert [(job.name, job.outcome) for job in ended] == [("greedy-3", "ended_by_operator")]


@pytest.mark.slow
def test_honest_jobs_that_fill_a_table_let_the_next_one_go_to_another_switch(start: Start) -> None:
    cluster = start()
    cluster.drain("right")
    for n in range(32):
        cluster.of(f"team-{n % 4}").join_all(32, job_name=f"job-{n}", slots=16, threads_max=4)
    calls, why = cluster.wait_for("team-0", "next", 32, slots=16, threads_max=4)
    assert "table admit of left has room for 4096 entries; 4096 are taken and this job needs 128" in why
    assert "job 'job-0' has 128, job 'job-12' has 128, job 'job-16' has 128, 5 more of the same tenant have 640" in why
    cluster.drain("right", resume=True)
    other = cluster.of("team-1").join_all(32, job_name="other", slots=16, threads_max=4)
    assert {reply.switch_name for reply in other} == {"right"}
    assert {call.result().switch_name for call in calls} == {"right"}


def test_two_jobs_that_ask_for_everything_get_half_of_it_as_setup_configures(start: Start) -> None:
    cluster = start(plan.tenant_table(switches=2))
    greedy = cluster.of("greedy")
    code, text = greedy.refusal(job_name="first", slots=32768, priority=1_000_000)
    assert code == "RESOURCE_EXHAUSTED"
    assert "priority 1000000 is more than tenant 'greedy' may have, 0" in text
    assert greedy.join(job_name="first", slots=32768).slots == 4096
    (second,), why = cluster.wait_for("greedy", "second", 1, slots=32768)
    assert "the quota of tenant 'greedy' is used up (128 jobs, 4096 slots and 4096 worker threads)" in why
    honest = cluster.of("honest").join_all(2, job_name="honest")
    assert {reply.slots for reply in honest} == {256}
    quotas = {tenant.name: (tenant.slots, tenant.slots_max) for tenant in cluster.operator.report().tenants}
    assert quotas == {"greedy": (4096, 4096), "honest": (256, 4096)}
    cluster.end("first")
    assert second.result().slots == 4096


def test_a_tenants_rank_that_asks_again_and_again_holds_a_bounded_number_of_names(start: Start) -> None:
    cluster = start("[[tenant]]\nwaiting_jobs = 4\nforming_s = 5\n")
    greedy = cluster.of("greedy")
    held = [greedy.join_soon(job_name=f"night-{n}", world_size=2, timeout_ms=86_400_000) for n in range(4)]
    wait_until(lambda: len(cluster.operator.jobs()) == 4, "four names are held")
    code, text = greedy.refusal(job_name="night-4", world_size=2)
    assert (code, "4 jobs of tenant 'greedy' form or wait" in text) == ("RESOURCE_EXHAUSTED", True)
    (tenant,) = cluster.operator.report().tenants
    assert (tenant.waiting_jobs, tenant.waiting_jobs_max, tenant.forming_seconds_max) == (4, 4, 5.0)
    assert "s at most" in cluster.operator.jobs()[0].waiting
    for call in held:
        code, text = call.refusal()
        assert code == "DEADLINE_EXCEEDED"
        assert "the longest that jobs of its tenant may form" in text
    assert cluster.of("honest").join(job_name="night-0").slots == 256
