"""One certificate makes a controller hold answers that nobody reads, and positions of jobs that never go on: its memory
grows by a bounded amount, and others are served."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from wiresum import join
from wiresum_lab.doubles.controller import Client, join_request
from wiresum_lab.laboratory import LANES, Laboratory
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import Program, wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

MIB = 1 << 20
CALLS, CALLS_OF_CONNECTION = 500, 50
RECORDS = 400
"""Of over 1 kB each."""
SLOTS, WORKERS, JOBS = 32_768, 32, 40
"""Each worker says where it has halted in 128 KiB; the jobs would have 160 MiB."""
GROWTH_BYTES_MAX = 150 * MIB


def resident_bytes(program: Program) -> int:
    pages = Path(f"/proc/{program.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def clients(laboratory: Laboratory) -> Iterator[list[Client]]:
    """Of one hostile tenant, a connection each."""
    tls = laboratory.pki.issue("mallory", "worker", tenants=("mallory",))
    with contextlib.ExitStack() as cleanup:
        yield [
            cleanup.enter_context(contextlib.closing(Client(laboratory.ports["active"], tls=tls)))
            for _ in range(CALLS // CALLS_OF_CONNECTION)
        ]


@pytest.mark.parametrize("party", ["mallory", "operator"])
def test_answers_that_nobody_reads_are_small(laboratory: Laboratory, clients: list[Client], party: str) -> None:
    """A tenant's of its own ended jobs, and an operator's of all."""
    job, active = laboratory.job("through"), laboratory.controllers["active"]
    for number in range(RECORDS):
        settings = [{f"SETTING_{key}": value * 60 for key in range(5)} for value in "ab"]
        asked = {"job_name": f"{number:05}" + "n" * 100, "world_size": 2, "lanes_max": LANES, "host_name": "h" * 250}
        first = clients[0].join_soon(rank=0, agreed=settings[0], **asked)
        with pytest.raises(grpc.RpcError):
            clients[1].join(rank=1, agreed=settings[1], **asked)
        first.cancel()
    ended = clients[0].operator.ListEnded(join.ListEndedRequest(), timeout=PATIENCE_S)
    assert ended.next_page, "they are more than one answer"
    before = resident_bytes(active)
    held = []
    tls = laboratory.pki.tls(party)
    for client in (Client(laboratory.ports["active"], tls=tls) for _ in clients):
        calls = client.channel.stream_stream("/wiresum.join.v1.OperatorService/ListEnded")
        held += [calls(iter([b""])) for _ in range(CALLS_OF_CONNECTION)]
    job.for_seconds(5)
    assert laboratory.operator.report().service.role == "active"
    assert resident_bytes(active) - before < GROWTH_BYTES_MAX
    for call in held:
        call.cancel()
    job.finish()


def test_positions_of_jobs_that_never_go_on_are_bounded(laboratory: Laboratory, clients: list[Client]) -> None:
    job, active = laboratory.job("through"), laboratory.controllers["active"]
    before = resident_bytes(active)
    calls = []
    for number in range(JOBS):
        for rank in range(WORKERS - 1):
            said = join.Resumed(
                slots=SLOTS, threads=1, lanes=LANES, positions=os.urandom(4) * SLOTS, reason="none", job_id=bytes(16)
            )
            request = join_request(
                job_name=f"job-{number}",
                rank=rank,
                world_size=WORKERS,
                endpoint=join.Endpoint(address="127.0.0.1", port=1024 + number * WORKERS + rank),
                threads_max=1,
                lanes_max=LANES,
                timeout_ms=86_400_000,
                resumed=said,
            )
            calls.append(clients[(number * WORKERS + rank) % len(clients)].stub.Join(request))
        # One job after the other: what is on its way is not what is held.
        wait_until(lambda: sum(not call.done() for call in calls) <= 3 * (WORKERS - 1), "most are refused")
    refused = [call for call in calls if call.done()]
    assert {call.code() for call in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert resident_bytes(active) - before < GROWTH_BYTES_MAX
    job.goes_on()
    assert laboratory.operator.report().service.role == "active"
    for call in calls:
        call.cancel()
    wait_until(lambda: len(laboratory.operator.report().jobs) == 1, "the jobs are given up")
    job.finish()
