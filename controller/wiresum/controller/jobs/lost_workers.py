"""Decides which worker or switch of a job is lost, late or away. Pure.

Every state has a bound, so that no worker waits for ever.

A job that runs does not need the service, so silence towards the service alone is no reason to end it. A worker is lost
when its connection has broken, its switch has counted no packet of it, and no round of the others advanced, which would
need its packets. As long as the connection stands, the process lives, even if its heartbeats are late: gRPC's own
threads answer pings, and without an answer the connection breaks (service/join_server.py). If a switch and all workers
are out of reach, the service is cut off. In a tree each worker's switch is its witness, and a job is lost with any of
its switches.

While a job moves no worker sends packets, so no switch is a witness. A worker that sends heartbeats must halt within
`heartbeat_lost_ms`; a worker that is silent although its connection stands is given longer, `deaf_ms_max`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wiresum import join
from wiresum.controller.jobs.cluster import Switch
from wiresum.controller.jobs.job import Job, LeaseState, Presence, State, Worker
from wiresum.controller.jobs.limits import Limits
from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.jobs.tree import Node, Phase, in_words
from wiresum.join.constants import REASON_CHARACTERS_MAX

ALONE_SHARE = 3
"""A worker whose connection alone broke is given this part of the usual time."""
ALONE_LOOKS = 4
"""How often the switch is asked in the time that such a worker is given (`ALONE_SHARE`)."""
IDLE_LOOKS = 8
"""How often a job's counters are read in the time after which the job counts as idle."""


@dataclass(frozen=True)
class End:
    """A verdict: the job ends."""

    ended: join.JobEnded
    refusal: Refusal | None = None
    """The answer to workers that wait for a grant; None: the usual one."""


Verdict = Refusal | End
"""A `Refusal` means that the job did not begin."""


def look(job: Job, switches: Mapping[str, Switch], limits: Limits, now: float) -> Verdict | None:
    """Returns what is to become of the job; None: it goes on. `switches`: all switches, by name."""
    match job.state:
        case State.FORMING | State.QUEUED:
            return _late(job, limits, now)
        case State.ADMITTING:
            return _slow_switch(job, now) or _away(job, limits, now)
        case State.RUNNING:
            return (
                _not_gone_on(job, limits, now)
                or _silent(job, switches, limits, now)
                or _away(job, limits, now)
                or _left(job, limits, now)
                or _lost_switch(job, (switches[name] for name in job.lease.nodes), limits, now)
                or _idle(job, limits, now)
            )
        case State.MOVING:
            return (
                _dead_while_moving(job, limits, now)
                or _unhalted(job, switches, limits, now)
                or _away(job, limits, now)
                or _left(job, limits, now)
                or _without_lease(job, switches, limits, now)
            )
        case _:
            return None


def _late(job: Job, limits: Limits, now: float) -> Refusal | None:
    away = _away_worker(job, limits, now)
    if away is not None:
        text = f"{away} went away before {job} began; missing now: {job.members.missing(without=away)}"
        return Refusal("ABORTED", f"{text}. Look at why it stopped, and start all workers again")
    if job.state is State.FORMING and now >= job.complete_by:
        waited_s = job.complete_by - job.created_at
        text = f"{job} was not complete after {waited_s:.0f} s, the longest that a job may form"
        why = (
            f"{job.members.missing()} did not come"
            if not job.members.is_complete()
            else "some of its workers came and went"
        )
        return Refusal("DEADLINE_EXCEEDED", f"{text}: {why}. Look at why, and start all workers again")
    if now < min(worker.deadline for worker in job.members.workers.values()):
        return None
    longer = "give it more time (the timeout of the process group, or of wiresum_join)"
    if job.state is State.QUEUED:
        text = f"{job} got no slots in time; `wiresum jobs` shows who has them"
        return Refusal("DEADLINE_EXCEEDED", f"{text}. Try again when another job has ended, or {longer}")
    text = f"{job} was not complete in time: {job.members.missing()} did not come"
    return Refusal("DEADLINE_EXCEEDED", f"{text}. Look at why, or {longer}")


def _away_worker(job: Job, limits: Limits, now: float) -> Worker | None:
    """A worker whose Join broke off and that has not asked again in time; None: there is none."""
    for worker in job.members.workers.values():
        if worker.away_since is not None and now >= worker.away_since + limits.ask_again_ms_max / 1000:
            return worker
    return None


def _away(job: Job, limits: Limits, now: float) -> End | None:
    away = _away_worker(job, limits, now)
    return None if away is None else _lost(away, "went away while it was being admitted")


def _slow_switch(job: Job, now: float) -> End | None:
    if now < min(worker.deadline for worker in job.members.workers.values()):
        return None
    slow = [name for name, node in job.lease.nodes.items() if node.phase is Phase.ADMITTING]
    text = f"{in_words(slow)} did not answer in time when {job} was to be installed there"
    refusal = Refusal("DEADLINE_EXCEEDED", f"{text}. Look at its log")
    return End(join.JobEnded(cause=join.JobEnded.SWITCH_LOST, reason=text), refusal)


def ask_to_count(job: Job, limits: Limits, now: float, *, crowded: bool) -> list[Node]:
    """The switches that are asked for their counters now: those of silent workers, and, where others wait for slots,
    the root, which shows whether the job is idle."""
    if not crowded or job.lease.is_on_one_host:  # such a job's switch sees nothing of its sums
        job.watch.active_at, job.watch.results = now, None
    if job.state is not State.RUNNING:
        return []
    asked_s = now - job.watch.count_asked_at
    wanted: set[str] = set()
    if crowded and limits.idle_ms_max and asked_s >= limits.idle_ms_max / IDLE_LOOKS / 1000:
        wanted.add(job.lease.switch_name)
    suspects = [worker for worker in job.members.workers.values() if _is_suspect(worker, limits, now)]
    if suspects and asked_s >= min(_patience(worker, limits).counted_ms for worker in suspects) / 1000:
        wanted |= {worker.switch_name for worker in suspects}
        if crowded:
            wanted.add(job.lease.switch_name)
    asked = [node for name, node in job.lease.nodes.items() if name in wanted and not node.counting]
    for node in asked:
        node.counting, job.watch.count_asked_at = True, now
    return asked


def note_counted(job: Job, node: Node, contributions: Sequence[int], results: int, now: float) -> None:
    """Takes a switch's counters for the job: `contributions` are packets by contributor, empty if the switch could not
    say; `results` are sums."""
    node.counting = False
    if node is job.lease.root:
        if not contributions or results != job.watch.results:
            job.watch.active_at = now
        job.watch.results = results if contributions else None
    counts = zip(node.branch.hosts, contributions, strict=False)
    for worker, count in ((job.members.workers[rank], count) for host, count in counts for rank in host):
        if worker.contributions != count:
            if worker.contributions is not None:
                worker.counted_at = now
            worker.contributions, worker.said_first_at = count, now
        worker.said_last_at = now


def _is_suspect(worker: Worker, limits: Limits, now: float) -> bool:
    return worker.presence in (Presence.ATTENDING, Presence.GRANTED) and (
        worker.broken_at is not None or now - worker.heard_at > limits.suspect_ms / 1000
    )


class _Patience(NamedTuple):
    """How much time a worker gets whose connection broke."""

    lost_ms: float
    counted_ms: float
    """How often the worker's switch is asked meanwhile."""


def _patience(worker: Worker, limits: Limits) -> _Patience:
    if not _broke_alone(worker):
        return _Patience(limits.connection_lost_ms, limits.counted_ms)
    lost_ms = limits.connection_lost_ms / ALONE_SHARE
    return _Patience(lost_ms, min(limits.counted_ms, lost_ms / ALONE_LOOKS))


def _broke_alone(worker: Worker) -> bool:
    """True if the worker's connection broke shortly after a sign of life, while an older connection of another worker
    stands."""
    broken_at = worker.broken_at
    return (
        broken_at is not None
        and not worker.broken_in_silence
        and any(
            other.presence is Presence.ATTENDING and other.broken_at is None and other.attended_at < broken_at
            for other in worker.job.members.workers.values()
        )
    )


def _silent(job: Job, switches: Mapping[str, Switch], limits: Limits, now: float) -> End | None:
    """Finds a worker that is lost because it is silent. A switch that cannot be asked is no witness of silence:
    `_lost_switch` decides about its workers."""
    for worker in job.members.workers.values():
        if switches[worker.switch_name].trouble or job.lease.nodes[worker.switch_name].counting:
            continue
        silent_s = now - max(worker.heard_at, worker.counted_at, job.watch.progress_at)
        nowhere = f"and for {silent_s:.1f} s no packet of it came to {worker.switch_name} either"
        if worker.presence is Presence.ATTENDING and worker.broken_at is not None:
            gone_s, patience = min(now - worker.broken_at, silent_s), _patience(worker, limits)
            gone = gone_s > patience.lost_ms / 1000
            if gone and not worker.broken_in_silence and _is_witnessed(worker, patience):
                how = "its connection to the service broke, so its process has probably died"
                return _lost(worker, f"was lost: {how}; it did not come back, {nowhere}")
            if gone and silent_s > limits.heartbeat_lost_ms / 1000:
                how = "no heartbeat of it came, its connection to the service broke"
                return _lost(worker, f"was lost: {how}, {nowhere}")
        if worker.presence is Presence.GRANTED and silent_s > job.watch.attend_s_max:
            what = "the service was started again" if job.watch.restored else "it was admitted"
            return _lost(worker, f"was lost: {what}, but it sent no heartbeat, {nowhere}")
    return None


def _is_witnessed(worker: Worker, patience: _Patience) -> bool:
    """True if the switch's counters have stood still for long enough. A single answer proves nothing."""
    said_s = worker.said_last_at - worker.said_first_at if worker.contributions is not None else 0.0
    return said_s >= (patience.lost_ms - patience.counted_ms) / 1000


def _left(job: Job, limits: Limits, now: float) -> End | None:
    """Ends the job some time after a Leave: no collective can complete without the worker that left."""
    gone = job.members.left_first
    if gone is None or now < job.members.left_at + limits.leave_grace_ms / 1000:
        return None
    return End(left(gone))


def _lost_switch(job: Job, switches: Iterable[Switch], limits: Limits, now: float) -> End | None:
    """Ends a job that has lost a switch. A job whose rounds advance, as its workers say, continues, whatever is out of
    reach."""
    switch = min((s for s in switches if s.trouble), key=lambda s: s.trouble_since, default=None)
    if switch is None:
        return None
    still_s = now - max(switch.trouble_since, job.watch.progress_at)
    unheard_s = now - max(worker.heard_at for worker in job.members.workers.values())
    if unheard_s > limits.suspect_ms / 1000:
        if min(still_s, unheard_s) <= limits.deaf_ms_max / 1000:
            return None
        reason = f"{switch.name} and all workers have been out of reach for {unheard_s:.0f} s: {switch.trouble}"
        return _ended(join.JobEnded.SWITCH_LOST, reason)
    if still_s <= limits.switch_lost_ms_max / 1000:
        return None
    reason = f"{switch.name} is lost: {switch.trouble}, and for {still_s:.0f} s the job has made no progress"
    # The job may wait for one of its workers, which the switch cannot report now.
    if suspects := [str(worker) for worker in job.members.workers.values() if _is_suspect(worker, limits, now)]:
        reason += f"; of {' and '.join(suspects)} nothing has been heard either"
    return _ended(join.JobEnded.SWITCH_LOST, reason)


def _dead_while_moving(job: Job, limits: Limits, now: float) -> End | None:
    for worker in job.members.workers.values():
        gone_s = now - worker.broken_at if worker.broken_at is not None else 0.0
        if gone_s > limits.connection_lost_ms / 1000 and _broke_alone(worker):
            how = "its connection to the service broke, so its process has probably died"
            return _lost(worker, f"was lost while the job moved: {how}; it did not come back in {gone_s:.1f} s")
    return None


def _is_cut_off(job: Job, switches: Mapping[str, Switch], limits: Limits, now: float) -> bool:
    """True if the service itself seems cut off: a switch and all workers of the job are out of its reach."""
    unheard_s = now - max(worker.heard_at for worker in job.members.workers.values())
    return unheard_s > limits.suspect_ms / 1000 and any(switches[name].trouble for name in job.lease.nodes)


def _unhalted(job: Job, switches: Mapping[str, Switch], limits: Limits, now: float) -> End | None:
    move = job.move
    assert move is not None, "it moves"
    waited_s = now - move.told_at
    cut_off = _is_cut_off(job, switches, limits, now)
    for rank, worker in job.members.workers.items():
        stands = worker.presence is Presence.ATTENDING and worker.broken_at is None
        silent = stands and now - worker.heard_at > limits.suspect_ms / 1000
        most_ms = limits.deaf_ms_max if cut_off or silent else limits.heartbeat_lost_ms
        if rank not in move.positions and waited_s > most_ms / 1000:
            how = f"it has not halted for {waited_s:.0f} s, so the job cannot move"
            return _lost(worker, f"was lost: {how} ({move.reason})")
    return None


def _without_lease(job: Job, switches: Mapping[str, Switch], limits: Limits, now: float) -> End | None:
    move = job.move
    assert move is not None, "it moves"
    waited_s = now - move.halting_since
    most_ms = limits.deaf_ms_max if _is_cut_off(job, switches, limits, now) else limits.switch_lost_ms_max
    there = move.lease is not None and move.lease.state is LeaseState.HELD
    if there or waited_s <= most_ms / 1000:
        return None
    return _ended(join.JobEnded.SWITCH_LOST, f"{move.reason}, and for {waited_s:.0f} s no switch has taken the job")


def _not_gone_on(job: Job, limits: Limits, now: float) -> End | None:
    """Finds a worker that still says it has halted after its job has moved. Without heartbeats it counts as any other
    silent worker."""
    going_on = job.members.going_on
    if going_on is None or now - going_on.at <= limits.heartbeat_lost_ms / 1000:
        return None
    late = (job.members.workers[rank] for rank in going_on.roles)
    worker = next((worker for worker in late if now - worker.heard_at <= limits.suspect_ms / 1000), None)
    if worker is None:
        return None
    return _lost(worker, f"was lost: for {now - going_on.at:.0f} s it has not gone on after the job has moved")


def _idle(job: Job, limits: Limits, now: float) -> End | None:
    """Ends a job that has summed nothing for too long. `active_at` is the present for as long as nobody waits for
    slots."""
    idle_s = now - job.watch.active_at if job.watch.active_at is not None else 0.0
    if not limits.idle_ms_max or idle_s <= limits.idle_ms_max / 1000:
        return None
    reason = (
        f"{job} has summed nothing for {idle_s:.0f} s, while others wait for slots (idle_s in the controller's "
        f"configuration)"
    )
    return _ended(join.JobEnded.ENDED_BY_OPERATOR, reason)


def left(worker: Worker) -> join.JobEnded:
    reason = f"{worker} has left the job, and no collective can complete without it"
    return join.JobEnded(cause=join.JobEnded.WORKER_LEFT, worker=worker.peer(), reason=reason)


def aborted(worker: Worker, said: str) -> join.JobEnded:
    reason = f"{worker} ended the job: {said[:REASON_CHARACTERS_MAX] or 'it gave no reason'}"
    return join.JobEnded(cause=join.JobEnded.ABORTED_BY_WORKER, worker=worker.peer(), reason=reason)


def _ended(cause: join.JobEnded.Cause, reason: str, worker: Worker | None = None) -> End:
    return End(join.JobEnded(cause=cause, worker=worker.peer() if worker else None, reason=reason))


def _lost(worker: Worker, how: str) -> End:
    return _ended(join.JobEnded.WORKER_LOST, f"{worker} {how}", worker)
