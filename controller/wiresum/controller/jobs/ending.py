"""How jobs end: who is told what, what is stored, and when the name, the number and the leases are free. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable

from wiresum import join
from wiresum.controller.jobs import outputs
from wiresum.controller.jobs.cluster import Cluster
from wiresum.controller.jobs.history import History
from wiresum.controller.jobs.job import Event, Job, Lease, LeaseState, Presence, State, Worker
from wiresum.controller.jobs.limits import Limits
from wiresum.controller.jobs.lost_workers import left
from wiresum.controller.jobs.over import ORDERED, Over
from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.jobs.roster import Roster
from wiresum.controller.jobs.saving import Saving
from wiresum.controller.jobs.telling import Telling
from wiresum.controller.jobs.tree import Phase
from wiresum.controller.jobs.waiting import WaitingRoom

log = logging.getLogger(__name__)


class Ending:
    def __init__(
        self,
        roster: Roster,
        cluster: Cluster,
        waiting: WaitingRoom,
        telling: Telling,
        saving: Saving,
        history: History,
        over: Over,
        limits: Limits,
        emit: Callable[[outputs.Output], None],
    ) -> None:
        self._roster, self._cluster, self._waiting, self._telling = roster, cluster, waiting, telling
        self._saving, self._history, self._over, self._limits = saving, history, over, limits
        self._emit = emit

    def give_up(self, job: Job, refusal: Refusal, now: float) -> None:
        """Gives up a job that forms or waits for slots."""
        self._waiting.remove(job.lease)
        job.step(Event.GIVEN_UP, refusal.text)
        self._refuse_waiting(job, refusal)
        self._history.note_given_up(job, refusal.text, now)
        self._roster.forget(job)

    def stop(self, job: Job, ended: join.JobEnded, now: float) -> None:
        """Ends a job, whether or not it has begun."""
        if job.waits:
            self._note_end(job, ended, now)
            self.give_up(job, Refusal("ABORTED", f"{job} did not begin, since {ended.reason}"), now)
        elif job.state is not State.ENDING:
            self.end(job, ended, now)

    def end(self, job: Job, ended: join.JobEnded, now: float, refusal: Refusal | None = None) -> None:
        """Ends a job that has slots. `refusal`: the answer to workers that wait for a grant; None: the usual one."""
        if ended.cause == join.JobEnded.SWITCH_LOST and job.members.left_first is not None:
            ended = left(job.members.left_first)  # or the others would look for another lease, and wait for that one
        has_begun = job.has_begun
        if job.move is not None and job.move.lease is not None:
            self.release(job.move.lease, "the job has ended", now)
        job.step(Event.ENDED, ended.reason)
        self._note_end(job, ended, now)
        self._saving.save(job.lease)
        code = "UNAVAILABLE" if ended.cause == join.JobEnded.SWITCH_LOST else "ABORTED"  # the first: ask again
        refusal = refusal or Refusal(code, f"{job} ended before it began: {ended.reason}")
        if has_begun:
            self._history.note_ended(job, ended, now)
        else:
            self._history.note_given_up(job, refusal.text, now)
        self._refuse_waiting(job, refusal)
        # A worker whose grant is not on disk yet gets the refusal instead; a worker that has its grant has no Join any
        # more.
        for worker in job.members.workers.values():
            if worker.presence is Presence.GRANTED:
                self._refuse(worker, refusal)
        for worker in job.members.workers.values():
            if worker.presence is Presence.ATTENDING:
                self._emit(outputs.Tell(worker, ended))  # R4.31, R7.15
        self._release(job.lease)

    def release(self, lease: Lease, why: str, now: float) -> None:
        """Releases a lease that a job was to move to, or has moved from."""
        log.info("%s is released: %s", lease, why)
        if lease.state is LeaseState.WANTED:
            self._waiting.remove(lease)
            return
        self._roster.released[lease] = None
        self._saving.save(lease)
        self._release(lease)
        self.clear_if_done(lease, now)

    def _release(self, lease: Lease) -> None:
        self._telling.release(lease)
        if any(self._cluster.switches[name].why_unusable() for name in lease.nodes):
            self._waiting.due = True  # there the lease does not count in a quota any more

    def clear_if_done(self, lease: Lease, now: float) -> None:
        """Frees what switches have forgotten of the lease, and forgets a lease that has nothing any more, with its job
        if the job ends. The lease of a job that moves keeps its number, which identifies its record on disk."""
        job, moves = lease.job, lease.is_current and lease.job.state is State.MOVING
        if lease.is_current and not (moves or (job.state is State.ENDING and self._have_heard(job, now))):
            return
        held = [name for name, node in lease.nodes.items() if node.phase is not Phase.FORGOTTEN]
        if lease.is_current and not moves and any(self._cluster.switches[name].why_unusable() for name in held):
            self._roster.release_name(job)  # reconciling may take long, and the job may begin elsewhere meanwhile
        changed = self._telling.give_back(lease)
        if held or moves:
            if changed:
                self._saving.save(lease)
                self._waiting.due = True
            return
        self._telling.free_number(lease)
        self._saving.forget(lease)
        self._waiting.due = True
        if lease.is_current:
            job.step(Event.CLEARED)
            for worker in job.members.workers.values():
                self._emit(outputs.Close(worker))
            self._roster.forget(job)
            self._roster.tokens.note_gone(job)
        else:
            del self._roster.released[lease]

    def _have_heard(self, job: Job, now: float) -> bool:
        """True if all the job's workers that are there have heard that it has ended, or have had the time to."""
        workers = job.members.workers.values()
        all_have = all(worker.told or worker.presence in (Presence.LEFT, Presence.LOST) for worker in workers)
        return all_have or now >= job.ended_at + self._limits.drain_ms_max / 1000

    def _note_end(self, job: Job, ended: join.JobEnded, now: float) -> None:
        job.ended, job.ended_at = ended, now
        self._over.note(job.name, job.tenant, job.terms.resumed_id, ended, now)

    def _refuse_waiting(self, job: Job, refusal: Refusal) -> None:
        for worker in job.members.workers.values():
            if worker.presence is Presence.WAITING:
                worker.presence = Presence.LOST
                self._refuse(worker, refusal)

    def _refuse(self, worker: Worker, refusal: Refusal) -> None:
        """Refuses a Join. A worker that would continue a job elsewhere would ask again, so it is refused for good if
        somebody has ended the job."""
        job, ended = worker.job, worker.job.ended
        if job.terms.shape is not None and ended is not None and ended.cause in ORDERED:
            self._emit(outputs.RefuseForGood(worker, ended))
        else:
            self._emit(outputs.Refuse(worker, refusal))
