"""Moves: a job that runs continues with another lease, at the same switch or another one. Pure.

Theory of operation. Workers stop where they are and say for each slot which round they wait for. What one worker has
and another lacks is resent first (positions.py), under the new lease's key. docs/protocol.md, section 9, says why no
sum is lost; the steps below are the service's.

1. There is a cause. A switch is lost, and the job's rounds have stood still since; or an operator drains it; or it was
   started again and has lost its cells; or the former service ended in the middle of a move.
2. The next lease is asked for. It is in the same queue as the leases of other jobs, and admitted by the same code, with
   as many slots, threads and lanes as the job has. Where the present lease may still serve (a lost or drained switch),
   the job runs on meanwhile, and stays if no other switch takes it. Otherwise step 3 comes at once.
3. The job is MOVING: this state and the move's number are on disk, its workers are told to halt, and its switches to
   forget it, which frees its slots.
4. When the next lease is held and all workers have halted, it becomes the job's lease, and the former one is released.
   Both are on disk before a worker hears of it.
5. A worker that still says it has halted is told again on its next stream, until all have continued.

A service that is killed leaves on disk a job that runs, or one that moves. The next service begins a new move, with a
larger number, when it reads that the job was moving, or when a worker says that it has halted for the move on disk,
whose end it did not hear. What the former service gave to switches in step 2 is not on disk, and is removed when each
switch is reconciled.

No worker hears of a move's number that is not on disk. So a worker that says a larger number than the job's has made it
up.

Every phase has a bound: lost_workers.py.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator

from wiresum import join
from wiresum.controller.jobs.asked_moves import AskedMoves
from wiresum.controller.jobs.cluster import Cluster
from wiresum.controller.jobs.ending import Ending
from wiresum.controller.jobs.granting import number_workers, reply_to
from wiresum.controller.jobs.job import (
    Cause,
    Event,
    GoingOn,
    Job,
    Lease,
    LeaseState,
    Move,
    Presence,
    Shape,
    State,
    Worker,
)
from wiresum.controller.jobs.keys import Keys
from wiresum.controller.jobs.limits import Limits
from wiresum.controller.jobs.outputs import GoOn, Halt, Output
from wiresum.controller.jobs.positions import POSITION_BYTES, POSITIONS_MAX, roles_of
from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.jobs.saving import Saving
from wiresum.controller.jobs.telling import Telling
from wiresum.controller.jobs.tree import in_words
from wiresum.controller.jobs.waiting import WaitingRoom

log = logging.getLogger(__name__)

MOVE_NUMBER_MAX = (1 << 32) - 1
BEYOND_BUDGET = "workers of its tenant's jobs have asked for moves too often"
WORKERS_NAMED_MAX = 3
"""How many workers a text names that a move waits for."""


class Moving:
    def __init__(
        self,
        cluster: Cluster,
        waiting: WaitingRoom,
        telling: Telling,
        keys: Keys,
        limits: Limits,
        emit: Callable[[Output], None],
        saving: Saving,
        ending: Ending,
    ) -> None:
        self._cluster, self._waiting, self._telling, self._keys = cluster, waiting, telling, keys
        self._limits = limits
        self._emit, self._saving, self._ending = emit, saving, ending
        self._asked = AskedMoves(limits)
        self.count: Counter[Cause] = Counter()
        """How many moves were completed, by cause."""

    # Whether a job moves.

    def look(self, job: Job, now: float) -> None:
        """Finds a cause to move, and looks for the next lease; to be called several times a second for each job that
        has begun."""
        if job.state is State.RUNNING:
            found = self._cause(job)
            if found is None or not can_move(job):
                self._stay(job, now)
                return
            cause, reason = found
            if job.move is None:
                log.info("%s looks for another place, since %s", job, reason)
                job.move = Move(cause, reason, now)
            job.move.cause, job.move.reason = cause, reason
        self._seek(job, now)

    def must_move(self, job: Job, cause: Cause, reason: str, now: float) -> bool:
        """Begins a move, since the job's lease is of no use any more. False: the job cannot move."""
        if job.state is State.MOVING:
            return True  # a job that moves already has no use for its present lease
        if job.state is not State.RUNNING or not can_move(job):
            return False
        if job.move is None or job.move.lease is None:
            job.move = Move(cause, reason, now)
        job.move.cause, job.move.reason = cause, reason
        self._begin(job, now)
        return True

    def restore(self, job: Job, now: float) -> None:
        """Takes up a job after a restart of the service. A switch is reconciled without the jobs that move."""
        job.members.may_be_halted = set(job.members.workers)
        if job.state is State.MOVING:
            reason = "the service was started again while it moved"
            if job.move_number >= MOVE_NUMBER_MAX:
                reason += ", and no number is left for another move"
                return self._ending.end(job, join.JobEnded(cause=join.JobEnded.SWITCH_LOST, reason=reason), now)
            job.move = Move(Cause.INTERRUPTED, reason, now)
            self._tell_to_halt(job, job.move, now)
        return None

    def _cause(self, job: Job) -> tuple[Cause, str] | None:
        switches = [self._cluster.switches[name] for name in job.lease.nodes]
        if lost := [switch for switch in switches if switch.trouble]:
            switch = min(lost, key=lambda switch: switch.trouble_since)
            heard_at = max(worker.heard_at for worker in job.members.workers.values())
            # A silence says nothing: perhaps the service is cut off from all of them, and their rounds move.
            still_s = heard_at - max(switch.trouble_since, job.watch.progress_at)
            if still_s >= self._limits.move_after_ms / 1000:
                return Cause.SWITCH_LOST, f"{switch.name} is lost ({switch.trouble})"
        if drained := [switch.name for switch in switches if switch.draining]:
            return Cause.SWITCH_DRAINED, f"an operator drains {in_words(drained)}"
        return None

    def _stay(self, job: Job, now: float) -> None:
        """Drops the search for another lease of a job that runs. A lease that is being admitted stays, and will be
        used, which takes only a moment."""
        lease = job.move.lease if job.move is not None else None
        if lease is not None and lease.state is not LeaseState.WANTED:
            return
        if lease is not None:
            self._ending.release(lease, "the job stays where it is", now)
        job.move = None

    def _seek(self, job: Job, now: float) -> None:
        move = job.move
        assert move is not None, "there is a cause"
        if move.lease is not None or now < move.again_at:
            return
        lease = Lease(job, Shape(job.lease.slots, job.lease.threads, job.lease.lanes))  # R7.18
        try:
            self._keys.check_left(self._limits.waiting_max + len(self._waiting))
            self._waiting.look_for_offers(lease, _candidates(job, self._cluster))
        except Refusal as refusal:
            move.obstacle, move.again_at = refusal.text, math.inf  # that does not change while this service runs
            return
        log.info("%s is asked for, since %s", lease, move.reason)
        move.lease = lease
        self._waiting.add(lease)

    # The next lease.

    def admitted(self, lease: Lease, now: float) -> None:
        """The job's next lease is held: all its switches have it."""
        job, move = lease.job, _move_to(lease)
        if job.state is State.RUNNING:
            if not can_move(job):  # one of its workers has left meanwhile
                self.abandon(lease, "the job stays where it is", now)
                return
            self._begin(job, now)
        self._go_if_ready(job, move, now)

    def abandon(self, lease: Lease, why: str, now: float) -> None:
        """Drops the job's next lease, since a switch did not take it or has lost it."""
        move = _move_to(lease)
        move.lease, move.obstacle = None, why
        move.again_at = now + self._limits.evict_retry_ms / 1000
        self._ending.release(lease, why, now)

    # The workers.

    def _begin(self, job: Job, now: float) -> None:
        move = job.move
        assert move is not None, "there is a cause"
        job.step(Event.MOVES, move.reason)
        job.waits_to_move_since = None
        self._tell_to_halt(job, move, now)
        self._telling.release(job.lease)
        self._seek(job, now)

    def _tell_to_halt(self, job: Job, move: Move, now: float) -> None:  # R7.19
        assert job.move_number < MOVE_NUMBER_MAX, "it could not move otherwise"
        job.move_number += 1
        move.halting_since = move.told_at = now
        self._saving.save(job.lease)
        for worker in job.members.workers.values():
            self.remind(worker)

    def remind(self, worker: Worker) -> None:
        """Tells the worker to halt, if its job moves; to be called when the worker has opened a stream."""
        job = worker.job
        if job.state is State.MOVING and job.move is not None and worker.presence is Presence.ATTENDING:
            halt = join.Halt(move_number=job.move_number, reason=job.move.reason)
            self._emit(Halt(worker, join.JobEvent(halt=halt)))

    def goes_on(self, worker: Worker) -> None:
        """Takes a heartbeat which says that the worker is not halted."""
        members = worker.job.members
        members.may_be_halted.discard(worker.rank)
        if members.going_on is not None and worker.job.state is State.RUNNING:
            members.going_on.roles.pop(worker.rank, None)
            if not members.going_on.roles:
                members.going_on = None

    def halted(self, worker: Worker, said: join.Halted, now: float) -> None:
        """Takes a heartbeat which says that the worker has halted, and where."""
        job, number = worker.job, said.move_number
        if not job.has_begun or number < job.move_number:
            return  # the worker has yet to hear what it is told
        if number > job.move_number:
            self._end_for(worker, f"says that it has halted, which it was not told to (move {number})", now)  # R7.23
        elif said.unasked:
            self._halted_by_itself(worker, now)
        elif job.state is State.RUNNING and job.members.going_on is None:
            self._halted_before(worker, now)
        elif job.state is State.RUNNING:
            self._tell_to_go_on(worker)
        else:
            self._note_positions(worker, said.positions, now)

    def _halted_before(self, worker: Worker, now: float) -> None:
        """Handles a worker that has halted for a move which ended under the former service, and that has not heard of
        the end."""
        job = worker.job
        if worker.rank not in job.members.may_be_halted:
            return self._end_for(worker, "says that it has halted, which it was not told to", now)
        job.members.may_be_halted.discard(worker.rank)
        if not self.must_move(job, Cause.INTERRUPTED, "the service was started again while it moved", now):  # R7.22
            self._end_for(worker, "had halted for a move, and the job cannot move any more", now)
        return None

    def _halted_by_itself(self, worker: Worker, now: float) -> None:  # R7.26
        """Handles a worker that halted because it took the service, or its switch, for lost. If the job moves already,
        the worker has yet to hear so."""
        job = worker.job
        if job.state is not State.RUNNING or job.members.left_first is not None:
            return  # it moves, or ends for the one that has left
        self.goes_on(worker)  # from the move before
        cause, reason = Cause.INTERRUPTED, f"{worker} had lost the service, and halted"
        if job.move is not None:  # the job looks for another lease anyway
            cause, reason = job.move.cause, job.move.reason
        elif can_move(job) and self._is_beyond_budget(worker, now):
            return
        job.waits_to_move_since = None
        if not self.must_move(job, cause, reason, now):
            self._end_for(worker, "had halted since it lost the service, and the job cannot move", now)

    def _is_beyond_budget(self, worker: Worker, now: float) -> bool:
        """True if the tenant's budget of moves is used up: then the job waits, or ends since it has waited too long.
        Called for each heartbeat of a worker that has halted by itself."""
        job = worker.job
        if self._asked.take(job.tenant, self._cluster.jobs_of(job.tenant), now):
            return False
        if job.waits_to_move_since is None:
            log.warning("%s waits to move: %s", job, BEYOND_BUDGET)
            job.waits_to_move_since = now
        waited_s = now - job.waits_to_move_since
        if waited_s > self._limits.switch_lost_ms_max / 1000:
            ended = join.JobEnded(
                cause=join.JobEnded.ABORTED_BY_WORKER,
                worker=worker.peer(),
                reason=f"{worker} has lost the service, and halted. For {waited_s:.0f} s the job could not move, since "
                f"{BEYOND_BUDGET}: look at why they lose it, and start the job again",
            )
            self._ending.end(job, ended, now)
        return True

    def _note_positions(self, worker: Worker, positions: bytes, now: float) -> None:
        job, move = worker.job, worker.job.move
        assert move is not None, "it moves"
        if len(positions) != POSITION_BYTES * job.lease.slots:
            said = f"has halted, and says {len(positions)} bytes of positions for {job.lease.slots} slots"
            return self._end_for(worker, said, now)
        if move.positions.setdefault(worker.rank, positions) != positions:
            return self._end_for(worker, "has halted, and then says other positions", now)
        return self._go_if_ready(job, move, now)

    def _end_for(self, worker: Worker, what: str, now: float) -> None:
        ended = join.JobEnded(
            cause=join.JobEnded.ABORTED_BY_WORKER,
            worker=worker.peer(),
            reason=f"{worker} {what}, which no release of wiresum does: look at what runs there",
        )
        self._ending.end(worker.job, ended, now)

    # The exchange.

    def _go_if_ready(self, job: Job, move: Move, now: float) -> None:
        lease, before, members = move.lease, job.lease, job.members
        if lease is None or lease.state is not LeaseState.HELD or len(move.positions) < members.world_size:  # R7.21
            return
        try:
            found = roles_of([move.positions[rank] for rank in range(members.world_size)])
        except ValueError as error:
            ended = join.JobEnded(cause=join.JobEnded.ABORTED_BY_WORKER, reason=f"{job} cannot move: {error}")
            self._ending.end(job, ended, now)
            return
        assert lease.shape == (lease.slots, lease.threads, lease.lanes), "a move changes none of these"
        job.lease = lease
        number_workers(job)
        job.step(Event.MOVED, f"it has moved to {lease.where()}, since {move.reason}")
        job.move, members.going_on = None, GoingOn(now, dict(enumerate(found)))
        job.watch.note_progress(now)
        members.may_be_halted.clear()
        self.count[move.cause] += 1
        self._saving.save(job.lease)
        self._ending.release(before, "the job has moved to another one", now)
        for worker in members.workers.values():
            if worker.presence is Presence.ATTENDING:
                self._tell_to_go_on(worker)

    def _tell_to_go_on(self, worker: Worker) -> None:
        """Tells a worker to continue, once on each stream."""
        job, going_on = worker.job, worker.job.members.going_on
        assert going_on is not None, "not all have gone on"
        if worker.rank not in going_on.roles or going_on.told_on.get(worker.rank) == worker.stream:
            return
        going_on.told_on[worker.rank] = worker.stream
        grant = reply_to(worker, self._cluster, self._limits)
        move = join.Move(move_number=job.move_number, grant=grant, roles=going_on.roles[worker.rank])
        self._emit(GoOn(worker, join.JobEvent(move=move)))

    def waits(self, worker: Worker, now: float) -> None:
        """The orders to this worker are not on disk yet, so the worker is not late."""
        job = worker.job
        if job.members.going_on is not None:
            job.members.going_on.at = now
        if job.move is not None:
            job.move.told_at = now

    # What people hear.

    def describe(self, job: Job, now: float) -> str:
        """Says that a job moves, why, and what it waits for; empty: the job does not move."""
        move, members = job.move, job.members
        if move is not None:
            since = f"since {move.reason}, {now - move.since:.0f} s ago"
            if job.state is State.RUNNING:
                return f"it moves when another place can take it, {since}: {self.why_not(job)}"
            return f"it moves, {since}, and waits for {' and '.join(self._waits_for(job, move))}"
        if job.waits_to_move_since is not None:
            return f"it waits to move, for {now - job.waits_to_move_since:.0f} s: {BEYOND_BUDGET}"
        if members.going_on is not None:
            late = [members.workers[rank] for rank in members.going_on.roles]
            return f"it has moved, and waits for {_named(late)} to go on"
        return ""

    def lost(self, job: Job) -> str:
        """A clause which says that the switch of a running job is lost and no other can take the job; empty: this is
        not so."""
        move = job.move
        if job.state is not State.RUNNING or move is None or move.cause is not Cause.SWITCH_LOST:
            return ""
        if move.lease is not None and move.lease.state is not LeaseState.WANTED:
            return ""
        return f"{move.reason}, and no other can take it: {self.why_not(job)}"

    def why_not(self, job: Job) -> str:
        """Why a job that looks for another lease has none; empty: it does not look."""
        move = job.move
        if move is None:
            return ""
        if move.lease is None:
            return move.obstacle
        return self._waiting.why(move.lease) if move.lease.state is LeaseState.WANTED else "its switches are being told"

    def _waits_for(self, job: Job, move: Move) -> Iterator[str]:
        workers = sorted(job.members.workers.items())
        if unhalted := [worker for rank, worker in workers if rank not in move.positions]:
            yield f"{_named(unhalted)} to halt"
        if move.lease is None or move.lease.state is not LeaseState.HELD:
            yield f"another lease ({self.why_not(job)})"


def can_move(job: Job) -> bool:
    """True if all workers are still there, and a number is left for one more move."""
    return (
        job.members.left_first is None
        and job.move_number < MOVE_NUMBER_MAX
        and job.members.world_size * job.lease.slots <= POSITIONS_MAX
    )


def _candidates(job: Job, cluster: Cluster) -> frozenset[str]:
    """The switches that all the job's workers are attached to now, directly or through switches below. Raises a
    `Refusal` if there is none."""
    addresses = {worker.endpoint.address for worker in job.members.workers.values()}
    found = frozenset.intersection(*map(cluster.at_or_above, addresses))
    if job.terms.within:
        found &= cluster.within(job.terms.within)
    if not found:
        raise Refusal("FAILED_PRECONDITION", "the configuration has no switch any more that all its workers are at")
    return found


def _move_to(lease: Lease) -> Move:
    """The move that brings the lease's job to this lease."""
    move = lease.job.move
    assert move is not None and move.lease is lease, "a job has one next lease"
    return move


def _named(workers: list[Worker]) -> str:
    named = [str(worker) for worker in workers[:WORKERS_NAMED_MAX]]
    if more := len(workers) - len(named):
        named.append(f"{more} more")
    return in_words(named)
