from __future__ import annotations

import grpc
import pytest

from wiresum import join
from wiresum.controller.security import Security
from wiresum.controller.service.standby_server import StandbyServer
from wiresum.join import join_pb2, operator_pb2
from wiresum_lab.processes import PATIENCE_S

CALLS = [
    (service.full_name, method.name)
    for file in (join_pb2, operator_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


@pytest.mark.parametrize(("service", "method"), CALLS)
def test_a_standby_answers_reports_and_refers_all_other_calls_to_the_active_controller(
    service: str, method: str
) -> None:
    server = StandbyServer([], Security())
    try:
        with grpc.insecure_channel(f"127.0.0.1:{server.start('127.0.0.1', 0)}") as channel:
            call = channel.stream_stream(f"/{service}/{method}")(iter([b""]), timeout=PATIENCE_S)
            if method == "GetReport":
                assert join.Report.FromString(next(call)).service.role == "standby"
                return
            with pytest.raises(grpc.RpcError) as caught:
                next(call)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert caught.value.details().startswith(join.STANDS_BY)
    finally:
        server.stop()
