"""The life of jobs, as a state machine: no socket, no clock, no thread, no file.

The owner of a `Jobs` tells it what happened (a request came, a stream broke, a switch answered, time passed) and when,
in seconds of a monotonic clock. Then the owner carries out what `take_outputs` returns, in order. The states of a job
and of its lease are in job.py. waiting.py decides who gets slots next, and cluster.py where; moving.py has how a job
moves, ending.py how a job ends.

Calls go one way: from here to moving.py, to ending.py, and to telling.py, saving.py and waiting.py. None of these calls
back, so no state of a job changes while a caller is changing it. What one job leaves to others, such as free slots, is
a mark (`WaitingRoom.due`) until the event has been dealt with.

Slots return to their pool only when the switch has forgotten the lease and every worker has left, was lost, or has been
told that the job has ended. Telling has a time limit, since a worker may not be listening. What the job leaves in the
cells means nothing to the next job, which has another key (keys.py). A job may have several switches (tree.py);
telling.py tells them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from wiresum import join
from wiresum.controller.driver import DriverError, Reconciled
from wiresum.controller.jobs import asking, lost_workers, outputs
from wiresum.controller.jobs.cluster import Cluster, Switch
from wiresum.controller.jobs.ending import Ending
from wiresum.controller.jobs.granting import number_workers, reply_to, settle, settle_entries
from wiresum.controller.jobs.history import History
from wiresum.controller.jobs.job import NOBODY, Asker, Cause, Event, Job, Lease, Presence, State, Worker
from wiresum.controller.jobs.keys import Keys
from wiresum.controller.jobs.limits import Limits, Quota
from wiresum.controller.jobs.moving import Moving
from wiresum.controller.jobs.over import Over
from wiresum.controller.jobs.quota import Quotas
from wiresum.controller.jobs.records import JobRecord, StoredState, job_of
from wiresum.controller.jobs.refusal import Refusal, check_join
from wiresum.controller.jobs.reservations import Reservations
from wiresum.controller.jobs.roster import Roster
from wiresum.controller.jobs.saving import Saving
from wiresum.controller.jobs.set_aside import RecordsSetAside
from wiresum.controller.jobs.telling import Telling
from wiresum.controller.jobs.waiting import WaitingRoom
from wiresum.join.constants import REASON_CHARACTERS_MAX

log = logging.getLogger(__name__)


class Jobs:
    """All jobs of one service."""

    def __init__(
        self,
        switches: Iterable[Switch],
        keys: Keys,
        limits: Limits | None = None,
        quotas: Iterable[Quota] = (),
        *,
        unix_offset: float = 0.0,
    ) -> None:
        """`keys`: for the jobs' packets; no cell of the switches holds one of them. `unix_offset`: Unix time less
        `now`."""
        self.limits = limits or Limits()
        self.cluster = Cluster(switches)
        self._keys = keys
        self.quotas = Quotas(quotas)
        self.waiting = WaitingRoom(self.cluster, self.quotas, self.limits)
        self._outputs: list[outputs.Output] = []
        emit = self._outputs.append
        self._telling = Telling(self.cluster, self.limits, emit)
        self.reservations = Reservations(self.limits, emit, unix_offset)
        self.history = History(emit, unix_offset)
        self.set_aside = RecordsSetAside(emit)
        self.roster = Roster()
        self._saving = Saving(emit, unix_offset)
        self._over = Over(self.limits.switch_lost_ms_max / 1000)
        self.ending = Ending(
            self.roster,
            self.cluster,
            self.waiting,
            self._telling,
            self._saving,
            self.history,
            self._over,
            self.limits,
            emit,
        )
        self.moving = Moving(
            self.cluster, self.waiting, self._telling, keys, self.limits, emit, self._saving, self.ending
        )
        self._unix_offset = unix_offset
        self._ticked_at: float | None = None
        self._stalled_at: float | None = None
        """When the service last ran again after a stall."""
        self._closing = ""
        self.past = ""
        """A sentence that says why the state at the start is not what was written last; empty if it is."""

    def __len__(self) -> int:
        return len(self.roster)

    def take_outputs(self) -> list[outputs.Output]:
        """Returns what is to be carried out since the last call. Free slots are given to waiting jobs first."""
        self._serve()
        taken = list(self._outputs)
        self._outputs.clear()
        return taken

    # Workers' calls.

    def ask(self, request: join.JoinRequest, now: float, asker: Asker = NOBODY) -> Worker:
        """A worker asks to join; `call` then numbers its Join. The answer comes as a `Grant` or `Refuse`. Raises a
        `Refusal`, and changes nothing, if the caller cannot be a member."""
        check_join(request)
        if self._closing:
            raise Refusal("UNAVAILABLE", self._closing)
        timeout_ms = min(request.timeout_ms or self.limits.join_timeout_ms_default, self.limits.join_timeout_ms_max)
        deadline = now + timeout_ms / 1000
        if (job := self.roster.named.get(request.job_name)) is not None:
            asking.check_tenant(job, request, asker)
        if (told := self._tell_if_over(job, request, asker, now)) is not None:
            return told
        if job is not None:
            asking.check_not_ending(job)
            holder = asking.holder_asking_again(job, request)
            if holder is not None:
                holder.certificate, holder.holder = asker.certificate, asker.holder
                self._ask_again(holder, request, now, deadline)
                return holder
        job = self._enter(job, request, asker, now)
        worker = asking.new_worker(job, request, asker, now, deadline)
        replaced = job.members.workers.get(worker.rank)
        if replaced is not None:
            replaced.presence = Presence.LOST
        job.members.workers[worker.rank] = worker
        self._queue_if_whole(job, now)
        return worker

    def note_refused(self, name: str, rank: int, asker: Asker, tenant: str, why: str) -> None:
        """A worker that is, or says that it is, of this tenant and rank was refused: those of its job that wait for it
        are told."""
        job = self.roster.named.get(name)
        if job is not None and job.state is State.FORMING and job.tenant == tenant and rank < job.members.world_size:
            said = f"rank {rank}, which called from {asker.address or 'somewhere'}, was refused: {why}"
            job.members.refused = rank, said[:REASON_CHARACTERS_MAX]

    def hung_up(self, worker: Worker, call: int, now: float) -> None:
        """A Join of the worker broke off before it was answered."""
        if call == worker.call and worker.presence in (Presence.WAITING, Presence.GRANTED):
            worker.hang_up(now)

    def attend(self, member: join.Member, now: float, asker: Asker = NOBODY) -> Worker:
        """A worker opens an Attend stream; `stream` then numbers it. A worker that was cut off while its job ended is
        told the cause, as long as the service remembers the job. Raises a `Refusal`."""
        worker = self.find(member, gone=True)
        if worker.presence in (Presence.LEFT, Presence.LOST) and worker.job.ended is None:
            raise _not_a_member()
        worker.stream += 1
        worker.heard_at = worker.attended_at = now
        worker.away_since = worker.broken_at = None
        worker.certificate_expires_at = asker.expires_at
        if asker.certificate != worker.certificate:
            worker.certificate, worker.holder = asker.certificate, asker.holder
            self._saving.save_soon(worker.job)
        if worker.job.has_begun:
            worker.presence = Presence.ATTENDING
            worker.positions = worker.roles = b""  # it has its grant
            self.moving.remind(worker)  # R7.22
        elif worker.job.ended is not None:
            self._outputs.append(outputs.Tell(worker, worker.job.ended))
        return worker

    def beat(
        self,
        worker: Worker,
        round_newest: int,
        now: float,
        halted: join.Halted | None = None,
        tensor_newest: int | None = None,
        sums_wrong: int = 0,
    ) -> None:
        worker.heard_at, worker.tensor_newest = now, tensor_newest
        self._note_wrong_sums(worker, sums_wrong)
        worker.contributions = None
        if round_newest != worker.round_newest:
            worker.round_newest = round_newest
            worker.job.watch.note_progress(now)  # R7.14
        if halted is None:
            self.moving.goes_on(worker)
        else:
            self.moving.halted(worker, halted, now)

    def _note_wrong_sums(self, worker: Worker, count: int) -> None:
        """Counts, at the worker's switch, those that are new. What a worker says first another service may have counted
        already."""
        before, worker.sums_wrong = worker.sums_wrong, max(count, worker.sums_wrong or 0)
        if before is not None and worker.switch_name:
            self.cluster.switches[worker.switch_name].sums_wrong += worker.sums_wrong - before

    def broken(self, worker: Worker, stream: int, now: float) -> None:
        """An Attend stream ended: the process has died, or its connection broke. After a silence of the worker, or a
        stall of the service, a broken stream is weak evidence of death."""
        if stream != worker.stream or worker.presence is not Presence.ATTENDING:
            return
        if worker.job.has_begun:
            stalled = self._stalled_at is not None and now - self._stalled_at < self.limits.after_stall_ms / 1000
            worker.broken_at = now
            worker.broken_in_silence = stalled or now - worker.heard_at > self.limits.suspect_ms / 1000
        else:  # the worker hung up on an ended job, as it should
            worker.presence = Presence.LOST
            self.ending.clear_if_done(worker.job.lease, now)

    def told(self, worker: Worker, now: float) -> None:
        """The worker has been sent its `Tell`."""
        worker.told = True
        self.ending.clear_if_done(worker.job.lease, now)

    def leave(self, request: join.LeaveRequest, now: float) -> None:
        worker = self._find_to_order(request.member)
        job = worker.job
        job.members.note_left(worker, now)
        self._outputs.append(outputs.Close(worker))
        if job.has_begun and job.members.all_left():
            self.ending.end(job, join.JobEnded(reason="all workers have left"), now)
        else:
            self._saving.save_soon(job)
        self.ending.clear_if_done(job.lease, now)

    def abort(self, request: join.AbortRequest, now: float) -> None:
        worker = self._find_to_order(request.member)
        self._note_wrong_sums(worker, request.sums_wrong)
        if worker.job.has_begun:
            self.ending.end(worker.job, lost_workers.aborted(worker, request.reason), now)

    def _find_to_order(self, member: join.Member) -> Worker:
        """The worker for a Leave or an Abort. Raises a `Refusal` if its job has lost its switch: that job is over only
        here, its workers continue it elsewhere, and the other service must hear how it ends."""
        worker = self.find(member)
        if worker.job.ended is not None and worker.job.ended.cause == join.JobEnded.SWITCH_LOST:  # R7.33
            raise _not_a_member()
        return worker

    # Operators' calls.

    def create(self, request: join.CreateJobRequest, now: float) -> str:
        """Returns the token; raises a `Refusal`."""
        return self.reservations.create(request, self.roster.named, self.cluster, self.quotas, now)

    def end(self, job_name: str, reason: str, now: float) -> None:
        """Ends a job by an operator's order. Raises a `Refusal` if there is no such job."""
        reserved = self.reservations.forget(job_name)
        job = self.roster.named.get(job_name)
        if job is None and not reserved:
            raise Refusal("NOT_FOUND", f"there is no job {job_name!r}; `wiresum jobs` lists those that there are")
        text = f"an operator ended it: {reason[:REASON_CHARACTERS_MAX] or 'no reason given'}"
        if job is not None:
            self.ending.stop(job, join.JobEnded(cause=join.JobEnded.ENDED_BY_OPERATOR, reason=text), now)

    def drain(self, switch_name: str, *, resume: bool) -> int:
        """Returns how many jobs the switch has. Raises a `Refusal` if there is no such switch."""
        switches = self.cluster.drain(switch_name, resume=resume)
        self._outputs.extend(outputs.SaveDraining(switch.name, switch.draining) for switch in switches)
        self.waiting.due = True
        return len({lease for switch in switches for lease in switch.leases_with_slots()})

    def expel(self, is_revoked: Callable[[str], bool], now: float) -> None:
        """Ends the jobs of workers whose certificates are revoked; `is_revoked` takes a serial."""
        there = (Presence.WAITING, Presence.GRANTED, Presence.ATTENDING)
        for job in self.roster.all():
            worker = next(
                (w for w in job.members.workers.values() if w.presence in there and is_revoked(w.certificate)), None
            )
            if worker is not None:
                text = f"{worker} may not go on: its certificate was revoked"
                log.warning("%s: %s", job, text)
                ended = join.JobEnded(cause=join.JobEnded.WORKER_LOST, worker=worker.peer(), reason=text)
                self.ending.stop(job, ended, now)

    # Switches' answers.

    def switch_changed(self, switch_name: str, trouble: str, now: float) -> None:
        """Notes that the switch has become reachable (`trouble` empty) or unreachable, or that its state is known for
        the first time."""
        switch = self.cluster.switches[switch_name]
        if trouble and not switch.trouble:
            switch.trouble_since = now
        switch.trouble = trouble
        switch.note_unready()
        self.waiting.due = True  # leases that are over do not count in a quota there
        if not trouble:
            for job in [lease.job for lease in switch.held() if lease.is_current]:
                job.watch.note_progress(now)  # the switch was cut off: workers get time to be heard
                if job.move is not None:  # the job looked for another lease, and may not need one now
                    self.moving.look(job, now)
            self._telling.reconcile(switch)

    def counted(
        self, switch_name: str, number: int, contributions: Sequence[int], now: float, results: int = 0
    ) -> None:
        """Takes a switch's counters for a job: `contributions` are packets by contributor, empty if the switch could
        not say; `results` are sums."""
        lease = self._telling.numbered(switch_name, number)
        if lease is not None and lease.is_current:
            lost_workers.note_counted(lease.job, lease.nodes[switch_name], contributions, results, now)

    def reconciled(self, asked: outputs.Reconcile, found: Reconciled, now: float) -> None:
        """The switch holds what it was asked to, unless it has lost its cells and with them its jobs."""
        switch = self.cluster.switches[asked.switch_name]
        self._note_keys(switch, found.keys_reserved)
        if found.reloaded and asked.entries:
            reason = f"{switch.name} was started anew, and what it had summed is lost"
            for lease in switch.held():
                self._lose(lease, reason, now, Cause.SWITCH_RESTARTED)
            self._telling.reconcile(switch)
            return
        switch.reconciled, switch.unready = not switch.trouble, None
        for lease in self._telling.reconciled(asked):
            self.ending.clear_if_done(lease, now)
        for lease, reason in self._telling.strangers(asked, found):
            log.error("%s cannot go on: %s", lease, reason)
            self._lose(lease, reason, now)
        self.waiting.due = True

    def _lose(self, lease: Lease, reason: str, now: float, cause: Cause | None = None) -> None:
        """A switch has lost what it had of the lease. `cause`: why the job may move; None: it cannot move."""
        job = lease.job
        if not lease.is_current:
            self.moving.abandon(lease, reason, now)
        elif cause is None or not self.moving.must_move(job, cause, reason, now):
            self.ending.end(job, join.JobEnded(cause=join.JobEnded.SWITCH_LOST, reason=reason), now)

    def reconcile_failed(self, switch_name: str, failure: DriverError, now: float) -> None:
        """Reconciling failed. It is tried again, at the latest when the switch is out of trouble."""
        self.cluster.switches[switch_name].note_unready(failure, now + self.limits.evict_retry_ms / 1000)

    def admitted(self, switch_name: str, number: int, now: float) -> None:
        lease = self._telling.admitted(switch_name, number)
        if lease is not None and lease.is_current:
            self._begin(lease.job, now)
        elif lease is not None:
            self.moving.admitted(lease, now)

    def _begin(self, job: Job, now: float) -> None:
        try:
            asking.settle_roles(job)
        except Refusal as refusal:
            self.ending.end(job, join.JobEnded(reason=refusal.text), now, refusal)
            return
        job.step(Event.ADMITTED)
        job.watch.attend_s_max = self.limits.attend_ms_max / 1000
        job.watch.note_progress(now)
        workers = job.members.workers.values()
        for worker in workers:
            worker.presence = Presence.GRANTED
            worker.heard_at = now
        self.roster.tokens.add(job)
        self._saving.save(job.lease)
        self.reservations.forget(job.name)
        for worker in workers:
            self._grant(worker)

    def refused(self, switch_name: str, number: int, text: str, now: float) -> None:
        """The switch did not take the job, or could not be asked; it may hold a part of the job."""
        lease = self._telling.refused(switch_name, number)
        if lease is None:
            return
        if not lease.is_current:
            self.moving.abandon(lease, f"{switch_name} did not take it: {text}", now)
            return
        job = lease.job
        if trouble := self.cluster.switches[switch_name].trouble:
            refusal = Refusal("UNAVAILABLE", f"{switch_name} was lost when it was given {job}: {trouble}")
        else:
            refusal = Refusal("INTERNAL", f"{switch_name} did not take {job}: {text}. Its log says more")
        self.ending.end(job, join.JobEnded(cause=join.JobEnded.SWITCH_LOST, reason=text), now, refusal)

    def evicted(self, switch_name: str, number: int, now: float) -> None:
        lease = self._telling.evicted(switch_name, number)
        if lease is not None:
            self.ending.clear_if_done(lease, now)

    def evict_failed(self, switch_name: str, number: int, now: float) -> None:
        self._telling.evict_failed(switch_name, number, now)

    def hold_up(self, why: str) -> None:
        """Holds up all waiting jobs for the reason `why`, since the state cannot be written; an empty `why` ends
        this."""
        self.waiting.held_up, self.waiting.due = why, True

    def waits_for_disk(self, output: outputs.Grant | outputs.Halt | outputs.GoOn, now: float) -> None:
        """The order to this worker is delayed, since what it follows from is not on disk yet, so the worker is not
        late."""
        if not isinstance(output, outputs.Halt):
            output.worker.heard_at = now
        self.moving.waits(output.worker, now)

    # Time.

    def tick(self, now: float) -> None:
        """Advances time; to be called several times a second."""
        stalled = now - self._ticked_at if self._ticked_at is not None else 0.0
        self._ticked_at = now
        if stalled > self.limits.stall_ms_max / 1000:
            log.warning("this service was stopped for %.1f s, which it does not count against workers", stalled)
            self._stalled_at = now
            for switch in self.cluster.switches.values():
                switch.trouble_since += stalled
            for job in self.roster.all():
                job.forgive(stalled, now)
        self.waiting.tick()
        self._serve()
        for job in self.roster.all():
            self._tick_alone(job, now)
        for lease in list(self.roster.released):
            self._telling.try_again(lease, now)
        for switch in self.cluster.switches.values():
            again_at = switch.reconcile_again_at
            if again_at is not None and now >= again_at and not switch.trouble and not switch.reconciled:
                self._telling.reconcile(switch)
        self.reservations.tick(now, self.roster.named)

    def close(self, reason: str, now: float, *, keep_jobs: bool = False) -> None:
        """Lets no further job form. Running jobs end, unless they are kept for the next controller."""
        self._closing = self.waiting.held_up = f"{reason}: start it again, and the worker will find it"
        for job in self.roster.all():
            if job.waits:
                self.ending.give_up(job, Refusal("UNAVAILABLE", self._closing), now)
            elif (job.state is State.ADMITTING or job.has_begun) and not keep_jobs:
                self.ending.end(job, join.JobEnded(cause=join.JobEnded.SWITCH_LOST, reason=reason), now)

    # Restart.

    def restore(self, state: StoredState, now: float) -> None:
        """Continues where the former service ended. If a part of the state was lost, `past` says so, and the jobs
        concerned end. A record that the service cannot continue with is set aside.

        Jobs that ran continue, and their workers have a while to come back. Jobs that were being admitted are not in
        the state: the switches are made to forget them, and their workers ask again.
        """
        for switch in self.cluster.switches.values():
            switch.draining = bool({switch.name, switch.part_of} & state.draining)  # perhaps it had no pipes before
        self.reservations.restore(state.reservations)
        self.history.restore(state.ended)
        self.past = state.past

        def take(record: JobRecord) -> Job:
            job = job_of(record, now, self._unix_offset)
            other = self.roster.named.get(job.name)
            if other is not None and State.ENDING not in (job.state, other.state):
                raise ValueError("another job has its name")
            self.cluster.take_again(job.lease)
            return job

        for job in self.set_aside.restore(state.jobs, state.set_aside, take):
            self._restore_job(job, now)
        if state.keys_lost:
            self.set_aside.forget_all()  # a new sequence may contain the keys of these records
            for job in filter(lambda job: job.has_begun, self.all()):
                self.ending.end(job, join.JobEnded(cause=join.JobEnded.SWITCH_LOST, reason=state.past), now)

    def _restore_job(self, job: Job, now: float) -> None:
        settle_entries(job.lease, lambda name: self.cluster.switches[name].endpoint)
        number_workers(job)
        job.watch.attend_s_max = self.limits.reattend_ms_max / 1000
        self.roster.add(job)
        self.roster.tokens.add(job)
        if job.state is not State.ENDING or job.name not in self.roster.named:
            self.roster.named[job.name] = job
        if job.state is State.ENDING:
            self._telling.release(job.lease)
        else:
            self.moving.restore(job, now)

    # Queries.

    def find(self, member: join.Member, *, gone: bool = False) -> Worker:
        """The worker with this member's token. `gone`: accept a member of a job that is over, too. Raises a `Refusal`
        if there is no such member."""
        worker = self.roster.tokens.find(member, gone=gone)
        if worker is None:
            raise _not_a_member()
        return worker

    def all(self) -> list[Job]:
        return self.roster.all()

    # Forming.

    def _enter(self, job: Job | None, request: join.JoinRequest, asker: Asker, now: float) -> Job:
        """The job that this worker joins; a new job if none has the name."""
        if job is None:
            reservation = self.reservations.get(request.job_name)
            job = asking.new_job(request, asker, reservation, now)
            waiting = [other for other in self.roster.all() if other.waits]
            self.waiting.check_can_form(job, waiting, sharing=bool(request.host_id))
            self._keys.check_left(len(waiting))
            job.complete_by = now + self.limits.forming_ms_max / 1000
            job.candidates = self.waiting.candidates(job, request.endpoint.address)
            self.roster.add(job)
            self.roster.named[job.name] = job
            goes_on = f", and goes on here, since {request.resumed.reason}" if job.terms.shape is not None else ""
            log.info("%s of %d workers forms, for %s%s", job, request.world_size, asker.name or "this host", goes_on)
        else:
            asking.check_fits(job, request, asker)
            job.candidates = self.waiting.candidates(job, request.endpoint.address)
        return job

    def _ask_again(self, worker: Worker, request: join.JoinRequest, now: float, deadline: float) -> None:
        """Handles another Join of a member whose connection broke."""
        worker.call += 1
        worker.come_back(request.resumed.positions)
        worker.deadline = deadline
        worker.heard_waiting = ""
        if worker.presence is Presence.LOST:  # the worker was refused, and has not heard so
            worker.presence = Presence.WAITING
        if worker.presence is Presence.GRANTED:
            worker.heard_at = now
        if worker.job.has_begun:
            self._grant(worker)
        self._queue_if_whole(worker.job, now)

    def _queue_if_whole(self, job: Job, now: float) -> None:
        if not job.waits or not job.members.is_whole():
            return
        try:
            asking.check_whole(job)
            self.waiting.look_for_offers(job.lease, job.candidates)
        except Refusal as refusal:
            self.ending.give_up(job, refusal, now)
            return
        if job.state is State.FORMING:
            job.step(Event.COMPLETED)
            self.waiting.add(job.lease)
        self.waiting.due = True
        self._serve()
        self._give_up_if_not_to_wait(job, now)

    def _give_up_if_not_to_wait(self, job: Job, now: float) -> None:
        """Gives up a job that was tried and got no slots, if its workers do not want to wait."""
        if job.state is not State.QUEUED or not self.waiting.has_tried(job.lease):
            return
        if any(worker.admission != join.Admission.QUEUE for worker in job.members.workers.values()):
            text = f"{self.waiting.what(job).reason}; its workers do without it"
            self.ending.give_up(job, Refusal("RESOURCE_EXHAUSTED", text), now)

    def _tell_if_over(self, named: Job | None, request: join.JoinRequest, asker: Asker, now: float) -> Worker | None:
        """Refuses a worker for good that would continue a job which is over: one of its workers, or an operator, has
        ended it, or the worker itself says that it is over before any service heard so. Returns a worker that is no
        member, or None if the job is not over. `named`: the job that has the name now, which may be another one."""
        resumed = request.resumed
        ended = self._over.find(request.job_name, resumed.job_id, now)
        if ended is None and not resumed.HasField("ended"):
            return None
        own = named if named is not None and asking.is_same(named, request) else None
        if own is not None:
            asking.check_token(own, request)
        job = own or asking.new_job(request, asker, None, now)
        worker = asking.new_worker(job, request, asker, now, now)
        worker.presence, worker.positions = Presence.LOST, b""
        if ended is None:
            is_left = resumed.ended.cause == join.JobEnded.WORKER_LEFT
            ended = lost_workers.left(worker) if is_left else lost_workers.aborted(worker, resumed.ended.reason)
            self._over.note(job.name, job.tenant, resumed.job_id, ended, now)
            if own is None:
                self.history.note_given_up(job, ended.reason, now)
            else:
                if (before := asking.holder_asking_again(own, request)) is not None:
                    before.presence = Presence.LOST  # its earlier call is not answered
                self.ending.stop(own, ended, now)
        self._outputs.append(outputs.RefuseForGood(worker, ended))
        return worker

    # Slots.

    def _note_keys(self, switch: Switch, reserved: int) -> None:
        """Skips keys that may have been used. `reserved`: keys that other controllers have given to the switch."""
        if reserved > self._keys.reserved:
            self.past = (
                f"{switch.name} has been given keys that the state does not know of: it is an old copy, or the disk "
                f"has lost what was written last, or another controller uses a copy. No key is used again; jobs that "
                f"began meanwhile are not known here"
            )
            log.error("%s", self.past)
        self._keys.skip(reserved)

    def _serve(self) -> None:
        """Gives the free slots to jobs in the queue."""
        for lease, grounds in self.waiting.serve():
            if self._keys.must_reserve:
                self._outputs.append(outputs.SaveKeys(self._keys.reserve()))
            settle(lease, self.cluster, grounds, self._keys)
            if lease.is_current:
                number_workers(lease.job)
                lease.job.step(Event.LEASED)
            self._telling.admit(lease)

    def _grant(self, worker: Worker) -> None:
        self._outputs.append(outputs.Grant(worker, reply_to(worker, self.cluster, self.limits)))

    # Watching.

    def _tick_alone(self, job: Job, now: float) -> None:
        """Ticks one job, so that a bug with this job does not make any other job wait for ever."""
        try:
            self._tick_job(job, now)
        except Exception:
            if not job.tick_fails:  # a tick that fails does so several times a second
                log.exception("%s cannot be watched; the others are", job)
            job.tick_fails = True

    def _tick_job(self, job: Job, now: float) -> None:
        match lost_workers.look(job, self.cluster.switches, self.limits, now):
            case Refusal() as refusal:
                self.ending.give_up(job, refusal, now)
            case lost_workers.End(ended, refusal):
                if ended.cause == join.JobEnded.WORKER_LOST:
                    log.warning("%s: %s", job, ended.reason)
                    job.members.workers[ended.worker.rank].presence = Presence.LOST
                elif ended.cause == join.JobEnded.SWITCH_LOST and (why := self.moving.why_not(job)):
                    ended.reason += f". No other switch could take it: {why}"
                self.ending.end(job, ended, now, refusal)
        if job.has_begun:
            self.moving.look(job, now)
        if job.unsaved and job.has_begun:
            self._saving.save(job.lease)
        for node in lost_workers.ask_to_count(job, self.limits, now, crowded=self.waiting.crowded):
            self._outputs.append(outputs.Count(node.branch.switch_name, job.lease.number))
        self._give_up_if_not_to_wait(job, now)
        if job.waits or job.state is State.ADMITTING:
            self._outputs.extend(self.waiting.news(job, now))
        elif job.state in (State.MOVING, State.ENDING):
            self._telling.try_again(job.lease, now)
            self.ending.clear_if_done(job.lease, now)


def _not_a_member() -> Refusal:
    return Refusal("NOT_FOUND", "this service knows no such member: the job has ended, or the switch was started anew")
