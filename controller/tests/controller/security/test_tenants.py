"""Only workers of a job's tenant, or those that an operator admits, can join it while it forms.

The certificates are real, service and switch are processes of their own, and sums are checked.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from wiresum import join
from wiresum.agent import AgentConfig, Dtype, JoinError, Region, Session
from wiresum.join import operator_pb2_grpc
from wiresum.join.credentials import open_channel
from wiresum_lab.processes import PATIENCE_S, Program, unused_port, wait_until, wiresum

CONTROLLER = """\
[controller]
listen = "127.0.0.1:{port}"

[security]
tls = "{tls}"

[[switch]]
name = "leaf"
kind = "software"
p4runtime = "127.0.0.1:{p4runtime}"
tls = "{tls}"
address = "127.0.0.1"
port = {data}
slots = 256
"""
ELEMENTS = 10_000


def start(cleanup: contextlib.ExitStack, log: Path, *arguments: str) -> re.Match[str]:
    """Starts the process; gives its TCP port, and for a switch its first UDP port, once it is ready."""
    program = cleanup.enter_context(Program(wiresum(*arguments), log))
    return program.await_text(r"ready: (?:control|P4Runtime) 127\.0\.0\.1:(\d+).*?(?:data 127\.0\.0\.1:(\d+)|\n)")


@pytest.fixture(scope="module", params=["wiresum switch", "wiresum controller"])
def service(
    request: pytest.FixtureRequest, controller_tls: Path, issue: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:  # fmt: skip
    folder = tmp_path_factory.mktemp("service")
    common = ("--port", "0", "--slots", "256", "--threads", "1")
    with contextlib.ExitStack() as cleanup:
        if request.param == "wiresum switch":
            arguments = ("--control", "127.0.0.1:0", "--tls", str(controller_tls), *common)
            yield f"127.0.0.1:{start(cleanup, folder / 'switch', 'switch', *arguments)[1]}"
            return
        tls = issue("switch", addresses=("127.0.0.1",))
        arguments = ("--p4runtime", "127.0.0.1:0", "--tls", str(tls), *common)
        ready = start(cleanup, folder / "switch", "switch", *arguments)
        config = folder / "cluster.toml"
        port = unused_port()
        config.write_text(CONTROLLER.format(port=port, tls=controller_tls, p4runtime=ready[1], data=ready[2]))
        start(cleanup, folder / "controller", "controller", "--config", str(config))
        yield f"127.0.0.1:{port}"


class Worker:
    """A worker process with the given certificate."""

    def __init__(self, service: str, tls: Path, **fields: str) -> None:
        self._config = AgentConfig(
            switch=service, tls=str(tls), threads=1, join_timeout_s=PATIENCE_S, **fields  # type: ignore[arg-type]
        )  # fmt: skip

    def join(self, job_name: str, rank: int) -> Session:
        return Session.join(self._config, job_name=job_name, rank=rank, world_size=2)

    def refusal(self, job_name: str, rank: int) -> tuple[str, str]:
        with pytest.raises(JoinError) as caught:
            self.join(job_name, rank).close()
        return caught.value.code, str(caught.value)


class Operator:
    def __init__(self, service: str, tls: Path) -> None:
        self._channel = open_channel(service, tls=tls)
        self.stub = operator_pb2_grpc.OperatorServiceStub(self._channel)

    def joined(self, job_name: str) -> int:
        report = self.stub.GetReport(join.GetReportRequest(), timeout=PATIENCE_S)
        return sum(job.joined for job in report.jobs if job.name == job_name)

    def create(self, job_name: str, tenant: str = "") -> str:
        asked = join.CreateJobRequest(job_name=job_name, world_size=2, tenant=tenant)
        return str(self.stub.CreateJob(asked, timeout=PATIENCE_S).job_token)

    def close(self) -> None:
        self._channel.close()


@pytest.fixture
def operator(service: str, operator_tls: Path) -> Iterator[Operator]:
    with contextlib.closing(Operator(service, operator_tls)) as operator:
        yield operator


def sum_and_leave(sessions: list[Session]) -> None:
    """Integers wrap around, so any outside contribution makes an element wrong."""
    with contextlib.ExitStack() as cleanup:
        for session in sessions:
            cleanup.callback(session.close)
        check_sums(sessions)


def check_sums(sessions: list[Session]) -> None:
    numbers = np.random.default_rng(1)
    data = [numbers.integers(-(2**31), 2**31, ELEMENTS, np.int32) for _ in sessions]
    expected = (data[0].astype(np.int64) + data[1]).astype(np.int32)
    operations = [
        session.submit([Region(own.ctypes.data, own.ctypes.data, own.size)], dtype=Dtype.I32)
        for session, own in zip(sessions, data, strict=True)
    ]
    for operation, own in zip(operations, data, strict=True):
        operation.wait(PATIENCE_S)
        assert np.array_equal(own, expected), "a sum is wrong"


def test_an_outsider_is_refused_while_a_job_forms_and_its_sums_are_exact(
    service: str, operator: Operator, issue: Callable[..., Path]
) -> None:
    vision = [Worker(service, issue("worker", f"vision-{rank}", tenants=("vision",))) for rank in range(2)]
    outsiders = {
        "is another tenant's than 'other', as whom this worker's certificate counts": issue("worker", "other"),
        "is another tenant's than 'speech', as this worker says": issue("worker", "s", tenants=("speech",)),
    }
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(vision[0].join, "victim", 0)
        wait_until(lambda: operator.joined("victim") == 1 or first.done(), "rank 0 has asked")
        for said, tls in outsiders.items():
            for rank in range(2):
                code, text = Worker(service, tls).refusal("victim", rank)
                assert code in ("PERMISSION_DENIED", "FAILED_PRECONDITION")
                assert said in text
                assert "vision" not in text
        second = vision[1].join("victim", 1)
        sessions = [first.result(PATIENCE_S), second]
    sum_and_leave(sessions)


def test_a_certificate_without_a_tenant_does_not_share_its_jobs(
    service: str, operator: Operator, issue: Callable[..., Path]
) -> None:
    """Two certificates of the same name are one account, as for a renewed certificate."""
    old, new, other = (Worker(service, issue("worker", name)) for name in ("node7", "node7", "node8"))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(old.join, "its-own", 0)
        wait_until(lambda: operator.joined("its-own") == 1 or first.done(), "rank 0 has asked")
        assert "is another tenant's than 'node8'" in other.refusal("its-own", 1)[1]
        second = new.join("its-own", 1)
        sum_and_leave([first.result(PATIENCE_S), second])


def test_an_operator_admits_certificates_without_a_tenant_to_a_job_with_its_token(
    service: str, operator: Operator, issue: Callable[..., Path]
) -> None:
    token = operator.create("shared")
    workers = [Worker(service, issue("worker", f"host{rank}"), job_token=token) for rank in range(2)]
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(workers[0].join, "shared", 0)
        wait_until(lambda: operator.joined("shared") == 1 or first.done(), "rank 0 has asked")
        assert "with its token alone" in Worker(service, issue("worker", "host2")).refusal("shared", 1)[1]
        second = workers[1].join("shared", 1)
        sum_and_leave([first.result(PATIENCE_S), second])


def test_the_token_of_a_tenants_job_does_not_admit_another_tenant(
    service: str, operator: Operator, issue: Callable[..., Path]
) -> None:
    token = operator.create("of-vision", tenant="vision")
    for tls in (issue("worker", "other"), issue("worker", "s", tenants=("speech",))):
        assert "is another tenant's" in Worker(service, tls, job_token=token).refusal("of-vision", 0)[1]
    operator.stub.EndJob(join.EndJobRequest(job_name="of-vision"), timeout=PATIENCE_S)


def test_an_error_names_a_worker_by_address_and_certificate_instead_of_its_claimed_host_name(
    service: str, operator: Operator, issue: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = issue("worker", "node7", tenants=("vision",))
    liar = "10.9.9.9, certificate 'root'"
    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as patch:
        patch.setattr("socket.gethostname", lambda: liar)
        first = pool.submit(Worker(service, tls).join, "named", 0)
        second = Worker(service, tls).join("named", 1)
    session = first.result()
    second.abort("out of spite")
    wait_until(lambda: session.failure is not None, "rank 0 hears of it")
    named = rf"rank 1 \(127\.0\.0\.1, certificate 'node7', process \d+ on {re.escape(repr(liar))}\)"
    assert re.search(f"{named} ended the job: out of spite", str(session.failure))
    for each in (session, second):
        each.close()
