"""A switch that runs our P4 program, as the controller's `SwitchDriver`: bmv2, a Tofino or a pipe of one, or the
software switch with its P4Runtime server.

What it should hold is a function of configuration and jobs (`desired`); what to change for that, of what it holds
(`difference`). Admission and eviction of one job are the difference between nothing and that job's entries.

Pipes of one switch share a `P4Device`. Each looks after the entries of its own jobs, and whichever comes first after
those that are all pipes'. But a switch whose program was loaded anew has no address before all its pipes have been
reconciled: as long as it has none, each knows that what its jobs had summed is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence

from wiresum.controller.driver import DriverError, Endpoint, JobCounters, JobEntry, Reconciled, SwitchSizes
from wiresum.controller.p4runtime import count, desired
from wiresum.controller.p4runtime.client import READY_S_MAX
from wiresum.controller.p4runtime.connection import Runs
from wiresum.controller.p4runtime.device import P4Device
from wiresum.controller.p4runtime.difference import ADMISSIONS, GROUP, Batch, NormalEntry, concerning, difference
from wiresum.controller.p4runtime.target import Target
from wiresum.join.constants import STRAY_ROW


class P4RuntimeSwitch:
    """From construction, which does not wait for the switch, to `close`. Workers can only be on the target's hosts, if
    it has ports, since it admits a packet by its port and addresses a RESULT to a MAC, or if it stands in a tree."""

    def __init__(
        self,
        target: Target,
        *,
        election_id: int,
        on_change: Callable[[], None] = lambda: None,
        device: P4Device | None = None,
    ) -> None:
        """`device`: what the target has in common with its siblings, if it has any; they are closed together."""
        self._target = target
        self._ended: dict[int, JobCounters] = {}
        """The last counters of those that were evicted."""
        self._on_change = on_change
        self._device = device or P4Device(target, election_id=election_id)
        self._device.add(target.name, on_change)
        self._client = self._device.client
        self._jobs = self._device.jobs[target.name]
        """Those that are admitted, by number."""
        self.tables = self._device.tables
        """What the switch holds, for whoever looks after it."""

    @property
    def name(self) -> str:
        return self._target.name

    @property
    def kind(self) -> str:
        return self._target.kind

    @property
    def sizes(self) -> SwitchSizes:
        pipeline = self._target.pipeline
        return SwitchSizes(slots=pipeline.slots, lanes_max=pipeline.lanes, jobs_max=self._target.jobs_max)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self._target.address, self._target.port)

    @property
    def trouble(self) -> str:
        return self._client.trouble

    @property
    def on_change(self) -> Callable[[], None]:
        return self._on_change

    @on_change.setter
    def on_change(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._device.add(self.name, on_change)

    @property
    def outranked(self) -> bool:
        """Does another controller program the switch, as far as is known?"""
        return self._client.outranked

    @property
    def election_id(self) -> int:
        return self._client.election_id

    def wait_ready(self, s_max: float = READY_S_MAX) -> None:
        """Until there is no trouble; a `DriverError` says what it is if that takes too long."""
        self._client.wait_ready(s_max)

    @property
    def parent(self) -> str:
        return self._target.parent.name if self._target.parent else ""

    @property
    def part_of(self) -> str:
        return self._target.part_of

    def reaches(self, address: str) -> bool:
        return self._target.reaches(address)

    def results_group(self, job: int) -> Endpoint | None:
        """Of a software switch that is configured so; other programs address each RESULT to its worker."""
        return self._target.results_group(job)

    def reconcile(self, entries: Sequence[JobEntry]) -> Reconciled:
        for entry in entries:
            self._check(entry)
        with self._device.lock:
            return self._reconcile(entries)

    def admit(self, entry: JobEntry) -> None:
        with self._device.lock:
            self._check_reconciled()
            assert entry.job < self.sizes.jobs_max, f"there is no job {entry.job}"
            assert entry.job not in self._jobs, f"job {entry.job} is admitted already"
            self._check(entry)
            self._check_room("admit", entry, lambda job: job.workers * job.threads)
            self._check_room("admit_parent_entry", entry, lambda job: job.threads * (job.uplink is not None))
            self._check_room("deliver", entry, lambda job: job.workers + (job.uplink is not None))
            wanted = self.tables.normal(desired.of_job(self._target, entry))
            self._device.give_keys(entry.keys_reserved)
            self._reset_counters(entry.job)
            try:
                for batch in difference([], wanted):
                    self._apply(batch, f"for job {entry.job}")
            except DriverError:
                with contextlib.suppress(DriverError):  # the first error is the one to tell
                    self._remove(wanted, entry)
                raise
            self._jobs[entry.job] = entry
            self._ended.pop(entry.job, None)

    def evict(self, job: int) -> None:
        with self._device.lock:
            self._check_reconciled()
            if job not in self._jobs:
                return
            entry = self._jobs[job]
            counters = self._remove(self.tables.normal(desired.of_job(self._target, entry)), entry)
            del self._jobs[job]
            self._ended[job] = counters

    def counters(self, job: int) -> JobCounters:
        if job in self._jobs:
            return self._count(self._target.row(job), self._jobs[job].workers)
        return self._ended.get(job, JobCounters())

    def stray(self) -> JobCounters:
        """Of all pipes: the first one has them."""
        return self._count(STRAY_ROW, 0) if self._target.is_first else JobCounters()

    def close(self) -> None:
        self._device.close()

    # Whether it can.

    def _check_reconciled(self) -> None:
        if self._client.trouble:
            raise DriverError(self._client.trouble)
        if not self._device.is_reconciled(self.name):
            raise DriverError(f"{self.name} has not been reconciled since it came back: it will be, in a moment")

    def _check(self, entry: JobEntry) -> None:
        lanes = self._target.pipeline.lanes
        if entry.lanes != lanes:
            raise DriverError(
                f"{self.name} sums packets of {lanes} words and no others, but the job's workers agreed "
                f"on {entry.lanes}: leave WIRESUM_LANES unset, and give the network an MTU that holds such packets"
            )
        try:
            desired.of_job(self._target, entry)
        except ValueError as error:
            raise DriverError(str(error)) from None

    def _check_room(self, table: str, entry: JobEntry, entries_of: Callable[[JobEntry], int]) -> None:
        """The switch would refuse too, but bmv2 does not say why."""
        room = self.tables.room(table)
        used, wanted = sum(map(entries_of, self._device.all_jobs())), entries_of(entry)
        if used + wanted > room:
            raise DriverError(
                f"table {table} of {self.name} has room for {room} entries; {used} are taken and "
                f"this job needs {wanted}: give the workers fewer threads (WIRESUM_THREADS), or wait until another "
                f"job ends"
            )

    # What it does.

    def _reconcile(self, entries: Sequence[JobEntry]) -> Reconciled:
        term = self._client.term
        if self._client.runs(self._target.pipeline) is not Runs.OURS:
            self._client.load(self._target.pipeline)
        held = self.tables.held()
        keys_of_others = self._device.look_at_keys(held)
        # Who has never been reconciled since its program was loaded has no address, which comes last.
        reloaded = not any(entry.stage == "own" for entry in held)
        if reloaded and entries:
            return Reconciled(reloaded=True)
        wanted = self.tables.normal(desired.everything(self._target, entries))
        self._device.give_keys(max((entry.keys_reserved for entry in entries), default=0))
        there = {(entry.stage, entry.key) for entry in held}
        added = frozenset(entry.job for entry in entries if there.isdisjoint(self._admissions(entry)))
        if reloaded and not self._device.is_last(self.name, term):
            wanted = [entry for entry in wanted if entry.stage != "own"]
        batches = difference(concerning(self._target, held), wanted)
        for batch in batches:
            self._apply(batch)
        self._jobs.clear()
        self._jobs.update((entry.job, entry) for entry in entries)
        self._device.note_reconciled(self.name, term)
        changes = tuple(line for batch in batches for line in batch.lines())
        return Reconciled(reloaded, changes, added, keys_of_others)

    def _admissions(self, job: JobEntry) -> set[tuple[str, bytes]]:
        """By which the switch can be seen to have the job."""
        entries = self.tables.normal(desired.of_job(self._target, job))
        return {(entry.stage, entry.key) for entry in entries if entry.stage in ADMISSIONS}

    def _apply(self, batch: Batch, of: str = "") -> None:
        write = {"INSERT": self.tables.insert, "MODIFY": self.tables.modify, "DELETE": self.tables.delete}[batch.kind]
        what = f"the multicast group {of}" if batch.stage == GROUP else f"entries of table {batch.stage} {of}"
        write(what.rstrip(), [entry.entity for entry in batch.entries])

    def _remove(self, entries: Iterable[NormalEntry], job: JobEntry) -> JobCounters:
        """Whatever the switch has of a job; may be repeated. Returns its last counters."""
        counters = JobCounters()
        for batch in difference(entries, []):
            self._apply(batch, f"of job {job.job}")
            if batch.stage == "admit":  # what comes now is not counted for this job any more
                counters = self._count(self._target.row(job.job), job.workers)
        return counters

    def _reset_counters(self, job: int) -> None:
        self.tables.modify(f"the counters of job {job}", count.resets(self._target.row(job)))

    def _count(self, row: int, workers: int) -> JobCounters:
        return count.decode(self.tables.read("what it counted", count.reads(row)), workers)
