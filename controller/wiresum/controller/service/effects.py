"""Carries out what `Jobs` wants done: writes to disk, tells switches, answers workers. Runs in one event loop.

Calls to a switch or to the disk may block, so each of these has a thread, which makes them one at a time and in order.

The outputs that `Jobs` gives at one time are a batch. A batch with something to write waits until that is on disk, and
so do all batches behind it: no worker hears of anything that a crash could undo. Batches that come up while the disk is
busy are written together.

A disk may refuse a write or not answer. After WRITE_S_MAX, or the first refusal, only what must (outputs.py) still
waits for it: workers hear how their jobs end, and switches forget those. Meanwhile no job gets slots. If the service
dies before the disk takes the rest, those jobs still run as far as the next service can read. It finds that the
switches do not hold them, or that no worker comes back, and ends them again.

A write also shows whether another service serves from the same state, and this one must not end jobs any more. So
workers are told nothing before the disk has had WRITE_S_MAX, counted in waits and not by the clock, so that a process
that was frozen gives the disk its time.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from wiresum.controller.driver import DriverError, JobCounters, Reconciled, SwitchDriver
from wiresum.controller.jobs import outputs
from wiresum.controller.jobs.job import Worker
from wiresum.controller.jobs.jobs import Jobs
from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.service.mailbox import AttendMailbox, JoinMailbox
from wiresum.controller.service.serial_calls import SerialCalls
from wiresum.controller.store import DeposedError, Store, StoreError

log = logging.getLogger(__name__)

COUNT_S_MAX = 2.0
"""For a switch's counters, when a report waits for them."""
WRITE_S_MAX = 2.0
"""For a write, before outputs go ahead without it."""
WRITE_LOOK_S = 0.1
WRITE_RETRY_S = 1.0
"""Between two attempts to write."""

T = TypeVar("T")


class Effects:
    def __init__(
        self, jobs: Jobs, drivers: Mapping[str, SwitchDriver], store: Store | None, clock: Callable[[], float]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs, self._drivers, self._store, self._clock = jobs, dict(drivers), store, clock
        self._joins: dict[Worker, JoinMailbox] = {}
        self._streams: dict[Worker, AttendMailbox] = {}
        self._switch_calls = {name: SerialCalls(self._loop, f"wiresum-switch-{name}") for name in drivers}
        self._store_calls = SerialCalls(self._loop, "wiresum-store") if store else None
        self._batches: collections.deque[list[outputs.Output]] = collections.deque()
        self._in_write: list[outputs.Output] = []
        """Outputs that wait for the write in progress."""
        self._writing = False
        self._showing_life = False
        self._write_fails = False
        """The disk has refused the write in progress, or is late."""
        self.trouble = ""
        """Why the state cannot be written, a sentence; empty if it can."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._counting: dict[
            tuple[str, tuple[int, ...]], asyncio.Future[tuple[JobCounters, dict[int, JobCounters]]]
        ] = {}
        """Questions in progress, by switch and job numbers."""
        self.halted = False
        """The service ends."""
        self.deposed = ""
        """Why this service must not go on, a sentence; empty if it may."""

    def start(self) -> None:
        """The switches are made to hold what they should."""
        for name, driver in self._drivers.items():
            driver.on_change = functools.partial(self._note_change_from_any_thread, name)
            self._note_change(name)

    def halt(self) -> None:
        """The service ends: from now on nothing is carried out, and what happens to streams says nothing of workers."""
        self.halted = True
        for mailbox in self._streams.values():
            mailbox.close()
        for waiting in self._joins.values():
            waiting.answer(Refusal("UNAVAILABLE", "the service has ended: start it again, and the worker will find it"))

    def close(self) -> None:
        """Does not wait for calls in progress."""
        self.halt()
        for driver in self._drivers.values():
            driver.on_change = lambda: None
        for calls in self._switch_calls.values():
            calls.close()
        if self._store_calls is not None:
            self._store_calls.close()
        for task in self._tasks:
            task.cancel()

    def show_life(self) -> None:
        """In the thread that writes, so that a service whose disk hangs shows none."""
        if self._store is not None and self._store_calls is not None and not self._showing_life and not self.halted:
            self._showing_life = True
            self._spawn(self._show_life(self._store, self._store_calls))

    async def _show_life(self, store: Store, calls: SerialCalls) -> None:
        await calls.submit(store.show_life)
        self._note_trouble(disk=await calls.submit(store.disk_trouble))
        self._showing_life = False

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
        """Has everything been written?"""
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

    def carry_out(self) -> None:
        """To be called whenever `Jobs` was told something."""
        batch = self._jobs.take_outputs()
        if self.halted:
            return
        if batch:
            self._batches.append(batch)
        if self._write_fails:
            self._carry_out_without_disk()
        elif not self._writing:
            self._carry_out_batches()

    def _carry_out_batches(self) -> None:
        """Up to the first that must be written."""
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
            for _ in range(round(WRITE_S_MAX / WRITE_LOOK_S)):
                if call.done() or self._write_fails:
                    break
                await asyncio.wait({call}, timeout=WRITE_LOOK_S)
            else:
                self._do_without_disk(f"{store.path} has taken nothing for {WRITE_S_MAX:.0f} s")
            try:
                await call
            except DeposedError as error:
                self.deposed = str(error)
                return self.halt()
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
            await asyncio.sleep(WRITE_RETRY_S)

    def _do_without_disk(self, trouble: str) -> None:
        self._write_fails = True
        self._note_trouble(write=trouble)
        self._carry_out_without_disk()

    def _carry_out_without_disk(self) -> None:
        """All but what must wait, which stays in order."""
        if self.halted:
            return
        waiting, self._in_write = self._in_write, []
        behind_keys = self._without_disk(waiting, self._in_write, behind_keys=False)
        batches, self._batches = self._batches, collections.deque()
        for batch in batches:
            kept: list[outputs.Output] = []
            behind_keys = self._without_disk(batch, kept, behind_keys=behind_keys)
            if kept:
                self._batches.append(kept)

    def _without_disk(self, batch: list[outputs.Output], kept: list[outputs.Output], *, behind_keys: bool) -> bool:
        for output in batch:
            behind_keys |= isinstance(output, outputs.SaveKeys)
            match output:
                case outputs.CheckServing():
                    pass  # what is being written finds out
                case outputs.Admit() | outputs.Evict() | outputs.Reconcile() if behind_keys:
                    kept.append(output)
                case outputs.Grant(worker) | outputs.Move(worker):
                    self._jobs.grant_waits(worker, self._clock())
                    kept.append(output)
                case _ if isinstance(output, outputs.Write):
                    kept.append(output)
                case _:
                    self._carry_out_one(output)
        return behind_keys

    def _carry_out_one(self, output: outputs.Output) -> None:
        match output:
            case outputs.Wait(worker, waiting):
                if worker in self._joins:
                    self._joins[worker].wait_for(waiting)
            case outputs.Grant(worker, answer) | outputs.Refuse(worker, answer) | outputs.RefuseForGood(worker, answer):
                if worker in self._joins:
                    self._joins[worker].answer(answer)
            case outputs.Tell(worker, ended):
                if worker in self._streams:
                    self._streams[worker].end(ended)
            case outputs.Halt(worker, event) | outputs.Move(worker, event):
                if worker in self._streams:
                    self._streams[worker].order(event)
            case outputs.Close(worker):
                if worker in self._streams:
                    self._streams[worker].close()
            case _:
                self._ask_switch(output)

    def _ask_switch(self, output: outputs.Output) -> None:
        jobs, now = self._jobs, self._clock
        match output:
            case outputs.Admit(name, entry):
                self._ask(
                    name,
                    f"to admit job {entry.job}",
                    lambda driver: driver.admit(entry),
                    lambda _: jobs.admitted(name, entry.job, now()),
                    lambda text: self._note_refused(name, entry.job, text),
                )
            case outputs.Evict(name, number):
                self._ask(
                    name,
                    f"to forget job {number}, which will be tried again",
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
                    "to hold what it should, which will be tried again",
                    lambda driver: driver.reconcile(entries),
                    lambda found: self._note_reconciled(output, found),
                    lambda _: jobs.reconcile_failed(name, now()),
                )
            case _:
                pass  # it is on disk, or there is none

    # Switches.

    def call(self, switch_name: str, function: Callable[[SwitchDriver], T]) -> asyncio.Future[T]:
        """In the switch's own thread, after all calls before."""
        return self._switch_calls[switch_name].submit(functools.partial(function, self._drivers[switch_name]))

    async def counters(self, switch_name: str, numbers: list[int]) -> tuple[JobCounters, dict[int, JobCounters]] | None:
        """Of packets of no job, and of these jobs. None if the switch does not answer in COUNT_S_MAX."""
        if self._drivers[switch_name].trouble:
            return None

        def read(driver: SwitchDriver) -> tuple[JobCounters, dict[int, JobCounters]]:
            return driver.stray(), {number: driver.counters(number) for number in numbers}

        question = (switch_name, tuple(numbers))
        if question not in self._counting:  # so that questions to a switch that hangs do not pile up
            self._counting[question] = self.call(switch_name, read)
            self._counting[question].add_done_callback(lambda asked: self._note_counted(question, asked))
        try:
            return await asyncio.wait_for(asyncio.shield(self._counting[question]), COUNT_S_MAX)
        except asyncio.TimeoutError:
            log.warning("%s has not said for %.0f s what it counted", switch_name, COUNT_S_MAX)
        except Exception as error:
            log.warning("%s does not say what it counted: %s", switch_name, error)
        return None

    def _note_counted(self, question: tuple[str, tuple[int, ...]], asked: asyncio.Future[Any]) -> None:
        del self._counting[question]
        if not asked.cancelled():
            asked.exception()  # it may have come after the time-out

    def _note_change_from_any_thread(self, name: str) -> None:
        try:
            self._loop.call_soon_threadsafe(self._note_change, name)
        except RuntimeError:
            log.debug("%s has changed, but the service has ended", name)

    def _note_change(self, name: str) -> None:
        trouble = self._drivers[name].trouble
        self._jobs.switch_changed(name, trouble, self._clock())
        if trouble and self._store is not None:  # it may be a newer controller, which the state knows of
            self._batches.append([outputs.CheckServing()])
        self.carry_out()

    def _ask(
        self,
        name: str,
        what: str,
        question: Callable[[SwitchDriver], T],
        answered: Callable[[T], None],
        failed: Callable[[str], None],
    ) -> None:
        """Calls `answered` with what the switch answers, or `failed` with why it did not. `what`: for the log."""
        call = self.call(name, question)

        async def wait() -> None:
            try:
                answered(await call)
            except DriverError as error:
                log.warning("%s failed %s: %s", name, what, error)
                failed(str(error))
            except Exception:
                log.exception("%s failed %s", name, what)
                failed("an unexpected error")
            self.carry_out()

        self._spawn(wait())

    def _note_refused(self, name: str, number: int, text: str) -> None:
        if self._drivers[name].trouble:  # which is another answer to the workers than that it refuses
            self._note_change(name)
        self._jobs.refused(name, number, text, self._clock())

    def _note_reconciled(self, asked: outputs.Reconcile, found: Reconciled) -> None:
        for change in found.changes:
            log.info("%s: %s", asked.switch_name, change)
        self._jobs.reconciled(asked, found, self._clock())

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
