"""Every call of every service with every kind of certificate, on a forming and on a running job of another tenant, at a
controller, at a job's fallback switch, and at a standby. TABLE has the expected result of each."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
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
from wiresum.controller.service.served_jobs import ServedJobs
from wiresum.controller.service.standby_server import ANSWERED, StandbyServer
from wiresum.join import join_pb2, join_pb2_grpc, operator_pb2, operator_pb2_grpc
from wiresum.join.credentials import load, open_channel
from wiresum.join.served import ServedJob, job_id
from wiresum_lab.doubles.controller import Attendance, Client, RecordingDriver, join_request
from wiresum_lab.laboratory import certified_earlier
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

pytestmark = pytest.mark.slow

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
    "expired": Holder("e", Claims(frozenset({"worker", "operator", "switch"}), tenants=(TENANT,))),
    "none": None,
    "plain": None,
}
"""Callers by what is special about their certificate; `foreign` is from another authority, `plain` uses no TLS."""
STRANGERS = ("foreign", "expired", "none", "plain")

FORMING, RUNNING = "forming", "running"
CONTROLLER, FALLBACK = "controller", "fallback"
SECRET, SLOTS = bytes(32), 64
"""Of the jobs that the fallback serves. An attacker knows all of them but the secret."""
NOBODY = {"revoked": "revoked", **dict.fromkeys(STRANGERS, "no connection")}
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
    # A controller is nobody's fallback.
    **{
        ("JoinService/Prove", state): {**dict.fromkeys(AS_NO_MEMBER, "no fallback"), **NOT_WORKERS}
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
    **{
        ("OperatorService/DiscardRecord", state): {"operator": "no record", **NOT_OPERATORS}
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
"""For each method and state of the attacked job, the result for each caller at a controller."""

SERVES_OTHERS = dict.fromkeys(("no tenant", "other tenant", "same tenant", "both tenants"), "serves other jobs")
AT_FALLBACK = {
    ("JoinService/Join", FORMING): SERVES_OTHERS,
    ("JoinService/Join", RUNNING): SERVES_OTHERS,
    # The proof is for this caller's number alone, and no secret.
    ("JoinService/Prove", FORMING): dict.fromkeys(AS_NO_MEMBER, "ok"),
    ("JoinService/Prove", RUNNING): dict.fromkeys(AS_NO_MEMBER, "ok"),
}
"""What differs at a fallback switch."""
REFUSED_BEFORE = {"role", "revoked", "no connection"}
"""Wherever the call is made: by a standby, too, which turns all others away but an operator who asks for the report."""

MEANINGS = {
    ("PERMISSION_DENIED", "does not have the role"): "role",
    ("PERMISSION_DENIED", "is another tenant's than 'other'"): "another tenant's",
    ("FAILED_PRECONDITION", "is another tenant's than 'speech'"): "another tenant's",
    ("PERMISSION_DENIED", "is for jobs 'night-*'"): "certificate's jobs",
    ("ALREADY_EXISTS", ""): "taken",
    ("NOT_FOUND", "knows no such member"): "no member",
    ("NOT_FOUND", "is not the fallback switch of a job"): "no fallback",
    ("NOT_FOUND", "is set aside; there are: none"): "no record",
    ("PERMISSION_DENIED", "this is the fallback switch of other jobs"): "serves other jobs",
    ("UNAUTHENTICATED", "was revoked"): "revoked",
    ("UNAVAILABLE", join.STANDS_BY): "stands by",
    ("UNAVAILABLE", "failed to connect"): "no connection",
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
            expired = certified_earlier(timedelta(days=30)) if name == "expired" else contextlib.nullcontext()
            with expired:
                (foreign if name == "foreign" else ours).issue(holder, folder / name, 10)
    ours.issue(Holder("service", Claims(frozenset({"controller"})), ("127.0.0.1",)), folder / "service", 10)
    ours.revoke(ours.issued("lost"))
    shutil.copy(folder / "ca" / "ca.crl", folder / "service" / "ca.crl")
    return folder


class Channels:
    """One for each certificate."""

    def __init__(self, pki: Path, target: str, cleanup: contextlib.ExitStack) -> None:
        self._pki, self._target = pki, target
        self.of = {name: cleanup.enter_context(self._open(name)) for name in CALLERS}

    def _open(self, name: str) -> grpc.Channel:
        options = [("grpc.use_local_subchannel_pool", 1)]
        if name == "plain":
            return grpc.insecure_channel(self._target, options)
        if name not in STRANGERS:
            return open_channel(self._target, tls=self._pki / name, options=options)
        trusted = load(self._pki / "same tenant").authority
        files = ("tls.key", "tls.crt") if name != "none" else ()
        own = [(self._pki / name / file).read_bytes() for file in files]
        return grpc.secure_channel(self._target, grpc.ssl_channel_credentials(trusted, *own), options)


def secured(pki: Path, cleanup: contextlib.ExitStack) -> Security:
    security = Security(SecurityConfig(tls=pki / "service"), requests_burst=100_000)
    cleanup.callback(security.close)
    return security


class Service:
    """The real service with a recording switch."""

    def __init__(self, pki: Path, kind: str, cleanup: contextlib.ExitStack) -> None:
        self.kind = kind
        self._served = ServedJobs() if kind == FALLBACK else None
        self.server = JoinServer(RecordingDriver(), security=secured(pki, cleanup), served=self._served)
        cleanup.callback(self.server.stop, 0.1)
        target = f"127.0.0.1:{self.server.start('127.0.0.1', 0)}"
        self.channels = Channels(pki, target, cleanup).of
        self.victims = Client(self.server.port, channel=self.channels["same tenant"])
        self._numbers = itertools.count()
        self._serve("over", 1)
        self.victims.leave(self.victims.join(job_name="over", **self._as_member()))

    def expected(self, method: str, state: str) -> dict[str, str]:
        differs = AT_FALLBACK.get((method, state), {}) if self.kind == FALLBACK else {}
        return {**TABLE[method, state], **differs}

    def _serve(self, job_name: str, workers: int) -> None:
        if self._served is not None:
            self._served.replace([ServedJob(job_name, TENANT, SECRET.hex(), workers, SLOTS)])

    def _as_member(self) -> dict[str, Any]:
        """What a worker of the victim says besides, since it knows the secret."""
        return going_on(SECRET) if self.kind == FALLBACK else {}

    def jobs(self) -> dict[str, join.JobReport]:
        return {job.name: job for job in self.server.report().jobs}

    @contextlib.contextmanager
    def victim(self, state: str) -> Iterator[join.JobReport]:
        """A job of two workers, of which only the first joins if it is to be forming."""
        name = f"victim-{next(self._numbers)}"
        ranks = range(1 if state == FORMING else 2)
        self._serve(name, 2)
        asked = [self.victims.join_soon(job_name=name, rank=rank, world_size=2, **self._as_member()) for rank in ranks]
        attendances = [Attendance(self.victims, call.result()) for call in asked] if state == RUNNING else []
        wait_until(lambda: name in self.jobs() and self.jobs()[name].state == state, f"the victim is {state}")
        yield self.jobs()[name]
        for attendance in attendances:
            attendance.hang_up()
        for call in asked:
            call.cancel()


def going_on(secret: bytes) -> dict[str, Any]:
    """What a worker says of a job that goes on."""
    said = join.Resumed(slots=SLOTS, threads=1, lanes=64, positions=bytes(4 * SLOTS), job_id=job_id(secret))
    return {"resumed": said, "slots": SLOTS, "lanes_max": 64, "threads_max": 1}


@pytest.fixture(scope="module", params=[CONTROLLER, FALLBACK])
def service(pki: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    with contextlib.ExitStack() as cleanup:
        yield Service(pki, request.param, cleanup)


def call_of(
    method: str, channel: grpc.Channel, job: join.JobReport, *, tenant: str = "", **said: Any
) -> Callable[[], Any]:
    """The call of this method that an attacker of this job would make. `said`: in a Join."""
    workers, operators = join_pb2_grpc.JoinServiceStub(channel), operator_pb2_grpc.OperatorServiceStub(channel)
    health = health_pb2_grpc.HealthStub(channel)
    member = join.Member(job=job.job, worker=1, token="0" * 32, switch_name=job.switch_name)
    request = join_request(job_name=job.name, rank=1, world_size=2, attempt="mine", tenant=tenant, **said)
    end = {"timeout": PATIENCE_S}
    return {
        "JoinService/Join": lambda: list(workers.Join(request, **end)),
        "JoinService/Attend": lambda: list(workers.Attend(iter([join.Heartbeat(member=member)]), **end)),
        "JoinService/Leave": lambda: workers.Leave(join.LeaveRequest(member=member), **end),
        "JoinService/Abort": lambda: workers.Abort(join.AbortRequest(member=member), **end),
        "JoinService/Diagnose": lambda: workers.Diagnose(member, **end),
        "JoinService/Prove": lambda: workers.Prove(join.Challenge(job_name=job.name, nonce=bytes(16)), **end),
        "OperatorService/GetReport": lambda: operators.GetReport(join.GetReportRequest(), **end),
        "OperatorService/ListEnded": lambda: operators.ListEnded(join.ListEndedRequest(job_name="over"), **end),
        "OperatorService/CreateJob": lambda: operators.CreateJob(
            join.CreateJobRequest(job_name=job.name, world_size=2), **end
        ),
        "OperatorService/EndJob": lambda: operators.EndJob(join.EndJobRequest(job_name=job.name), **end),
        "OperatorService/Drain": lambda: operators.Drain(
            join.DrainRequest(switch_name=job.switch_name, resume=True), **end
        ),
        "OperatorService/DiscardRecord": lambda: operators.DiscardRecord(
            join.DiscardRecordRequest(job_name=job.name), **end
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


def as_tenant(caller: str) -> str:
    """Of a certificate that names several, one is to be asked for."""
    return TENANT if caller == "both tenants" else ""


METHODS = sorted({method for method, _ in TABLE})


@pytest.mark.parametrize("state", [FORMING, RUNNING])
@pytest.mark.parametrize("method", METHODS)
def test_every_call_with_every_certificate_gives_the_result_in_the_table(
    service: Service, method: str, state: str
) -> None:
    changes = method in ("JoinService/Join", "OperatorService/EndJob")
    said = going_on(bytes(31)) if service.kind == FALLBACK else {}
    with contextlib.ExitStack() as cleanup:
        job = cleanup.enter_context(service.victim(state))
        for caller, expected in service.expected(method, state).items():
            found = outcome(call_of(method, service.channels[caller], job, tenant=as_tenant(caller), **said))
            assert found == expected, f"{method} by {caller}, while the victim is {state}"
            if found == "ok" and changes:
                job = cleanup.enter_context(service.victim(state))
            left = service.jobs()[job.name]
            assert (left.state, left.joined, left.tenant) == (state, job.joined, TENANT), f"after {method} by {caller}"


def test_a_members_token_alone_says_who_calls(service: Service) -> None:
    """Of a job of its own, with a place in the victim."""
    if service.kind == FALLBACK:
        pytest.skip("it serves one job")
    with service.victim(RUNNING) as victim:
        own = service.victims.join(job_name="own")
        member = join.Member(job=victim.job, worker=1, token=own.token, switch_name=victim.switch_name)
        until = {"timeout": PATIENCE_S}
        assert len(service.victims.stub.Diagnose(member, **until).workers) == 1, "its own job's"
        service.victims.stub.Abort(join.AbortRequest(member=member), **until)
        ended = [job.state for name, job in service.jobs().items() if name == "own"]
        assert ended in ([], ["ending"]), "its own job"
        assert service.jobs()[victim.name].state == RUNNING


def test_a_standby_refuses_the_same_callers_and_turns_the_others_away(pki: Path) -> None:
    job = join.JobReport(name="victim", job=1, switch_name="leaf")
    with contextlib.ExitStack() as cleanup:
        server = StandbyServer([], secured(pki, cleanup))
        cleanup.callback(server.stop)
        channels = Channels(pki, f"127.0.0.1:{server.start('127.0.0.1', 0)}", cleanup).of
        for method, caller in itertools.product(METHODS, CALLERS):
            at_controller = TABLE[method, FORMING][caller]
            answers = ANSWERED.endswith(method) and at_controller == "ok"
            expected = at_controller if answers or at_controller in REFUSED_BEFORE else "stands by"
            found = outcome(call_of(method, channels[caller], job, tenant=as_tenant(caller)))
            assert found == expected, f"{method} by {caller}"
