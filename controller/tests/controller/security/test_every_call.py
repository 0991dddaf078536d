"""Every call of every service with every kind of certificate, on a forming and on a running job of another tenant.
TABLE has the expected result of each."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from wiresum import join
from wiresum.controller import JoinServer
from wiresum.controller.config import SecurityConfig
from wiresum.controller.security import Security
from wiresum.controller.security.authority import Authority, Holder
from wiresum.controller.security.names import Claims
from wiresum.controller.security.security import SERVED
from wiresum.join import join_pb2, join_pb2_grpc, operator_pb2, operator_pb2_grpc
from wiresum.join.credentials import load, open_channel
from wiresum_lab.doubles.controller import Attendance, Client, RecordingDriver, join_request
from wiresum_lab.processes import PATIENCE_S, wait_until

TENANT = "vision"
"""The tenant of the attacked job."""
CALLERS = {
    "no tenant": Holder("other", Claims(frozenset({"worker"}))),
    "other tenant": Holder("s", Claims(frozenset({"worker"}), tenants=("speech",))),
    "same tenant": Holder("v", Claims(frozenset({"worker"}), tenants=(TENANT,))),
    "both tenants": Holder("b", Claims(frozenset({"worker"}), tenants=(TENANT, "speech"))),
    "other jobs": Holder("n", Claims(frozenset({"worker"}), jobs=("night-*",), tenants=(TENANT,))),
    "operator": Holder("o", Claims(frozenset({"operator"}))),
    "controller": Holder("c", Claims(frozenset({"controller"})), ("127.0.0.1",)),
    "switch": Holder("w", Claims(frozenset({"switch"})), ("127.0.0.1",)),
    "revoked": Holder("lost", Claims(frozenset({"worker", "operator", "switch"}), tenants=(TENANT,))),
    "foreign": Holder("f", Claims(frozenset({"worker", "operator", "switch"}), tenants=(TENANT,))),
    "none": None,
}
"""Callers by what is special about their certificate; `foreign` is from another authority."""

FORMING, RUNNING = "forming", "running"
NOBODY = {"revoked": "revoked", "foreign": "no connection", "none": "no connection"}
NOT_WORKERS = {"operator": "role", "controller": "role", "switch": "role", **NOBODY}
OUTSIDERS = {"no tenant": "another tenant's", "other tenant": "another tenant's", "other jobs": "certificate's jobs"}
AS_NO_MEMBER = dict.fromkeys(("no tenant", "other tenant", "same tenant", "both tenants", "other jobs"), "no member")
NOT_OPERATORS = {**dict.fromkeys(AS_NO_MEMBER, "role"), "controller": "role", "switch": "role", **NOBODY}
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
EVERY_ROLE = dict.fromkeys((*AS_NO_MEMBER, "operator", "controller", "switch"), "ok")

TABLE: dict[tuple[str, str], dict[str, str]] = {
    # The second worker completes a forming job; in a running one all places are taken.
    ("JoinService/Join", FORMING): {"same tenant": "ok", "both tenants": "ok", **OUTSIDERS, **NOT_WORKERS},
    ("JoinService/Join", RUNNING): {"same tenant": "taken", "both tenants": "taken", **OUTSIDERS, **NOT_WORKERS},
    # For members only, who have a token.
    **{
        (f"JoinService/{method}", state): {**AS_NO_MEMBER, **NOT_WORKERS}
        for method in ("Attend", "Leave", "Abort", "Diagnose")
        for state in (FORMING, RUNNING)
    },
    **{
        (f"OperatorService/{method}", state): {"operator": "ok", **NOT_OPERATORS}
        for method in ("GetReport", "EndJob", "Drain")
        for state in (FORMING, RUNNING)
    },
    **{
        ("OperatorService/CreateJob", state): {"operator": "taken", **NOT_OPERATORS}
        for state in (FORMING, RUNNING)
    },
    # Workers see the ended jobs of their own tenants.
    **{
        ("OperatorService/ListEnded", state): {
            "no tenant": "sees nothing",
            "other tenant": "sees nothing",
            "same tenant": "ok",
            "both tenants": "ok",
            "other jobs": "ok",
            "operator": "ok",
            "controller": "role",
            "switch": "role",
            **NOBODY,
        }
        for state in (FORMING, RUNNING)
    },
    **{
        (f"Health/{method.name}", state): {**EVERY_ROLE, **NOBODY}
        for method in HEALTH.methods  # defined by gRPC, and there may be more in later releases
        for state in (FORMING, RUNNING)
    },
}  # fmt: skip
"""For each method and state of the attacked job, the result for each caller."""

MEANINGS = {
    ("PERMISSION_DENIED", "has not the role"): "role",
    ("PERMISSION_DENIED", "is another tenant's than 'other'"): "another tenant's",
    ("FAILED_PRECONDITION", "is another tenant's than 'speech'"): "another tenant's",
    ("PERMISSION_DENIED", "is for jobs 'night-*'"): "certificate's jobs",
    ("ALREADY_EXISTS", ""): "taken",
    ("NOT_FOUND", "knows no such member"): "no member",
    ("UNAUTHENTICATED", "was revoked"): "revoked",
    ("UNAVAILABLE", ""): "no connection",
}
"""The result that a status code and a part of its text stand for."""


def methods() -> list[str]:
    """Every method of every service that we serve, from the service definitions."""
    files = (join_pb2, operator_pb2, health_pb2)
    services = [service for file in files for service in file.DESCRIPTOR.services_by_name.values()]
    assert {service.full_name for service in services} == {name.partition("/")[0] for name in SERVED}
    return [f"{service.name}/{method.name}" for service in services for method in service.methods]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    ours, foreign = Authority.create(folder / "ca", "test"), Authority.create(folder / "foreign-ca", "test")
    for name, holder in CALLERS.items():
        if holder is not None:
            (foreign if name == "foreign" else ours).issue(holder, folder / name, 10)
    ours.issue(Holder("service", Claims(frozenset({"controller"})), ("127.0.0.1",)), folder / "service", 10)
    ours.revoke(ours.issued("lost"))
    shutil.copy(folder / "ca" / "ca.crl", folder / "service" / "ca.crl")
    return folder


class Service:
    """The real service with a recording switch, and a channel for each certificate."""

    def __init__(self, pki: Path, cleanup: contextlib.ExitStack) -> None:
        self.security = Security(SecurityConfig(tls=pki / "service", requests_burst=100_000))
        cleanup.callback(self.security.close)
        self.server = JoinServer(RecordingDriver(), security=self.security)
        cleanup.callback(self.server.stop, 0.1)
        self.target = f"127.0.0.1:{self.server.start('127.0.0.1', 0)}"
        self.channels = {name: cleanup.enter_context(self._channel(pki, name)) for name in CALLERS}
        self.victims = Client(self.server.port, channel=self.channels["same tenant"])
        self._numbers = itertools.count()
        self.victims.leave(self.victims.join(job_name="over"))

    def _channel(self, pki: Path, name: str) -> grpc.Channel:
        options = [("grpc.use_local_subchannel_pool", 1)]
        if name not in ("foreign", "none"):
            return open_channel(self.target, tls=pki / name, options=options)
        trusted = load(pki / "same tenant").authority
        own = [(pki / name / file).read_bytes() for file in ("tls.key", "tls.crt")] if name == "foreign" else []
        return grpc.secure_channel(self.target, grpc.ssl_channel_credentials(trusted, *own), options)

    def jobs(self) -> dict[str, join.JobReport]:
        return {job.name: job for job in self.server.report().jobs}

    @contextlib.contextmanager
    def victim(self, state: str) -> Iterator[join.JobReport]:
        """A job of two workers, of which only the first joins if it is to be forming."""
        name = f"victim-{next(self._numbers)}"
        ranks = range(1 if state == FORMING else 2)
        asked = [self.victims.join_soon(job_name=name, rank=rank, world_size=2) for rank in ranks]
        attendances = [Attendance(self.victims, call.result()) for call in asked] if state == RUNNING else []
        wait_until(lambda: name in self.jobs() and self.jobs()[name].state == state, f"the victim is {state}")
        yield self.jobs()[name]
        for attendance in attendances:
            attendance.hang_up()
        for call in asked:
            call.cancel()


@pytest.fixture(scope="module")
def service(pki: Path) -> Iterator[Service]:
    with contextlib.ExitStack() as cleanup:
        yield Service(pki, cleanup)


def call_of(service: Service, method: str, channel: grpc.Channel, job: join.JobReport) -> Callable[[], Any]:
    """The call of this method that an attacker of this job would make."""
    workers, operators = join_pb2_grpc.JoinServiceStub(channel), operator_pb2_grpc.OperatorServiceStub(channel)
    health = health_pb2_grpc.HealthStub(channel)
    member = join.Member(job=job.job, worker=1, token="0" * 32, switch_name=job.switch_name)
    switch = service.server.report().switches[0]
    asks_as = TENANT if channel is service.channels["both tenants"] else ""
    request = join_request(job_name=job.name, rank=1, world_size=2, attempt="mine", tenant=asks_as)
    end = {"timeout": PATIENCE_S}
    return {
        "JoinService/Join": lambda: list(workers.Join(request, **end)),
        "JoinService/Attend": lambda: list(workers.Attend(iter([join.Heartbeat(member=member)]), **end)),
        "JoinService/Leave": lambda: workers.Leave(join.LeaveRequest(member=member), **end),
        "JoinService/Abort": lambda: workers.Abort(join.AbortRequest(member=member), **end),
        "JoinService/Diagnose": lambda: workers.Diagnose(member, **end),
        "OperatorService/GetReport": lambda: operators.GetReport(join.GetReportRequest(), **end),
        "OperatorService/ListEnded": lambda: operators.ListEnded(join.ListEndedRequest(job_name="over"), **end),
        "OperatorService/CreateJob": lambda: operators.CreateJob(
            join.CreateJobRequest(job_name=job.name, world_size=2), **end
        ),
        "OperatorService/EndJob": lambda: operators.EndJob(join.EndJobRequest(job_name=job.name), **end),
        "OperatorService/Drain": lambda: operators.Drain(
            join.DrainRequest(switch_name=switch.name, resume=True), **end
        ),
        "Health/Check": lambda: health.Check(health_pb2.HealthCheckRequest(), **end),
        "Health/List": lambda: health.List(health_pb2.HealthListRequest(), **end),
        "Health/Watch": lambda: next(health.Watch(health_pb2.HealthCheckRequest(), **end)),
    }[method]


def outcome(call: Callable[[], Any]) -> str:
    try:
        answer = call()
    except grpc.RpcError as error:
        code, text = error.code().name, error.details()
        said = [word for (refused, part), word in MEANINGS.items() if refused == code and part in text]
        return said[0] if len(said) == 1 else f"{code}: {text}"
    return "sees nothing" if isinstance(answer, join.EndedJobs) and not answer.jobs else "ok"


def test_the_table_has_a_row_for_every_method_and_a_column_for_every_certificate() -> None:
    assert set(TABLE) == {(method, state) for method in methods() for state in (FORMING, RUNNING)}
    for row, by_caller in TABLE.items():
        assert set(by_caller) == set(CALLERS), row


@pytest.mark.parametrize("state", [FORMING, RUNNING])
@pytest.mark.parametrize("method", sorted({method for method, _ in TABLE}))
def test_every_call_with_every_certificate_gives_the_result_in_the_table(
    service: Service, method: str, state: str
) -> None:
    changes = method in ("JoinService/Join", "OperatorService/EndJob")
    with contextlib.ExitStack() as cleanup:
        job = cleanup.enter_context(service.victim(state))
        for caller, expected in TABLE[method, state].items():
            found = outcome(call_of(service, method, service.channels[caller], job))
            assert found == expected, f"{method} by {caller}, while the victim is {state}"
            if found == "ok" and changes:
                job = cleanup.enter_context(service.victim(state))
            left = service.jobs()[job.name]
            assert (left.state, left.joined, left.tenant) == (state, job.joined, TENANT), f"after {method} by {caller}"
