"""The life of a job, as a state machine: no socket, no clock, no thread.

Whoever owns a `Jobs` tells it what happened (a request came, a stream broke, the switch answered, time passed), with
the time, in seconds of any clock that does not go back; and then carries out what `take_outputs` gives, in order.
What a job may go through is the table `TRANSITIONS`, and nothing else moves a job.

    forming    workers are asking; the switch knows nothing yet
    admitting  all have asked, slots are leased, the switch is being told
    running    all have their grants
    ending     nobody can use the job any more: the switch is told to forget it, and the workers are told why
    gone       the name, the number and the lease are free

The rule behind it all: a lease goes back to the pool only when the switch has forgotten the job, and when every
worker has left, was lost, or has been told; the last for a bounded time, since a worker may not be listening.
"""

from __future__ import annotations

import enum
import hmac
import logging
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from wiresum import join
from wiresum.controller.driver import Endpoint, JobEntry, Sizes
from wiresum.controller.leases import Lease, LeasePool
from wiresum.controller.refusal import LEASE_SLOTS_MAX, REASON_CHARACTERS_MAX, Refusal, check_join

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """How generous the service is."""

    slots_default: int = 256
    """The lease of a job whose workers did not say how many slots they want."""
    slots_least: int = 16
    """A job gets fewer slots than it wants when the switch is crowded, but not fewer than these."""
    heartbeat_interval_ms: int = 500
    heartbeat_lost_ms: int = 6000
    """For hosts and networks that vanish: a process that dies breaks its stream, which shows at once. Less than this
    would end healthy jobs, since a heartbeat waits while a worker's interpreter is busy (importing, say)."""
    leave_grace_ms: int = 3000
    """Between the first good-bye and the end of the job for whoever stays. Workers leave at about the same time."""
    attend_ms_max: int = 10_000
    """From the grant to the first heartbeat: the worker starts its threads in between."""
    drain_ms_max: int = 5000
    """How long an ended job waits for its workers to be told."""
    evict_retry_ms: int = 1000
    """When the switch could not be told to forget a job."""
    stall_ms_max: int = 1000
    """A longer gap between two ticks means that the service itself was stopped, and nobody else is to blame."""
    join_timeout_ms_default: int = 300_000
    join_timeout_ms_max: int = 86_400_000


class State(enum.Enum):
    FORMING = "forming"
    ADMITTING = "admitting"
    RUNNING = "running"
    ENDING = "ending"
    GONE = "gone"


class Event(enum.Enum):
    COMPLETED = "the last worker has asked"
    GIVEN_UP = "a worker went away before the job was complete, or the time was up"
    ADMITTED = "the switch has the job"
    REFUSED = "the switch does not take the job"
    ENDED = "a worker was lost or ended the job, or all have left, or the service closes"
    CLEARED = "the switch has forgotten the job, and the workers know"


TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.FORMING, Event.COMPLETED): State.ADMITTING,
    (State.FORMING, Event.GIVEN_UP): State.GONE,
    (State.ADMITTING, Event.ADMITTED): State.RUNNING,
    (State.ADMITTING, Event.REFUSED): State.GONE,
    (State.ADMITTING, Event.ENDED): State.ENDING,
    (State.RUNNING, Event.ENDED): State.ENDING,
    (State.ENDING, Event.CLEARED): State.GONE,
}


class Presence(enum.Enum):
    WAITING = "has asked"
    GRANTED = "has its grant, but no heartbeat came yet"
    ATTENDING = "beats"
    LEFT = "said good-bye"
    LOST = "broke off"


@dataclass(eq=False)
class Worker:
    """One member of one job. Compared by identity."""

    job: Job = field(repr=False)
    rank: int
    endpoint: Endpoint
    threads_max: int
    lanes_max: int
    slots_wanted: int
    host_name: str
    process_id: int
    token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    presence: Presence = Presence.WAITING
    stream: int = 0
    """Which of its Attend streams counts: the newest."""
    heard_at: float = 0.0
    told: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host_name or self.endpoint.address}, process {self.process_id})"

    def peer(self) -> join.Peer:
        return join.Peer(rank=self.rank, host_name=self.host_name, process_id=self.process_id)


@dataclass(eq=False)
class Job:
    name: str
    key: int
    """0: to be drawn when the job is complete."""
    world_size: int
    created_at: float
    deadline: float
    state: State = State.FORMING
    workers: dict[int, Worker] = field(default_factory=dict)
    number: int = 0
    lease: Lease | None = None
    entry: JobEntry | None = None
    ended: join.JobEnded | None = None
    evicted: bool = False
    evict_again_at: float | None = None
    drained_at: float = 0.0
    left_first: Worker | None = None
    left_at: float = 0.0

    def missing(self) -> str:
        ranks = [str(rank) for rank in range(self.world_size) if rank not in self.workers]
        return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)} of {self.world_size}"


@dataclass(frozen=True)
class Grant:
    """Answer this worker's Join."""

    worker: Worker
    reply: join.JoinReply


@dataclass(frozen=True)
class Refuse:
    """Answer this worker's Join."""

    worker: Worker
    refusal: Refusal


@dataclass(frozen=True)
class Admit:
    """Tell the switch, then call `admitted` or `refused`."""

    entry: JobEntry


@dataclass(frozen=True)
class Evict:
    """Tell the switch, then call `evicted` or `evict_failed`."""

    number: int


@dataclass(frozen=True)
class Tell:
    """Send this on the worker's Attend stream, then call `told`, and close the stream."""

    worker: Worker
    ended: join.JobEnded


@dataclass(frozen=True)
class Close:
    """Close the worker's Attend stream: there will be nothing more to say."""

    worker: Worker


Output = Grant | Refuse | Admit | Evict | Tell | Close


class Jobs:
    """All jobs of one switch."""

    def __init__(self, sizes: Sizes, switch_endpoint: Endpoint, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.leases = LeasePool(sizes.slots)
        self._sizes = sizes
        self._switch_endpoint = switch_endpoint
        self._named: dict[str, Job] = {}
        self._numbered: dict[int, Job] = {}
        self._number_next = 1 % sizes.jobs_max
        self._outputs: list[Output] = []
        self._ticked_at: float | None = None
        self._closing = ""

    def __len__(self) -> int:
        return len(self._named)

    def take_outputs(self) -> list[Output]:
        outputs, self._outputs = self._outputs, []
        return outputs

    # What workers do.

    def ask(self, request: join.JoinRequest, now: float) -> Worker:
        """A worker asks for a place. Its `Grant` or `Refuse` comes as an output; a `Refusal` is raised at once if
        it cannot be a member, and then nothing has changed."""
        check_join(request)
        if self._closing:
            raise Refusal("UNAVAILABLE", f"{self._closing}: start it again, and the worker will find it")
        timeout_ms = min(request.timeout_ms or self.limits.join_timeout_ms_default, self.limits.join_timeout_ms_max)
        deadline = now + timeout_ms / 1000
        job = self._named.get(request.job_name)
        if job is None:
            job = self._form(request, now, deadline)
        else:
            self._check_fits(job, request)
        worker = Worker(
            job=job,
            rank=request.rank,
            endpoint=Endpoint(request.endpoint.address, request.endpoint.port),
            threads_max=request.threads_max,
            lanes_max=request.lanes_max,
            slots_wanted=request.slots,
            host_name=request.host_name,
            process_id=request.process_id,
        )
        job.workers[worker.rank] = worker
        job.deadline = min(job.deadline, deadline)
        if len(job.workers) == job.world_size:
            self._complete(job)
        return worker

    def withdraw(self, worker: Worker, now: float) -> None:
        """A worker stopped waiting for the answer to its Join."""
        job = worker.job
        if job.state is State.FORMING:
            del job.workers[worker.rank]
            text = f"{worker} went away before job {job.name!r} was complete; missing now: {job.missing()}"
            self._give_up(job, "ABORTED", f"{text}. Look at why it stopped, and start all workers again")
        elif job.state in (State.ADMITTING, State.RUNNING):
            self._lose(worker, "went away while it was being admitted", now)

    def attend(self, member: join.Member, now: float) -> Worker:
        """A worker opens an Attend stream, whose number is then the worker's `stream`. Raises a `Refusal`."""
        worker = self._find(member)
        if worker.presence in (Presence.LEFT, Presence.LOST) and worker.job.ended is None:
            raise _not_a_member()
        worker.stream += 1
        worker.heard_at = now
        if worker.job.state is State.RUNNING:
            worker.presence = Presence.ATTENDING
        elif worker.job.ended is not None:
            self._outputs.append(Tell(worker, worker.job.ended))
        return worker

    def beat(self, worker: Worker, round_newest: int, now: float) -> None:
        worker.heard_at = now
        if worker.job.lease is not None:
            worker.job.lease.saw(round_newest)

    def broken(self, worker: Worker, stream: int, now: float) -> None:
        """An Attend stream ended, however it did."""
        if stream != worker.stream or worker.presence is not Presence.ATTENDING:
            return
        if worker.job.state is State.RUNNING:
            self._lose(worker, "was lost: its connection to the switch broke, so its process has probably died", now)
        else:  # it hung up on an ended job, as it should
            worker.presence = Presence.LOST
            self._clear_if_done(worker.job, now)

    def told(self, worker: Worker, now: float) -> None:
        """The worker has been sent its `Tell`."""
        worker.told = True
        self._clear_if_done(worker.job, now)

    def leave(self, member: join.Member, now: float) -> None:
        worker = self._find(member)
        worker.presence = Presence.LEFT
        self._outputs.append(Close(worker))
        job = worker.job
        if job.left_first is None:
            job.left_first, job.left_at = worker, now
        if job.state is State.RUNNING and all(w.presence is Presence.LEFT for w in job.workers.values()):
            self._end(job, join.JobEnded(reason="all workers have left"), now)
        self._clear_if_done(job, now)

    def abort(self, member: join.Member, reason: str, now: float) -> None:
        worker = self._find(member)
        if worker.job.state is State.RUNNING:
            said = reason[:REASON_CHARACTERS_MAX] or "it gave no reason"
            ended = join.JobEnded(
                cause=join.JobEnded.ABORTED_BY_WORKER, worker=worker.peer(), reason=f"{worker} ended the job: {said}"
            )
            self._end(worker.job, ended, now)

    # What the switch answers.

    def admitted(self, number: int, now: float) -> None:
        job = self._numbered.get(number)
        if job is None or job.state is not State.ADMITTING:
            return  # it ended meanwhile, and the eviction is on its way
        self._move(job, Event.ADMITTED)
        for worker in job.workers.values():
            worker.presence = Presence.GRANTED
            worker.heard_at = now
            self._outputs.append(Grant(worker, self._reply(worker)))

    def refused(self, number: int, text: str) -> None:
        job = self._numbered.get(number)
        if job is None or job.state is not State.ADMITTING:
            return
        refusal = Refusal("INTERNAL", f"the switch did not take job {job.name!r}: {text}. Its log says more")
        self._move(job, Event.REFUSED, text)
        self._refuse_waiting(job, refusal)
        self._remove(job)

    def evicted(self, number: int, now: float) -> None:
        job = self._numbered.get(number)
        if job is not None and job.state is State.ENDING:
            job.evicted = True
            self._clear_if_done(job, now)

    def evict_failed(self, number: int, now: float) -> None:
        """The lease stays taken, since the switch may still write to its slots; it is tried again."""
        job = self._numbered.get(number)
        if job is not None and job.state is State.ENDING:
            job.evict_again_at = now + self.limits.evict_retry_ms / 1000

    # What time does.

    def tick(self, now: float) -> None:
        """To be called several times a second."""
        stalled = now - self._ticked_at if self._ticked_at is not None else 0.0
        self._ticked_at = now
        for job in list(self._named.values()):
            if stalled > self.limits.stall_ms_max / 1000:
                for worker in job.workers.values():
                    worker.heard_at += stalled
            self._tick_job(job, now)

    def close(self, reason: str, now: float) -> None:
        """Ends all jobs; no job can form any more."""
        self._closing = reason
        for job in list(self._named.values()):
            if job.state is State.FORMING:
                self._give_up(job, "UNAVAILABLE", f"{reason}: start it again, and the worker will find it")
            elif job.state in (State.ADMITTING, State.RUNNING):
                self._end(job, join.JobEnded(cause=join.JobEnded.SWITCH_LOST, reason=reason), now)

    # What people ask.

    def job_of(self, member: join.Member) -> Job:
        """Raises a `Refusal` if it is not a member."""
        return self._find(member).job

    def all(self) -> list[Job]:
        return list(self._named.values())

    # Forming.

    def _form(self, request: join.JoinRequest, now: float, deadline: float) -> Job:
        if len(self._named) >= self._sizes.jobs_max:
            raise Refusal(
                "RESOURCE_EXHAUSTED",
                f"the switch has all the jobs that it can hold, {self._sizes.jobs_max}: wait until one ends "
                f"(`wiresum jobs` lists them)",
            )
        job = Job(request.job_name, request.key, request.world_size, now, deadline)
        self._named[job.name] = job
        log.info("job %r forms: %d workers", job.name, job.world_size)
        return job

    def _check_fits(self, job: Job, request: join.JoinRequest) -> None:
        """Can this worker be the next one of a job that exists?"""
        holder = job.workers.get(request.rank)
        left = [worker for worker in job.workers.values() if worker.presence is Presence.LEFT]
        if job.state is State.ENDING or left:
            why = job.ended.reason if job.ended else f"{left[0]} has left already"
            raise Refusal(
                "UNAVAILABLE", f"the job before, also named {job.name!r}, is just ending ({why}): wait a moment"
            )
        if request.key != job.key and (request.key or job.state is State.FORMING):
            raise Refusal(
                "PERMISSION_DENIED",
                f"the key is not that of job {job.name!r}: set WIRESUM_KEY to the same value at all workers, or "
                f"at none",
            )
        if job.state is not State.FORMING:
            raise Refusal(
                "ALREADY_EXISTS",
                f"job {job.name!r} is complete, all {job.world_size} workers have joined: choose another name "
                f"(WIRESUM_JOB), or wait until it ends",
            )
        if request.world_size != job.world_size:
            first = next(iter(job.workers.values()))
            raise Refusal(
                "FAILED_PRECONDITION",
                f"job {job.name!r} is one of {job.world_size} workers, says {first}, but this worker says "
                f"{request.world_size}: start all with the same world size, or choose another name (WIRESUM_JOB)",
            )
        if holder is not None:
            raise Refusal(
                "ALREADY_EXISTS",
                f"{holder} has that place in job {job.name!r} already: give each worker a rank of its own, or choose "
                f"another name (WIRESUM_JOB)",
            )
        _check_ports_apart(job, request)

    def _complete(self, job: Job) -> None:
        """All have asked: settles what the job gets, and tells the switch."""
        workers = [job.workers[rank] for rank in range(job.world_size)]
        slots = self._slots_wanted(workers)
        lease = self.leases.take_up_to(slots, min(slots, self.limits.slots_least))
        if lease is None:
            self._give_up(
                job,
                "RESOURCE_EXHAUSTED",
                f"no {min(slots, self.limits.slots_least)} slots in a row are free for job {job.name!r}: "
                f"{self.leases.slots_free} of {self.leases.slots_total} are. Wait until another job ends "
                f"(`wiresum jobs` lists them), or start the switch with more slots",
            )
            return
        job.lease = lease
        job.number = self._take_number(job)
        job.key = job.key or secrets.randbelow(2**32 - 1) + 1
        job.entry = JobEntry(
            job=job.number,
            key=job.key,
            workers=job.world_size,
            threads=_power_of_two_within(
                min(self._sizes.threads_max, lease.count, *(worker.threads_max for worker in workers))
            ),
            lanes=min(self._sizes.lanes_max, *(worker.lanes_max for worker in workers)),
            slot_base=lease.base,
            slots=lease.count,
            round_first=lease.round_first,
            endpoints=tuple(worker.endpoint for worker in workers),
        )
        self._move(job, Event.COMPLETED)
        self._outputs.append(Admit(job.entry))

    def _slots_wanted(self, workers: Iterable[Worker]) -> int:
        wanted = min((w.slots_wanted for w in workers if w.slots_wanted), default=self.limits.slots_default)
        return _power_of_two_within(min(wanted, LEASE_SLOTS_MAX, self._sizes.slots))

    def _take_number(self, job: Job) -> int:
        """The next one in turn, so that a number comes back late. There is a free one: jobs_max bounds the jobs."""
        while self._number_next in self._numbered:
            self._number_next = (self._number_next + 1) % self._sizes.jobs_max
        number = self._number_next
        self._numbered[number] = job
        self._number_next = (number + 1) % self._sizes.jobs_max
        return number

    def _reply(self, worker: Worker) -> join.JoinReply:
        entry = worker.job.entry
        assert entry is not None
        return join.JoinReply(
            job=entry.job,
            key=entry.key,
            worker=worker.rank,
            workers=entry.workers,
            lanes=entry.lanes,
            threads=entry.threads,
            slots=entry.slots,
            round_first=entry.round_first,
            switch_endpoint=join.Endpoint(address=self._switch_endpoint.address, port=self._switch_endpoint.port),
            peers=[worker.job.workers[rank].peer() for rank in range(entry.workers)],
            token=worker.token,
            heartbeat_interval_ms=self.limits.heartbeat_interval_ms,
            heartbeat_lost_ms=self.limits.heartbeat_lost_ms,
        )

    # Ending.

    def _give_up(self, job: Job, code: str, text: str) -> None:
        self._move(job, Event.GIVEN_UP, text)
        self._refuse_waiting(job, Refusal(code, text))
        self._remove(job)

    def _refuse_waiting(self, job: Job, refusal: Refusal) -> None:
        for worker in job.workers.values():
            if worker.presence is Presence.WAITING:
                worker.presence = Presence.LOST
                self._outputs.append(Refuse(worker, refusal))

    def _lose(self, worker: Worker, how: str, now: float) -> None:
        worker.presence = Presence.LOST
        text = f"{worker} {how}"
        log.warning("job %r: %s", worker.job.name, text)
        self._end(worker.job, join.JobEnded(cause=join.JobEnded.WORKER_LOST, worker=worker.peer(), reason=text), now)

    def _end(self, job: Job, ended: join.JobEnded, now: float) -> None:
        self._move(job, Event.ENDED, ended.reason)
        job.ended = ended
        job.drained_at = now + self.limits.drain_ms_max / 1000
        self._refuse_waiting(job, Refusal("ABORTED", f"job {job.name!r} ended before it began: {ended.reason}"))
        self._outputs.extend(Tell(w, ended) for w in job.workers.values() if w.presence is Presence.ATTENDING)
        self._outputs.append(Evict(job.number))

    def _clear_if_done(self, job: Job, now: float) -> None:
        settled = all(w.told or w.presence in (Presence.LEFT, Presence.LOST) for w in job.workers.values())
        if job.state is State.ENDING and job.evicted and (settled or now >= job.drained_at):
            self._move(job, Event.CLEARED)
            self._outputs.extend(Close(worker) for worker in job.workers.values())
            self._remove(job)

    def _tick_job(self, job: Job, now: float) -> None:
        if job.state is State.FORMING and now >= job.deadline:
            text = f"job {job.name!r} was not complete in time: {job.missing()} did not come"
            self._give_up(job, "DEADLINE_EXCEEDED", f"{text}. Look at why, or wait longer (WIRESUM_JOIN_TIMEOUT)")
        elif job.state is State.ADMITTING and now >= job.deadline:
            text = "the switch did not answer in time"
            self._refuse_waiting(job, Refusal("DEADLINE_EXCEEDED", f"{text} when it was given job {job.name!r}"))
            self._end(job, join.JobEnded(cause=join.JobEnded.SWITCH_LOST, reason=text), now)
        elif job.state is State.RUNNING:
            self._look_for_silence(job, now)
            self._look_for_leavers(job, now)
        elif job.state is State.ENDING:
            if job.evict_again_at is not None and now >= job.evict_again_at:
                job.evict_again_at = None
                self._outputs.append(Evict(job.number))
            self._clear_if_done(job, now)

    def _look_for_silence(self, job: Job, now: float) -> None:
        for worker in job.workers.values():
            silent_s = now - worker.heard_at
            if worker.presence is Presence.ATTENDING and silent_s > self.limits.heartbeat_lost_ms / 1000:
                self._lose(worker, f"was lost: no heartbeat of it came for {silent_s:.1f} s", now)
            elif worker.presence is Presence.GRANTED and silent_s > self.limits.attend_ms_max / 1000:
                self._lose(worker, f"was lost: it was admitted {silent_s:.0f} s ago, but sent no heartbeat", now)
            if job.state is not State.RUNNING:
                return

    def _look_for_leavers(self, job: Job, now: float) -> None:
        """No collective can complete without the one that left, so whoever stays must not wait for it."""
        gone = job.left_first
        if job.state is State.RUNNING and gone is not None and now >= job.left_at + self.limits.leave_grace_ms / 1000:
            reason = f"{gone} has left the job, and no collective can complete without it"
            self._end(job, join.JobEnded(cause=join.JobEnded.WORKER_LEFT, worker=gone.peer(), reason=reason), now)

    def _move(self, job: Job, event: Event, why: str = "") -> None:
        assert (job.state, event) in TRANSITIONS, f"job {job.name!r} is {job.state.value}: {event.value}"
        job.state = TRANSITIONS[job.state, event]
        log.info("job %r is %s: %s", job.name, job.state.value, why or event.value)

    def _remove(self, job: Job) -> None:
        del self._named[job.name]
        self._numbered.pop(job.number, None) if job.entry else None
        if job.lease is not None:
            self.leases.give_back(job.lease)
            job.lease = None

    def _find(self, member: join.Member) -> Worker:
        job = self._numbered.get(member.job)
        worker = job.workers.get(member.worker) if job else None
        if worker is None or not hmac.compare_digest(worker.token.encode(), member.token.encode()):
            raise _not_a_member()
        return worker


def _not_a_member() -> Refusal:
    return Refusal("NOT_FOUND", "this service knows no such member: the job has ended, or the switch was started anew")


def _check_ports_apart(job: Job, request: join.JoinRequest) -> None:
    first, last = request.endpoint.port, request.endpoint.port + request.threads_max - 1
    for other in job.workers.values():
        other_last = other.endpoint.port + other.threads_max - 1
        if request.endpoint.address == other.endpoint.address and first <= other_last and other.endpoint.port <= last:
            raise Refusal(
                "INVALID_ARGUMENT",
                f"endpoint: ports {first}..{last} at {request.endpoint.address} overlap those of {other}, "
                f"{other.endpoint.port}..{other_last}: each worker needs ports of its own",
            )


def _power_of_two_within(most: int) -> int:
    """The largest power of two that is at most `most`."""
    return 1 << (most.bit_length() - 1)
