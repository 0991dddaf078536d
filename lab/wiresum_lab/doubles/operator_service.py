"""A service over real gRPC that sends the reports which a test gives it, for tests of commands.

The controller's own tests check its reports. Tests of commands check how a command shows a report, changes between
reports, and a service that is gone.
"""

from __future__ import annotations

import copy
import threading
from concurrent import futures
from typing import Any, TypeVar

import grpc

from wiresum import join
from wiresum.join import operator_pb2_grpc
from wiresum_lab.patience import PATIENCE_S

T = TypeVar("T")


class WrittenService(operator_pb2_grpc.OperatorServiceServicer):
    """Answers with each of `reports` in turn, and then with the last one for ever."""

    def __init__(self) -> None:
        self.reports: list[join.Report] = [join.Report()]
        self.ended: list[join.EndedJob] = []
        self.asked: list[Any] = []
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.s_left: list[float] = []
        """Seconds until the deadline of each call in `asked`."""
        self.answering = threading.Event()
        """While this event is cleared, no call is answered."""
        self.answering.set()
        self._server: grpc.Server | None = None
        self.port = 0

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the service, at its former port if it was started before."""
        self._server = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
        operator_pb2_grpc.add_OperatorServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(self.target)
        self._server.start()

    def stop(self) -> None:
        self.answering.set()
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def GetReport(self, request: join.GetReportRequest, context: grpc.ServicerContext) -> join.Report:  # noqa: N802
        reply = self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]
        return self._answer(request, context, reply)

    def ListEnded(self, request: join.ListEndedRequest, context: grpc.ServicerContext) -> join.EndedJobs:  # noqa: N802
        return self._answer(request, context, join.EndedJobs(jobs=self.ended))

    def CreateJob(self, request: join.CreateJobRequest, context: grpc.ServicerContext) -> join.CreateJobReply:  # noqa: N802
        return self._answer(request, context, join.CreateJobReply(job_token="t0ken"))

    def EndJob(self, request: join.EndJobRequest, context: grpc.ServicerContext) -> join.EndJobReply:  # noqa: N802
        return self._answer(request, context, join.EndJobReply())

    def Drain(self, request: join.DrainRequest, context: grpc.ServicerContext) -> join.DrainReply:  # noqa: N802
        return self._answer(request, context, join.DrainReply(jobs=3))

    def DiscardRecord(  # noqa: N802
        self, request: join.DiscardRecordRequest, context: grpc.ServicerContext
    ) -> join.DiscardRecordReply:
        return self._answer(request, context, join.DiscardRecordReply(records=1))

    def _answer(self, request: Any, context: grpc.ServicerContext, reply: T) -> T:
        self.asked.append(request)
        self.s_left.append(context.time_remaining())
        self.answering.wait(PATIENCE_S)
        if self.refusal is not None:
            context.set_trailing_metadata([(join.REFUSED_KEY, "1")])
            context.abort(*self.refusal)
        return reply


def _peer(rank: int) -> join.Peer:
    return join.Peer(rank=rank, host_name=f"host{rank}", process_id=100 + rank, address="10.0.0.1")


def example_report() -> join.Report:
    """A report of a running job, a job in the queue, and one switch."""
    running = join.JobReport(
        job=1,
        name="night-run",
        world_size=2,
        joined=2,
        slots=256,
        state="running",
        packets={"admitted": 1000, "resent": 2, "duplicate": 3, "stale": 4, "out_of_lease": 5},
        results=500,
        age_seconds=185,
        switch_name="rack1",
        caller="test at 10.0.0.7",
        lanes=360,
        threads=1,
        switches=[join.NodeReport(switch_name="rack1", workers=2, phase="holding", results=500)],
        workers=[
            join.WorkerReport(
                peer=_peer(rank),
                endpoint=join.Endpoint(address="10.0.0.1", port=4000 + rank),
                state="attending",
                heartbeat_age_ms=40 + 3000 * rank,
                contributions=500 - 40 * rank,
                tensor_last=7,
                switch_name="rack1",
            )
            for rank in range(2)
        ],
    )
    queued = join.JobReport(
        name="next", world_size=4, joined=4, state="queued", queue_position=1, waiting="job 'next' is number 1 of 1"
    )
    switch = join.SwitchReport(
        name="rack1",
        kind="software",
        state="ready",
        slots_total=512,
        slots_free=256,
        jobs=1,
        jobs_max=64,
        room={"slots": 512, "jobs": 64, "admit": 4096},
        room_taken={"slots": 256, "jobs": 1, "admit": 2},
    )
    service = join.ServiceReport(role="active", software_version="0.0.test", age_seconds=7500)
    return join.Report(jobs=[running, queued], switches=[switch], service=service)


def racks_report() -> join.Report:
    """A report of a job over two racks below a spine, which waits for the sums of the second rack."""
    workers = [
        join.WorkerReport(peer=_peer(rank), state="attending", contributions=507, switch_name=leaf)
        for rank, leaf in enumerate(("leaf1", "leaf2"))
    ]
    nodes = [join.NodeReport(switch_name="spine", phase="holding", results=500)]
    nodes += [
        join.NodeReport(
            switch_name=leaf, parent="spine", workers=1, phase="holding", results=500, contributions=contributions
        )
        for leaf, contributions in (("leaf1", 507), ("leaf2", 500))
    ]
    job = join.JobReport(
        job=1,
        name="wide",
        world_size=2,
        joined=2,
        slots=64,
        state="running",
        packets={"admitted": 2000},
        results=500,
        switch_name="spine",
        lanes=360,
        threads=1,
        workers=workers,
        switches=nodes,
    )
    switches = [
        join.SwitchReport(name=node.switch_name, kind="software", state="ready", slots_total=512, parent=node.parent)
        for node in nodes
    ]
    return join.Report(jobs=[job], switches=switches, service=join.ServiceReport(role="active"))


def later(earlier: join.Report, packets: int, results: int) -> join.Report:
    """A copy of a report in which the first job has so many more packets and results."""
    now = copy.deepcopy(earlier)
    now.jobs[0].packets["admitted"] += packets
    now.jobs[0].results += results
    for worker in now.jobs[0].workers:
        worker.contributions += results
    return now
