"""How jobs end: who is told what, what is written down, and when the name, the number and the leases are free. Pure."""

from __future__ import annotations

from collections.abc import Callable

from wiresum import join
from wiresum.controller.jobs import outputs
from wiresum.controller.jobs.cluster import Cluster
from wiresum.controller.jobs.history import History
from wiresum.controller.jobs.job import Event, Job, Presence, State, Worker
from wiresum.controller.jobs.limits import Limits
from wiresum.controller.jobs.over import ORDERED, Over
from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.jobs.roster import Roster
from wiresum.controller.jobs.saving import Saving
from wiresum.controller.jobs.telling import Telling
from wiresum.controller.jobs.tree import Phase
from wiresum.controller.jobs.waiting import WaitingRoom


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
        drop: Callable[[Job, float], None],
    ) -> None:
        """`drop`: a job that ends does not move any more."""
        self._roster, self._cluster, self._waiting, self._telling = roster, cluster, waiting, telling
        self._saving, self._history, self._over, self._limits = saving, history, over, limits
        self._emit, self._drop = emit, drop

    def give_up(self, job: Job, refusal: Refusal, now: float) -> None:
        """Of a job that forms or waits for slots."""
        self._waiting.remove(job)
        job.move(Event.GIVEN_UP, refusal.text)
        self._refuse_waiting(job, refusal)
        self._history.note_given_up(job, refusal.text, now)
        self._roster.forget(job)
        self._waiting.serve()  # what was kept for it is free

    def stop(self, job: Job, ended: join.JobEnded, now: float) -> None:
        """Whether or not it has begun."""
        if job.state in (State.FORMING, State.QUEUED):
            job.ended = ended
            self._over.note(job.name, job.tenant, job.resumed_id, ended, now)
            self.give_up(job, Refusal("ABORTED", f"{job} did not begin, since {ended.reason}"), now)
        elif job.state is not State.ENDING:
            self.end(job, ended, now)

    def end(self, job: Job, ended: join.JobEnded, now: float, refusal: Refusal | None = None) -> None:
        """Of a job that has slots. `refusal`: to those who wait for a grant, if the usual one does not do."""
        has_begun = job.has_begun
        self._drop(job, now)
        job.move(Event.ENDED, ended.reason)
        job.ended = ended
        self._over.note(job.name, job.tenant, job.resumed_id, ended, now)
        job.drained_at = now + self._limits.drain_ms_max / 1000
        self._saving.save(job)
        code = "UNAVAILABLE" if ended.cause == join.JobEnded.SWITCH_LOST else "ABORTED"  # the first: ask again
        refusal = refusal or Refusal(code, f"{job} ended before it began: {ended.reason}")
        if has_begun:
            self._history.note_ended(job, ended, now)
        else:
            self._history.note_given_up(job, refusal.text, now)
        self._refuse_waiting(job, refusal)
        # A worker whose grant is not on disk yet hears this instead; one that has its grant has no Join any more.
        for worker in job.workers.values():
            if worker.presence is Presence.GRANTED:
                self._refuse(worker, refusal)
        for worker in job.workers.values():
            if worker.presence is Presence.ATTENDING:
                self._emit(outputs.Tell(worker, ended))
        self._telling.evict(job)

    def clear(self, lease: Job, now: float) -> None:
        """Of a lease that no job has: it is free when its switches have forgotten it."""
        self._roster.add(lease)
        self.clear_if_done(lease, now)

    def clear_if_done(self, job: Job, now: float) -> None:
        """Frees what the switches have forgotten, and forgets a job that has nothing any more."""
        if job.state is State.MOVING and self._telling.give_back(job):
            self._saving.save(job)
            self._waiting.serve()
        settled = all(w.told or w.presence in (Presence.LEFT, Presence.LOST) for w in job.workers.values())
        if job.state is not State.ENDING or not (settled or now >= job.drained_at):
            return
        held_up = [name for name, node in job.nodes.items() if node.phase is not Phase.FORGOTTEN]
        if any(self._cluster.switches[name].why_unusable() for name in held_up):
            self._roster.release_name(job)  # that may take long, and the job may begin elsewhere meanwhile
        changed = self._telling.give_back(job)
        if self._telling.has_given_back(job):
            job.move(Event.CLEARED)
            for worker in job.workers.values():
                self._emit(outputs.Close(worker))
            self._roster.forget(job)
            if job.moves is None:
                self._roster.members.note_gone(job)
            self._saving.forget(job)
            self._waiting.serve()
        elif changed:
            self._saving.save(job)
            self._waiting.serve()

    def _refuse_waiting(self, job: Job, refusal: Refusal) -> None:
        for worker in job.workers.values():
            if worker.presence is Presence.WAITING:
                worker.presence = Presence.LOST
                self._refuse(worker, refusal)

    def _refuse(self, worker: Worker, refusal: Refusal) -> None:
        """One that would go on with a job after a loss would ask again. It does not if somebody has ended the job."""
        job, ended = worker.job, worker.job.ended
        if job.shape is not None and ended is not None and ended.cause in ORDERED:
            self._emit(outputs.RefuseForGood(worker, ended))
        else:
            self._emit(outputs.Refuse(worker, refusal))
