"""A worker's key and certificate in a hostile hand, used from another host: what it can do to jobs of the certificate's
tenant, and what not."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator

import grpc
import pytest

from wiresum import join
from wiresum.controller import store
from wiresum_lab.doubles.controller import Attendance, Client, JoinCall, member_of, refusal_of
from wiresum_lab.doubles.workers import DATA, EMPTY, META, QUESTION, RESULT, Packet
from wiresum_lab.laboratory import HOST, HOSTILE, LANES, Job, Laboratory
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import unused_port, wait_until
from wiresum_lab.proxies import Proxies

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STOLEN, TENANT = "node7", "vision"
PACKETS, BURST = 4000, 50
TABLES = f"""
[[tenant]]
name = "{TENANT}"
slots = 128
waiting_jobs = 8
"""


class Hostile:
    """The stolen certificate, at a host that has no business here."""

    def __init__(self, laboratory: Laboratory) -> None:
        self.ways = [Proxies().make(port, HOSTILE) for port in laboratory.ports.values()]
        self.client = Client(self.ways[0].port, tls=laboratory.pki.tls(STOLEN))
        self.held: list[JoinCall] = []

    def close(self) -> None:
        self.client.close()

    def ask(self, **fields: object) -> JoinCall:
        endpoint = join.Endpoint(address=HOSTILE, port=unused_port())
        return self.client.join_soon(**{"endpoint": endpoint, "threads_max": 1, "lanes_max": LANES, **fields})

    def answer(self, call: JoinCall) -> str:
        """The first one."""
        self.held.append(call)
        try:
            return "granted" if next(call.events).HasField("granted") else "waiting"
        except grpc.RpcError as error:
            return refusal_of(error)[0]

    def refusal(self, call: Callable[[], object]) -> str:
        with pytest.raises(grpc.RpcError) as caught:
            call()
        return refusal_of(caught.value)[0]


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    """For all tests, of which the last revokes the certificate."""
    with Laboratory(tmp_path_factory.mktemp("laboratory"), tables=TABLES) as laboratory:
        for name in (STOLEN, "node8"):
            laboratory.pki.issue(name, "worker", tenants=(TENANT,))
        laboratory.pki.issue("speech", "worker", tenants=("speech",))
        yield laboratory


@pytest.fixture(scope="module")
def victim(laboratory: Laboratory) -> Iterator[Job]:
    """A job of the thief's own tenant, which is the worst case."""
    job = laboratory.job("victim", tls="node8")
    yield job
    job.finish()


@pytest.fixture
def hostile(laboratory: Laboratory, victim: Job) -> Iterator[Hostile]:
    with contextlib.closing(Hostile(laboratory)) as hostile:
        yield hostile


def secrets_of(laboratory: Laboratory, job_name: str) -> tuple[int, int, list[int]]:
    """Number and key of a job, and its workers' ports, as the controller's disk has them: more than any host sees."""
    path = laboratory.folder / "state" / store.FILE_NAME
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        ((number, body),) = database.execute("SELECT number, body FROM jobs WHERE name = ?", (job_name,))
    fields = json.loads(body)
    return number, fields["key"], [worker["endpoint"][1] for worker in fields["workers"]]


def member_calls(client: Client, member: join.Member) -> list[Callable[[], object]]:
    """What only the member may call."""
    stub, until = client.stub, {"timeout": PATIENCE_S}
    return [
        lambda: stub.Leave(join.LeaveRequest(member=member), **until),
        lambda: stub.Abort(join.AbortRequest(member=member, reason="mine"), **until),
        lambda: stub.Diagnose(member, **until),
        lambda: list(stub.Attend(iter([join.Heartbeat(member=member)]), **until)),
    ]


def test_it_cannot_touch_a_running_job(laboratory: Laboratory, victim: Job, hostile: Hostile) -> None:
    number, _, _ = secrets_of(laboratory, "victim")
    switch_name = laboratory.jobs_at()["victim"]
    own, until = hostile.ask(job_name="own").result(), {"timeout": PATIENCE_S}
    for rank in range(2):
        assert hostile.ask(job_name="victim", rank=rank, world_size=2).refusal()[0] == "ALREADY_EXISTS"
        for token in ("", f"{random.Random(rank).getrandbits(128):032x}"):
            member = join.Member(job=number, worker=rank, token=token, switch_name=switch_name)
            for call in member_calls(hostile.client, member):
                assert hostile.refusal(call) == "NOT_FOUND"
        # Its own token with the victim's place is its own job's: the token alone says who calls.
        member = join.Member(job=number, worker=rank, token=own.token, switch_name=switch_name)
        assert [each.peer.address for each in hostile.client.stub.Diagnose(member, **until).workers] == [HOSTILE]
    hostile.client.stub.Abort(join.AbortRequest(member=member, reason="mine"), **until)
    operator = hostile.client.operator
    for call in (
        lambda: operator.EndJob(join.EndJobRequest(job_name="victim"), **until),
        lambda: operator.Drain(join.DrainRequest(switch_name=switch_name), **until),
        lambda: operator.CreateJob(join.CreateJobRequest(job_name="x", world_size=1), **until),
        lambda: operator.GetReport(join.GetReportRequest(), **until),
    ):
        assert hostile.refusal(call) == "PERMISSION_DENIED"
    victim.goes_on()


def test_it_cannot_have_sums_sent_to_another_host_or_act_for_another_tenant(
    laboratory: Laboratory, hostile: Hostile
) -> None:
    elsewhere = join.Endpoint(address="192.0.2.77", port=5000)
    code, text = hostile.ask(job_name="mine", endpoint=elsewhere).refusal()
    assert (code, "names no address 192.0.2.77" in text) == ("PERMISSION_DENIED", True)
    assert hostile.ask(job_name="mine", tenant="speech").refusal()[0] == "PERMISSION_DENIED"
    honest = laboratory.start_job("of-speech", tls="speech", size=3)
    laboratory.await_report(
        lambda report: any(job.name == "of-speech" and job.joined == 3 for job in report.jobs), "it has begun"
    )
    assert hostile.ask(job_name="of-speech", rank=2, world_size=3).refusal()[0] in (
        "PERMISSION_DENIED", "FAILED_PRECONDITION",
    )  # fmt: skip
    wait_until(honest.steps, "it sums")
    honest.finish()


def test_packets_with_the_jobs_own_key_change_no_sum(laboratory: Laboratory, victim: Job, hostile: Hostile) -> None:
    """The thief has read number and key of the job, and knows the workers' ports, and where the switch takes packets of
    the job's first thread. A packet that is wrong in nothing but where it comes from would be counted as the job's."""
    number, key, ports = secrets_of(laboratory, "victim")
    chance = random.Random(7)
    at = laboratory.at[laboratory.jobs_at()["victim"]]
    stray = {s.name: s.stray_packets["unknown"] for s in laboratory.operator.report().switches}[at.name]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind((HOSTILE, 0))
        to_switch = 0
        for sent in range(PACKETS):
            kind = chance.choice((DATA, EMPTY, META, QUESTION, RESULT))
            numbered = chance.randrange(1, 1 << 12)
            words = tuple(chance.getrandbits(32) for _ in range(LANES)) if kind in (DATA, RESULT) else ()
            forged = Packet(
                kind=kind, job=number, key=key, worker=chance.randrange(2),
                cell=numbered % 2 + 2 * chance.randrange(32), round=numbered, tensor=1, chunk=chance.randrange(64),
                words=words,
            ).to_bytes()  # fmt: skip
            sender.sendto(forged, (HOST, chance.choice(ports) if kind is RESULT else at.data))
            to_switch += kind is not RESULT
            if sent % BURST == 0:
                victim.check()
    victim.goes_on()
    report = laboratory.await_report(
        lambda report: {s.name: s.stray_packets["unknown"] for s in report.switches}[at.name] > stray + 0.9 * to_switch,
        "the operator sees them: they are counted as packets of nobody",
    )
    assert {job.name: job.state for job in report.jobs}["victim"] == "running"
    victim.goes_on()


def test_it_can_begin_and_spoil_jobs_of_its_tenant_within_the_quota_and_operators_see_who_and_revoke(
    laboratory: Laboratory, victim: Job, hostile: Hostile
) -> None:
    laboratory.await_report(lambda report: [job.name for job in report.jobs] == ["victim"], "no other job is left")
    # It takes the place of a worker in a job that forms: the others find out when it does not sum.
    spoiled = laboratory.start_job("forming", tls="node8", ranks=[0])
    taken = hostile.ask(job_name="forming", rank=1, world_size=2).result()
    attendance = Attendance(hostile.client, taken)
    (job,) = [job for job in laboratory.operator.report().jobs if job.name == "forming"]
    thief = next(worker.peer for worker in job.workers if worker.peer.rank == 1)
    assert (thief.address, thief.certificate) == (HOSTILE, STOLEN), "operators see whose it is, and where"
    hostile.client.stub.Abort(join.AbortRequest(member=member_of(taken), reason="spite"), timeout=PATIENCE_S)
    assert "spite" in spoiled.error(0), "the job that it was let into, it can end"
    attendance.hang_up()

    # It takes slots, but no more than the tenant's quota, and holds no more names than that allows.
    answers = Counter(hostile.answer(hostile.ask(job_name=f"greedy-{n}", slots=64)) for n in range(12))
    assert answers == {"granted": 2, "waiting": 8, "RESOURCE_EXHAUSTED": 2}
    (vision,) = [tenant for tenant in laboratory.operator.report().tenants if tenant.name == TENANT]
    assert (vision.slots, vision.slots_max) == (128, 128)
    assert (vision.waiting_jobs, vision.waiting_jobs_max) == (8, 8)
    laboratory.job("of-speech", tls="speech").finish()
    victim.goes_on()

    laboratory.pki.revoke(STOLEN)
    laboratory.await_report(
        lambda report: [job.name for job in report.jobs] == ["victim"], "its jobs end, and its names are free"
    )
    code, text = hostile.ask(job_name="again").refusal()
    assert (code, "was revoked" in text) == ("UNAUTHENTICATED", True)
    victim.goes_on()
