"""For tests of whatever talks to a join service: a switch that writes down what it is told, and a client.

The service between the two is the real one, over loopback.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from wiresum import join as messages
from wiresum.controller.driver import DriverError, Endpoint, JobCounters, JobEntry, Sizes
from wiresum.join import join_pb2_grpc

PATIENCE_S = 20.0
"""For what must happen, however busy the machine is. Nothing takes nearly as long."""


class RecordingDriver:
    """What a switch does with the calls is its own tests' matter; here it matters which calls come, and when."""

    def __init__(self, sizes: Sizes | None = None) -> None:
        self.name = "recording switch"
        self.sizes = sizes or Sizes(slots=4096, lanes_max=360, jobs_max=64, threads_max=16)
        self.endpoint = Endpoint("127.0.0.1", 43488)
        self.calls: list[tuple[str, int]] = []
        self.admitted: dict[int, JobEntry] = {}
        self.entries: list[JobEntry] = []
        self.refuse_with = ""
        self.evictions_to_fail = 0
        self.released = threading.Event()
        """Cleared: every call blocks until it is set."""
        self.released.set()

    def admit(self, entry: JobEntry) -> None:
        self._record("admit", entry.job)
        if self.refuse_with:
            raise DriverError(self.refuse_with)
        for other in self.admitted.values():
            apart = entry.slot_base + entry.slots <= other.slot_base or other.slot_base + other.slots <= entry.slot_base
            assert apart and entry.job != other.job, f"{entry} collides with {other}"
        assert len(entry.endpoints) == entry.workers
        assert entry.slots % entry.threads == 0
        self.admitted[entry.job] = entry
        self.entries.append(entry)

    def evict(self, job: int) -> None:
        self._record("evict", job)
        if self.evictions_to_fail:
            self.evictions_to_fail -= 1
            raise DriverError("no answer")
        self.admitted.pop(job, None)

    def counters(self, job: int) -> JobCounters:
        self._record("counters", job)
        workers = self.admitted[job].workers if job in self.admitted else 0
        return JobCounters(
            packets={"admitted": 10 * job}, results=job, tensor_last=range(workers), contributions=[5] * workers
        )

    def close(self) -> None:
        self._record("close", 0)

    def _record(self, call: str, job: int) -> None:
        self.calls.append((call, job))
        assert self.released.wait(PATIENCE_S)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, f"in {PATIENCE_S} s it did not come to this: {what}"
        time.sleep(0.01)


def join_request(**fields: object) -> messages.JoinRequest:
    """One that is granted as it stands, to a job of one."""
    rank = fields.get("rank", 0)
    assert isinstance(rank, int)
    request = messages.JoinRequest(
        protocol_version=messages.PROTOCOL_VERSION,
        job_name="a job",
        rank=0,
        world_size=1,
        endpoint=messages.Endpoint(address="127.0.0.1", port=5000 + 16 * (rank % 1000)),
        threads_max=4,
        lanes_max=360,
        host_name=f"host-{rank}",
        process_id=1000 + rank % 1000,
        software_version="0.0.test",
        timeout_ms=int(1000 * PATIENCE_S),
    )
    for name, value in fields.items():
        if isinstance(value, messages.Endpoint):
            request.endpoint.CopyFrom(value)
        else:
            setattr(request, name, value)
    return request


class Client:
    """The service's stub, and threads for the calls that wait."""

    def __init__(self, port: int) -> None:
        self.target = f"127.0.0.1:{port}"
        self.channel = grpc.insecure_channel(self.target, options=[("grpc.use_local_subchannel_pool", 1)])
        self.stub = join_pb2_grpc.JoinServiceStub(self.channel)

    def join(self, **fields: object) -> messages.JoinReply:
        return self.stub.Join(join_request(**fields), timeout=PATIENCE_S)

    def join_soon(self, **fields: object) -> Any:
        call: Any = self.stub.Join  # its type says nothing of gRPC's other ways to call
        return call.future(join_request(**fields), timeout=PATIENCE_S)

    def join_all(self, world_size: int, **fields: object) -> list[messages.JoinReply]:
        asked = [self.join_soon(rank=rank, world_size=world_size, **fields) for rank in range(world_size)]
        return [answer.result() for answer in asked]

    def refusal(self, **fields: object) -> tuple[str, str]:
        """Code and text of a Join that must fail."""
        try:
            reply = self.join(**fields)
        except grpc.RpcError as error:
            return refusal_of(error)
        raise AssertionError(f"this Join was to be refused, but got {reply}")

    def jobs(self) -> list[messages.ListJobsReply.Job]:
        return list(self.stub.ListJobs(messages.ListJobsRequest(), timeout=PATIENCE_S).jobs)

    def slots_free(self) -> int:
        return self.stub.ListJobs(messages.ListJobsRequest(), timeout=PATIENCE_S).slots_free

    def close(self) -> None:
        self.channel.close()


def refusal_of(error: Any) -> tuple[str, str]:
    return error.code().name, error.details()


def member_of(reply: messages.JoinReply) -> messages.Member:
    return messages.Member(job=reply.job, worker=reply.worker, token=reply.token)


class Attendance:
    """One Attend stream, with heartbeats until it is hung up."""

    def __init__(
        self, client: Client, reply: messages.JoinReply, interval_s: float = 0.1, round_newest: int = 1
    ) -> None:
        self.member = member_of(reply)
        self.round_newest = round_newest
        self.pulses = 0
        self.ended: messages.JobEnded | None = None
        self.status: grpc.StatusCode | None = None
        self.silent = threading.Event()
        self._interval_s = interval_s
        self._over = threading.Event()
        self._call = client.stub.Attend(self._beats())
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        wait_until(lambda: bool(self.pulses or self._over.is_set()), "a first pulse, or an end")

    def _beats(self) -> Iterator[messages.Heartbeat]:
        while not self._over.is_set():
            if not self.silent.is_set():
                yield messages.Heartbeat(member=self.member, round_newest=self.round_newest)
            self._over.wait(self._interval_s)

    def _read(self) -> None:
        try:
            for event in self._call:
                self.pulses += event.HasField("pulse")
                if event.HasField("ended"):
                    self.ended = event.ended
            self.status = grpc.StatusCode.OK
        except grpc.RpcError as error:
            self.status = error.code()
        self._over.set()

    def hang_up(self) -> None:
        self._over.set()
        self._call.cancel()
        self._reader.join(PATIENCE_S)

    def wait_ended(self) -> messages.JobEnded:
        wait_until(lambda: self.ended is not None or self.status is not None, "the job ended for this worker")
        assert self.ended is not None, f"the stream ended with {self.status}"
        return self.ended
