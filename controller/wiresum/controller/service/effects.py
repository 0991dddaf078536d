"""Carries out what `Jobs` wants done: writes to disk, tells switches, answers workers. Runs in one event loop.

Calls to a switch or to the disk may block, so each switch and the disk have a thread, which makes their calls one at a
time and in order.

The outputs that `Jobs` gives at one time are a batch. A batch with something to write waits until the write is on disk,
and so do all batches behind it: no worker hears of anything that a crash could undo. Batches that arrive while the disk
is busy are written together.

A disk may refuse a write or not answer. After WRITE_S_MAX, or the first refusal, only what must (outputs.py) still
waits for the disk: workers hear how their jobs end, and switches forget ended jobs. Meanwhile no job gets slots. If the
service dies before the disk takes the rest, the ended jobs still run as far as the next service can read. The next
service finds that the switches do not hold them, or that no worker comes back, and ends them again.

A write also shows whether another service serves from the same state; then this one must not end jobs any more. So
workers are told nothing before the disk has had WRITE_S_MAX, counted in waits and not by the clock, so that a process
that was frozen gives the disk its time.

A read of the state shows this, too, and does not need a disk that takes writes. A standby takes over only when it has
seen no sign of life for a while. For SURE_S after a sign of life that was followed by such a read, this service may say
what runs. Later, since the service or its disk stood still, it reads the state again before it answers.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import logging
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from wiresum.controller.driver import DriverError, JobCounters, Reconciled, SwitchDriver
from wiresum.controller.jobs import outputs
from wiresum.controller.jobs.job import Worker
from wiresum.controller.jobs.jobs import Jobs
from wiresum.controller.jobs.records import EndedRecord
from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.service.mailbox import AttendMailbox, JoinMailbox
from wiresum.controller.service.serial_calls import SerialCalls
from wiresum.controller.store import DeposedError, Store, StoreError

log = logging.getLogger(__name__)

COUNT_S_MAX = 2.0
"""How long a report waits for a switch's counters."""
WRITE_S_MAX = 2.0
"""How long outputs wait for a write before they go ahead without it."""
WRITE_LOOK_S = 0.1
WRITE_RETRY_S = 1.0
"""Time between two attempts to write."""
SURE_S = 2.0
"""Time after a sign of life in which no standby takes over: a standby waits for longer. Signs come every second."""


class Times(NamedTuple):
    """How long the service waits for a switch or the disk, and how often it tries again."""

    count_s_max: float = COUNT_S_MAX
    write_s_max: float = WRITE_S_MAX
    write_retry_s: float = WRITE_RETRY_S


AGAIN = ", which will be tried again"
ENDED = "the service has ended"

T = TypeVar("T")


@dataclass(frozen=True)
class _Answer:
    """A step that reports when all outputs before it are on disk, with an empty text, or else why not."""

    heard: asyncio.Future[str]

    def say(self, why_not: str) -> None:
        if not self.heard.done():
            self.heard.set_result(why_not)


Step = outputs.Output | _Answer


class Effects:
    def __init__(
        self,
        jobs: Jobs,
        drivers: Mapping[str, SwitchDriver],
        store: Store | None,
        clock: Callable[[], float],
        times: Times | None = None,
    ) -> None:
        self._loop, self._times = asyncio.get_running_loop(), times or Times()
        self._jobs, self._drivers, self._store, self._clock = jobs, dict(drivers), store, clock
        self._joins: dict[Worker, JoinMailbox] = {}
        self._streams: dict[Worker, AttendMailbox] = {}
        self._switch_calls = {name: SerialCalls(self._loop, f"wiresum-switch-{name}") for name in drivers}
        self._store_calls = SerialCalls(self._loop, "wiresum-store") if store else None
        self._serving_calls = SerialCalls(self._loop, "wiresum-serving") if store else None
        self._batches: collections.deque[list[Step]] = collections.deque()
        self._in_write: list[Step] = []
        """Outputs that wait for the write in progress."""
        self._writing = False
        self._showing_life = False
        self._life_shown_at = -math.inf
        self._checking: asyncio.Future[None] | None = None
        self._why_unknown = "it does not answer"
        """Why the last attempt to find out whether another service serves failed."""
        self._checked_at = -math.inf
        """When the state last showed that no other service serves."""
        self._sure_from = -math.inf
        """When the last sign of life before `_checked_at` was shown."""
        self._write_fails = False
        """True if the disk has refused the write in progress, or is late."""
        self._orders: list[outputs.Grant | outputs.GoOn | outputs.Halt] = []
        """Orders that wait for the disk while it fails."""
        self._behind_keys = False
        """True if what comes next is behind a `SaveKeys` that the disk, which fails, has not taken."""
        self.trouble = ""
        """A sentence that says why the state cannot be written; empty if it can."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._counting: dict[
            tuple[str, tuple[int, ...]], asyncio.Future[tuple[JobCounters, dict[int, JobCounters]]]
        ] = {}
        """Reads of counters in progress, by switch and job numbers."""
        self._failures: dict[tuple[str, str], str] = {}
        """The last failure that was logged, for each switch and operation."""
        self.halted = False
        """True once the service has ended."""
        self.deposed = ""
        """A sentence that says why this service must not continue; empty if it may."""

    def start(self) -> None:
        """Follows the switches' changes, and makes the switches hold what they should."""
        for name, driver in self._drivers.items():
            driver.on_change = functools.partial(self._note_change_from_any_thread, name)
            self._note_change(name)

    def halt(self) -> None:
        """Ends the service: from now on nothing is carried out, and the end of a stream says nothing about its
        worker."""
        self.halted = True
        for mailbox in self._streams.values():
            mailbox.close()
        for waiting in self._joins.values():
            waiting.answer(Refusal("UNAVAILABLE", "the service has ended: start it again, and the worker will find it"))
        for step in (*self._in_write, *(step for batch in self._batches for step in batch)):
            if isinstance(step, _Answer):
                step.say(self.deposed or ENDED)

    def close(self) -> None:
        """Halts and ends the threads. Does not wait for calls in progress."""
        self.halt()
        for driver in self._drivers.values():
            driver.on_change = lambda: None
        for calls in self._switch_calls.values():
            calls.close()
        for of_store in (self._store_calls, self._serving_calls):
            if of_store is not None:
                of_store.close()
        for task in self._tasks:
            task.cancel()

    def show_life(self) -> None:
        """Shows a sign of life to standbys. The write is made by the thread that writes the state, so that a service
        whose disk hangs shows none."""
        if self._store is None or self._store_calls is None or self.halted:
            return
        if self._showing_life:  # the disk hangs
            self._check_serving(self._store)
        else:
            self._showing_life = True
            self._spawn(self._show_life(self._store, self._store_calls))

    async def _show_life(self, store: Store, calls: SerialCalls) -> None:
        now = self._clock()
        await calls.submit(store.show_life)
        self._life_shown_at = now
        self._check_serving(store)
        self._note_trouble(disk=await calls.submit(store.disk_trouble))
        self._showing_life = False

    # Whether it serves.

    @property
    def is_sure(self) -> bool:
        """True if certainly no other service has begun to serve from the state; False: the state must be read to know.
        May be called from any thread."""
        return self._store is None or self._clock() - self._sure_from < SURE_S

    async def why_silent(self) -> str:
        """A sentence that says why this service must not say which jobs run; empty if it may. Returns at once while
        `is_sure`, otherwise after a read of the state."""
        now = self._clock()
        for _ in range(round(self._times.write_s_max / WRITE_LOOK_S)):
            if self._store is None or self.halted or self.is_sure or self._checked_at >= now:
                return self.deposed
            await asyncio.wait({self._check_serving(self._store)}, timeout=WRITE_LOOK_S)
        assert self._store is not None
        return f"whether another controller serves from {self._store.path} is not known: {self._why_unknown}"

    def _check_serving(self, store: Store) -> asyncio.Future[None]:
        """Reads who serves; at most one such read is in progress."""
        if self._checking is None or self._checking.done():
            self._checking = self._spawn(self._look_who_serves(store))
        return self._checking

    async def _look_who_serves(self, store: Store) -> None:
        assert self._serving_calls is not None
        now, life_shown_at = self._clock(), self._life_shown_at
        try:
            await self._serving_calls.submit(store.check_serving)
        except DeposedError as error:
            self._depose(error)
        except StoreError as error:
            self._why_unknown = str(error)
        else:
            self._checked_at, self._sure_from = now, life_shown_at

    def _depose(self, error: DeposedError) -> None:
        self.deposed = str(error)
        self.halt()

    def _note_trouble(self, *, disk: str = "", write: str = "") -> None:
        if not (disk or write) and self._write_fails:
            return
        trouble = write or disk
        if trouble and not self.trouble:
            log.error("%s. Until that is mended no job begins, and slots of jobs that end are not free", trouble)
        elif self.trouble and not trouble:
            log.warning("the state can be written again")
        if trouble != self.trouble:
            self.trouble = trouble
            self._jobs.hold_up(f"the controller's state cannot be written ({trouble})" if trouble else "")
            self.carry_out()

    @property
    def idle(self) -> bool:
        """True if everything has been written."""
        return not self._batches and not self._writing

    # The worker's streams.

    def open_join(self, worker: Worker) -> JoinMailbox:
        mailbox = self._joins[worker] = JoinMailbox()
        return mailbox

    def close_join(self, worker: Worker, mailbox: JoinMailbox) -> None:
        if self._joins.get(worker) is mailbox:
            del self._joins[worker]

    def open_stream(self, worker: Worker) -> AttendMailbox:
        if worker in self._streams:
            self._streams[worker].close()
        mailbox = self._streams[worker] = AttendMailbox()
        return mailbox

    def close_stream(self, worker: Worker, mailbox: AttendMailbox) -> None:
        if self._streams.get(worker) is mailbox:
            del self._streams[worker]

    # What Jobs wants done.

    async def carried_out(self) -> str:
        """Calls `carry_out`. Returns an empty text once all that `Jobs` was told is on disk, or a sentence that says
        why it is not."""
        answer = _Answer(self._loop.create_future())
        self.carry_out(answer)
        return await answer.heard

    def carry_out(self, *then: _Answer) -> None:
        """Carries out what `Jobs` wants; to be called whenever `Jobs` was told something."""
        batch = [*self._jobs.take_outputs(), *then]
        if self.halted:
            for answer in then:
                answer.say(self.deposed or ENDED)
            return
        if self._write_fails:
            for order in self._orders:
                self._jobs.waits_for_disk(order, self._clock())
            self._carry_out_without_disk([batch])
            return
        if batch:
            self._batches.append(batch)
        if not self._writing:
            self._carry_out_batches()

    def _carry_out_batches(self) -> None:
        """Carries out batches up to the first that must be written."""
        while self._batches:
            if self._store is not None and any(isinstance(output, outputs.Write) for output in self._batches[0]):
                self._writing = True
                self._spawn(self._write_batches(self._store))
                return
            for output in self._batches.popleft():
                self._carry_out_one(output)

    async def _write_batches(self, store: Store) -> None:
        assert self._store_calls is not None
        while self._batches:
            self._in_write = [output for batch in self._batches for output in batch]
            self._batches.clear()
            writes = [output for output in self._in_write if isinstance(output, outputs.Write)]
            await self._write(store, writes)
            if self.halted:
                return
            written, self._in_write = self._in_write, []
            for output in written:
                self._carry_out_one(output)
        self._writing = False

    async def _write(self, store: Store, writes: list[outputs.Write]) -> None:
        assert self._store_calls is not None
        while True:
            call = self._store_calls.submit(functools.partial(store.write, writes))
            for _ in range(round(self._times.write_s_max / WRITE_LOOK_S)):
                if call.done() or self._write_fails:
                    break
                await asyncio.wait({call}, timeout=WRITE_LOOK_S)
            else:
                self._do_without_disk(f"{store.path} has taken nothing for {self._times.write_s_max:.0f} s")
            try:
                await call
            except DeposedError as error:
                return self._depose(error)
            except StoreError as error:
                self._do_without_disk(str(error))
            except Exception as error:
                log.exception("the state could not be written; it is tried again")
                self._do_without_disk(f"the state cannot be written: {error}")
            else:
                if self._write_fails:
                    self._write_fails = False
                    self._note_trouble()
                return None
            await asyncio.sleep(self._times.write_retry_s)

    def _do_without_disk(self, trouble: str) -> None:
        self._note_trouble(write=trouble)  # its batch stays behind all others
        if self._write_fails or self.halted:
            return
        self._write_fails, self._orders, self._behind_keys = True, [], False
        waiting, self._in_write = self._in_write, []
        self._without_disk(waiting, self._in_write)
        batches, self._batches = self._batches, collections.deque()
        self._carry_out_without_disk(batches)

    def _carry_out_without_disk(self, batches: Iterable[list[Step]]) -> None:
        """Carries out everything in new batches except what must wait for the disk, which stays in order."""
        for batch in batches:
            kept: list[Step] = []
            self._without_disk(batch, kept)
            if kept:
                self._batches.append(kept)

    def _without_disk(self, batch: list[Step], kept: list[Step]) -> None:
        for output in batch:
            self._behind_keys |= isinstance(output, outputs.SaveKeys)
            match output:
                case outputs.CheckServing():
                    pass  # the write in progress finds out
                case _Answer():
                    output.say(self.trouble)
                case outputs.Admit() | outputs.Evict() | outputs.Reconcile() if self._behind_keys:
                    kept.append(output)
                case outputs.Grant() | outputs.GoOn() | outputs.Halt():
                    self._jobs.waits_for_disk(output, self._clock())
                    self._orders.append(output)
                    kept.append(output)
                case outputs.Forget(EndedRecord() as record) if self._drop_save(record):
                    pass  # a flood of jobs that are refused would keep ever more
                case _ if isinstance(output, outputs.Write):
                    kept.append(output)
                case _:
                    self._carry_out_one(output)

    def _drop_save(self, record: EndedRecord) -> bool:
        """Drops the `Save` of this record if it waits behind the write in progress. True if it did."""
        for place, batch in enumerate(self._batches):
            for output in batch:
                if isinstance(output, outputs.Save) and output.record is record:
                    batch.remove(output)
                    if not batch:
                        del self._batches[place]
                    return True
        return False

    def _carry_out_one(self, output: Step) -> None:
        match output:
            case _Answer():
                output.say("")
            case outputs.Wait(worker, waiting):
                if worker in self._joins:
                    self._joins[worker].wait_for(waiting)
            case outputs.Grant(worker, answer) | outputs.Refuse(worker, answer) | outputs.RefuseForGood(worker, answer):
                if worker in self._joins:
                    self._joins[worker].answer(answer)
            case outputs.Tell(worker, ended):
                if worker in self._streams:
                    self._streams[worker].end(ended)
            case outputs.Halt(worker, event) | outputs.GoOn(worker, event):
                if worker in self._streams:
                    self._streams[worker].order(event)
            case outputs.Close(worker):
                if worker in self._streams:
                    self._streams[worker].close()
            case _:
                self._ask_switch(output)

    def _ask_switch(self, output: Step) -> None:
        jobs, now = self._jobs, self._clock
        match output:
            case outputs.Admit(name, entry):
                self._ask(
                    name,
                    f"to admit job {entry.job}",
                    lambda driver: driver.admit(entry),
                    lambda _: jobs.admitted(name, entry.job, now()),
                    lambda error: self._note_refused(name, entry.job, str(error)),
                )
            case outputs.Evict(name, number):
                self._ask(
                    name,
                    f"to forget job {number}{AGAIN}",
                    lambda driver: driver.evict(number),
                    lambda _: jobs.evicted(name, number, now()),
                    lambda _: jobs.evict_failed(name, number, now()),
                )
            case outputs.Count(name, number):
                self._ask(
                    name,
                    f"to say what it counted for job {number}",
                    lambda driver: driver.counters(number),
                    lambda found: jobs.counted(name, number, found.contributions, now(), found.results),
                    lambda _: jobs.counted(name, number, (), now()),
                )
            case outputs.Reconcile(name, entries):
                self._ask(
                    name,
                    f"to hold what it should{AGAIN}",
                    lambda driver: driver.reconcile(entries),
                    lambda found: self._note_reconciled(output, found),
                    lambda error: jobs.reconcile_failed(name, error, now()),
                )
            case _:
                pass  # the write is on disk, or there is no store

    # Switches.

    def call(self, switch_name: str, function: Callable[[SwitchDriver], T]) -> asyncio.Future[T]:
        """Calls a function in the switch's own thread, after all earlier calls."""
        return self._switch_calls[switch_name].submit(functools.partial(function, self._drivers[switch_name]))

    async def counters(self, switch_name: str, numbers: list[int]) -> tuple[JobCounters, dict[int, JobCounters]] | None:
        """Counters of packets of no job, and of these jobs. None if the switch does not answer in COUNT_S_MAX."""
        if self._drivers[switch_name].trouble:
            return None

        def read(driver: SwitchDriver) -> tuple[JobCounters, dict[int, JobCounters]]:
            return driver.stray(), {number: driver.counters(number) for number in numbers}

        question = (switch_name, tuple(numbers))
        if question not in self._counting:  # so that questions to a switch that hangs do not pile up
            self._counting[question] = self.call(switch_name, read)
            self._counting[question].add_done_callback(lambda asked: self._note_counted(question, asked))
        try:
            return await asyncio.wait_for(asyncio.shield(self._counting[question]), self._times.count_s_max)
        except asyncio.TimeoutError:
            log.warning("%s has not said for %.0f s what it counted", switch_name, self._times.count_s_max)
        except Exception as error:
            log.warning("%s does not say what it counted: %s", switch_name, error)
        return None

    def _note_counted(self, question: tuple[str, tuple[int, ...]], asked: asyncio.Future[Any]) -> None:
        del self._counting[question]
        if not asked.cancelled():
            asked.exception()  # the error may have come after the time-out

    def _note_change_from_any_thread(self, name: str) -> None:
        try:
            self._loop.call_soon_threadsafe(self._note_change, name)
        except RuntimeError:
            log.debug("%s has changed, but the service has ended", name)

    def _note_change(self, name: str) -> None:
        trouble = self._drivers[name].trouble
        self._jobs.switch_changed(name, trouble, self._clock())
        if trouble and self._store is not None and not self._write_fails:
            # The cause may be a newer controller, which the state would show.
            self._batches.append([outputs.CheckServing()])
        self.carry_out()

    def _ask(
        self,
        name: str,
        what: str,
        question: Callable[[SwitchDriver], T],
        answered: Callable[[T], None],
        failed: Callable[[DriverError], None],
    ) -> None:
        """Calls `answered` with what the switch answers, or `failed` with the error. `what`: for the log, where a
        failure that is tried again and again appears only once."""
        call = self.call(name, question)

        async def wait() -> None:
            try:
                found = await call
                self._failures.pop((name, what), None)
                answered(found)
            except DriverError as error:
                said_before = what.endswith(AGAIN) and self._failures.get((name, what)) == str(error)
                self._failures[name, what] = str(error)
                log.log(logging.DEBUG if said_before else logging.WARNING, "%s failed %s: %s", name, what, error)
                failed(error)
            except Exception:
                log.exception("%s failed %s", name, what)
                failed(DriverError("an unexpected error"))
            self.carry_out()

        self._spawn(wait())

    def _note_refused(self, name: str, number: int, text: str) -> None:
        if self._drivers[name].trouble:  # to workers an unreachable switch is another answer than a switch that refuses
            self._note_change(name)
        self._jobs.refused(name, number, text, self._clock())

    def _note_reconciled(self, asked: outputs.Reconcile, found: Reconciled) -> None:
        for change in found.changes:
            log.info("%s: %s", asked.switch_name, change)
        self._jobs.reconciled(asked, found, self._clock())

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
