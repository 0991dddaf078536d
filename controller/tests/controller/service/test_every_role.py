"""Every call at every role of a service: it is answered, or turned away so that the caller asks the next endpoint.
TABLE has what each gives, for a message without content."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import grpc
import pytest

from wiresum import join
from wiresum.controller import JoinServer
from wiresum.controller.security import Security
from wiresum.controller.security.security import SERVED
from wiresum.controller.service.standby_server import SERVICES, StandbyServer
from wiresum_lab.clocks.by_hand import FrozenClock
from wiresum_lab.doubles.controller import RecordingDriver
from wiresum_lab.patience import PATIENCE_S

TURNED_AWAY = f"UNAVAILABLE: {join.STANDS_BY}"
TABLE: dict[str, dict[str, str]] = {
    "JoinService/Join": {"active": "FAILED_PRECONDITION", "standby": TURNED_AWAY},
    "JoinService/Attend": {"active": "NOT_FOUND", "standby": TURNED_AWAY},
    "JoinService/Leave": {"active": "NOT_FOUND", "standby": TURNED_AWAY},
    "JoinService/Abort": {"active": "NOT_FOUND", "standby": TURNED_AWAY},
    "JoinService/Diagnose": {"active": "NOT_FOUND", "standby": TURNED_AWAY},
    "JoinService/Prove": {"active": "NOT_FOUND", "standby": TURNED_AWAY},
    "OperatorService/GetReport": {"active": "answered", "standby": "answered"},
    "OperatorService/ListEnded": {"active": "answered", "standby": TURNED_AWAY},
    "OperatorService/CreateJob": {"active": "INVALID_ARGUMENT", "standby": TURNED_AWAY},
    "OperatorService/EndJob": {"active": "NOT_FOUND", "standby": TURNED_AWAY},
    "OperatorService/Drain": {"active": "answered", "standby": TURNED_AWAY},
    "OperatorService/DiscardRecord": {"active": "NOT_FOUND", "standby": TURNED_AWAY},
    **{
        f"Health/{method.name}": {"active": "answered", "standby": TURNED_AWAY}
        for service in SERVICES
        for method in service.methods
        if service.name == "Health"  # defined by gRPC, and there may be more in later releases
    },
}
CALLS = [(service.full_name, method.name) for service in SERVICES for method in service.methods]


@pytest.fixture(scope="module")
def targets() -> Iterator[dict[str, str]]:
    with contextlib.ExitStack() as cleanup:
        active, standby = JoinServer(RecordingDriver(), clock=FrozenClock()), StandbyServer([], Security())
        cleanup.callback(active.stop, 0.1)
        cleanup.callback(standby.stop)
        servers = {"active": active, "standby": standby}
        yield {role: f"127.0.0.1:{server.start('127.0.0.1', 0)}" for role, server in servers.items()}


def test_the_table_has_every_call_of_every_service() -> None:
    assert {f"{service.partition('.v1.')[2]}/{method}" for service, method in CALLS} == set(TABLE)
    assert {service for service, _ in CALLS} == {name.partition("/")[0] for name in SERVED}


@pytest.mark.parametrize("role", ["active", "standby"])
@pytest.mark.parametrize(("service", "method"), CALLS)
def test_every_call_gives_what_the_table_says_and_no_traceback(
    targets: dict[str, str], service: str, method: str, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    with grpc.insecure_channel(targets[role]) as channel:
        call = channel.stream_stream(f"/{service}/{method}")(iter([b""]), timeout=PATIENCE_S)
        try:
            next(call)
            found = "answered"
        except grpc.RpcError as error:
            found = f"{error.code().name}: {error.details()}"
    assert found.startswith(TABLE[f"{service.partition('.v1.')[2]}/{method}"][role]), found
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_standby_reports_its_role(targets: dict[str, str]) -> None:
    with grpc.insecure_channel(targets["standby"]) as channel:
        answer = channel.unary_unary("/wiresum.join.v1.OperatorService/GetReport")(b"", timeout=PATIENCE_S)
    assert join.Report.FromString(answer).service.role == "standby"
