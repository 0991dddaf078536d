"""The `SwitchDriver` of a switch that runs our P4 program: bmv2, a Tofino or a pipe of one, or the software switch with
its P4Runtime server.

`desired` says what the switch should hold, `difference` what to change. To admit or evict a job is the difference
between nothing and that job's entries.

Pipes of one switch share a `P4Device`. Each pipe keeps the entries of its own jobs, and the entries for all pipes. A
switch whose program was loaded gets its address when the last of its pipes is reconciled: until then each pipe sees
that the sums of its jobs are lost.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

from wiresum.controller.driver import DriverError, Endpoint, JobCounters, JobEntry, Reconciled, SwitchSizes, Versions
from wiresum.controller.p4runtime import count, desired
from wiresum.controller.p4runtime.client import Times
from wiresum.controller.p4runtime.connection import Runs
from wiresum.controller.p4runtime.device import P4Device
from wiresum.controller.p4runtime.difference import ADMISSIONS, GROUP, Batch, NormalEntry, concerning, difference
from wiresum.controller.p4runtime.target import Target
from wiresum.controller.resources import NOTHING, shortage
from wiresum.join.constants import STRAY_ROW


class P4RuntimeSwitch:
    """The driver, from construction, which does not wait for the switch, to `close`."""

    def __init__(
        self, target: Target, *, election_id: int, device: P4Device | None = None, times: Times | None = None
    ) -> None:
        """`device`: what the target shares with its siblings, which are closed together with it; None: the target has
        no siblings. Then `times` says how long the switch may take."""
        self._target = target
        self.name, self.kind, self.part_of = target.name, target.kind, target.part_of
        self.parent = target.parent.name if target.parent else ""
        self.endpoint = Endpoint(target.address, target.port)
        self.sizes = SwitchSizes(
            target.pipeline.slots, target.pipeline.lanes, target.jobs_max, tables=desired.room(target)
        )
        self.needs = functools.lru_cache(maxsize=None)(functools.partial(desired.needs, target))
        self.reaches, self.results_group = target.reaches, target.results_group
        self.on_change: Callable[[], None] = lambda: None
        self._device = device or P4Device(target, election_id=election_id, times=times)
        self._device.add(target.name, lambda: self.on_change())  # noqa: PLW0108 - `on_change` is set later
        self._client = self._device.client
        self.wait_ready = self._client.wait_ready
        self.tables = self._device.tables
        """Reads and writes the switch's tables."""
        self._jobs = self._device.jobs[target.name]
        """Admitted jobs, by number."""
        self._ended: dict[int, JobCounters] = {}
        """The last counters of evicted jobs."""

    @property
    def trouble(self) -> str:
        return self._client.trouble

    @property
    def outranked(self) -> bool:
        """True if another controller programs the switch, as far as is known."""
        return self._client.outranked

    def versions(self) -> Versions:
        return self._client.versions

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
            self._check_room(entry)
            wanted = self.tables.normal(desired.of_job(self._target, entry))
            self._device.give_keys(entry.keys_reserved)
            self._reset_counters(entry.job)
            try:
                for batch in difference([], wanted):
                    self._apply(batch, f"for job {entry.job}")
            except DriverError:
                try:
                    self._remove(wanted, entry)
                except DriverError:  # the first error counts, and evict() removes the rest
                    self._jobs[entry.job] = entry
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
        """The stray packets of all pipes; only the first pipe reports them."""
        return self._count(STRAY_ROW, 0) if self._target.is_first else JobCounters()

    def close(self) -> None:
        self._device.close()

    # Checks.

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

    def _check_room(self, entry: JobEntry) -> None:
        """Raises `DriverError` if the job does not fit. The switch would refuse too, but bmv2 does not say why."""
        room, wanted = self.sizes.tables, self.needs(entry.shape)
        taken = sum((self.needs(job.shape) for job in self._device.all_jobs()), NOTHING)
        if lacking := (taken + wanted).beyond(room):
            counts = (amounts.of(lacking) for amounts in (room, taken, wanted))
            raise DriverError(shortage(lacking, self.name, *counts))

    # Changes.

    def _reconcile(self, entries: Sequence[JobEntry]) -> Reconciled:
        term = self._client.term
        runs = self._client.runs(self._target.pipeline)
        if runs is Runs.NOTHING and entries:
            return Reconciled(
                reloaded=True
            )  # returns before the program is loaded, which a switch of another release refuses
        if runs is not Runs.OURS:
            self._client.load(self._target.pipeline)
        held = self.tables.held()
        keys_of_others = self._device.look_at_keys(held)
        # The address comes last: without it the switch has not been reconciled since its program was loaded.
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
        """Places of the job's admissions: a switch with an entry at any of these has the job."""
        entries = self.tables.normal(desired.of_job(self._target, job))
        return {(entry.stage, entry.key) for entry in entries if entry.stage in ADMISSIONS}

    def _apply(self, batch: Batch, of: str = "") -> None:
        write = {"INSERT": self.tables.insert, "MODIFY": self.tables.modify, "DELETE": self.tables.delete}[batch.kind]
        what = f"the multicast group {of}" if batch.stage == GROUP else f"entries of table {batch.stage} {of}"
        write(what.rstrip(), [entry.entity for entry in batch.entries])

    def _remove(self, entries: Iterable[NormalEntry], job: JobEntry) -> JobCounters:
        """Removes a job's entries; may be repeated. Returns the job's last counters."""
        counters = JobCounters()
        for batch in difference(entries, []):
            self._apply(batch, f"of job {job.job}")
            if batch.stage == "admit":  # packets that come now are not counted for this job any more
                counters = self._count(self._target.row(job.job), job.workers)
        return counters

    def _reset_counters(self, job: int) -> None:
        self.tables.modify(f"the counters of job {job}", count.resets(self._target.row(job)))

    def _count(self, row: int, workers: int) -> JobCounters:
        return count.decode(self.tables.read("what it counted", count.reads(row)), workers)
