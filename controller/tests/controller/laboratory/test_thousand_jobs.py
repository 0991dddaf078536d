"""A thousand small jobs ask at once: all wait in the queue, each gets its slots in turn, and meanwhile operators are
served, a training goes on, and a job of another tenant gets its turn."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest

from wiresum import join
from wiresum.agent.control import RETRY_PAUSE_S, ask_again_after_s
from wiresum.join import join_pb2_grpc
from wiresum.join.credentials import load
from wiresum_lab.doubles.controller import join_request, member_of
from wiresum_lab.laboratory import LANES, SLOTS, SWITCHES, Laboratory
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

T = TypeVar("T")

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

JOBS, CONNECTIONS = 1000, 20
SLOTS_OF_JOB = 16
TURN_S_MAX = 4 * PATIENCE_S
"""For all of them."""
TABLES = f"""
[jobs]
waiting_per_host = {JOBS + 1}

[[tenant]]
waiting_jobs = {JOBS + 1}
"""


@pytest.fixture
def laboratory(tmp_path: Path) -> Iterator[Laboratory]:
    with Laboratory(tmp_path, tables=TABLES) as laboratory:
        laboratory.pki.issue("honest", "worker", tenants=("honest",))
        yield laboratory


class Asking(threading.Thread):
    """Workers of as many jobs, each alone in its job, which leave as soon as they have their slots."""

    def __init__(self, laboratory: Laboratory) -> None:
        super().__init__(daemon=True)
        self._target_at = f"127.0.0.1:{laboratory.ports['active']}"
        self._credentials = load(laboratory.pki.tls("worker")).of_channel()
        self.granted: list[join.JoinReply] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._ask())
        except BaseException as error:
            self.failure = error

    async def _ask(self) -> None:
        async with contextlib.AsyncExitStack() as cleanup:
            options = [("grpc.use_local_subchannel_pool", 1)]
            channels = [
                await cleanup.enter_async_context(grpc.aio.secure_channel(self._target_at, self._credentials, options))
                for _ in range(CONNECTIONS)
            ]
            stubs = [join_pb2_grpc.JoinServiceStub(channel) for channel in channels]
            await asyncio.gather(*(self._have_a_turn(stubs[job % CONNECTIONS], job) for job in range(JOBS)))

    async def _have_a_turn(self, stub: Any, job: int) -> None:
        request = join_request(
            job_name=f"small-{job}", slots=SLOTS_OF_JOB, lanes_max=LANES, threads_max=1,
            timeout_ms=int(1000 * TURN_S_MAX), process_id=1 + job, attempt=f"attempt-{job}",
        )  # fmt: skip
        granted = await _until_answered(lambda: _grant(stub.Join(request, timeout=TURN_S_MAX)))
        self.granted.append(granted)
        leave = join.LeaveRequest(member=member_of(granted))
        await _until_answered(lambda: stub.Leave(leave, timeout=TURN_S_MAX))


async def _grant(call: Any) -> join.JoinReply:
    async for event in call:
        if event.HasField("granted"):
            granted: join.JoinReply = event.granted
    return granted


async def _until_answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Asks again when the connection breaks, as agents do: it may on a machine that is busy with all of this."""
    while True:
        try:
            return await ask()
        except grpc.RpcError as error:
            if ask_again_after_s(error) is None:
                raise
        await asyncio.sleep(RETRY_PAUSE_S)


def test_a_thousand_jobs_get_their_turn(laboratory: Laboratory) -> None:
    job = laboratory.job("through")
    for name in SWITCHES:
        laboratory.drain(name)
    asking = Asking(laboratory)
    asking.start()
    report = laboratory.await_report(
        lambda report: asking.failure or len(report.jobs) == JOBS + 1, "all have asked", TURN_S_MAX
    )
    assert asking.failure is None, asking.failure
    # Number 1 is the place that the job which runs looks for, away from the drained switch.
    positions = sorted(each.queue_position for each in report.jobs)
    assert positions == [0, *range(2, JOBS + 2)], "all wait but one"
    job.goes_on()
    honest = laboratory.start_job("honest", tls="honest", size=2)
    laboratory.await_report(lambda report: len(report.jobs) == JOBS + 2, "it is the last in the queue")
    for name in SWITCHES:
        laboratory.drain(name, resume=True)
    laboratory.operator.report()
    job.goes_on()
    wait_until(honest.steps, "it sums", TURN_S_MAX, meanwhile=honest.check)
    asking.join(TURN_S_MAX)
    assert not asking.is_alive(), f"{len(asking.granted)} of {JOBS} have had their turn"
    assert asking.failure is None, asking.failure
    assert len(asking.granted) == JOBS
    assert {reply.switch_name for reply in asking.granted} == set(SWITCHES)
    for each in (job, honest):
        each.finish()
    report = laboratory.await_report(lambda report: not report.jobs, "no job is left")
    assert [switch.slots_free for switch in report.switches] == [SLOTS] * len(SWITCHES)
