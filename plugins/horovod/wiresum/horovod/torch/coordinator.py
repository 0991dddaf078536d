"""The thread that negotiates for one process set and starts the collectives that all ranks agree on.

A cycle starts as soon as this rank has a new request, and waits for the cycles of the other ranks. A rank without
requests starts a cycle every `IDLE_S`, so that all ranks learn of a rank that leaves and of the ranks that others wait
for. A rank that waits for requests of others pauses between cycles, a little longer each time. A rank that has joined
does not pause: the pauses of the others are enough.

An idle job therefore costs a packet a second, and a collective waits one round trip before it starts. Horovod's own
thread runs a cycle every millisecond even when idle, which would cost too much in Python.
"""

from __future__ import annotations

import logging
import threading
import time

import torch.distributed as dist

from wiresum.agent.agreement import ranks_text
from wiresum.horovod.torch.execution import Agreed, Execution
from wiresum.horovod.torch.handle import Handle, HorovodInternalError
from wiresum.horovod.torch.negotiation import Negotiation
from wiresum.horovod.torch.request import Request, RequestType
from wiresum.horovod.torch.settings import Settings

log = logging.getLogger("wiresum")

IDLE_S = 1.0
PAUSE_S_MIN, PAUSE_S_MAX = 0.001, 0.016
LEAVE_TIMEOUT_S = 30.0
"""How long a leaving rank waits for the next cycle of the other ranks, which start a cycle every IDLE_S."""

_JOIN = ""
"""The name of a join in handles and responses; no other request has this name."""


class Coordinator:
    """Negotiates and starts the collectives of one process set. Only the coordinator uses `group`, the set's process
    group."""

    def __init__(self, group: dist.ProcessGroup, settings: Settings, *, name: str) -> None:
        self.group = group
        self._settings = settings
        self._name = name
        self._execution = Execution(group, fusion_bytes_max=settings.fusion_bytes_max)
        self._negotiation = Negotiation(group.rank(), group.size())
        self._changed = threading.Condition()
        self._handles: dict[str, Handle] = {}
        self._news = False
        self._leave_reason: str | None = None
        self._ended: str | None = None
        self._unnamed = 0
        self._pause_s = PAUSE_S_MIN
        self._check_at = time.monotonic() + settings.stall_poll_s
        self._works: list[dist.Work] = []
        self._thread = threading.Thread(target=self._run, name=f"wiresum-horovod-{name}", daemon=True)
        self._thread.start()

    def next_name(self) -> str:
        """A name for a call without a name; ranks that call in the same order get the same names."""
        with self._changed:
            self._unnamed += 1
            return f"noname.{self._unnamed}"

    def submit(self, handle: Handle) -> Handle:
        with self._changed:
            self._require_running()
            self._negotiation.submit(handle.request)
            self._add(handle.request.name, handle)
        return handle

    def join(self) -> Handle:
        handle = Handle(Request(RequestType.JOIN, _JOIN), [])
        with self._changed:
            self._require_running()
            if _JOIN in self._handles:
                raise ValueError("join() was called while an earlier one had not returned")
            self._negotiation.join()
            self._add(_JOIN, handle)
        return handle

    def close(self) -> None:
        """Leaves after the collectives that have started, and tells the others. Pending requests fail at all ranks."""
        with self._changed:
            self._news = True
            self._negotiation.leave()
            self._changed.notify_all()
        self._thread.join(LEAVE_TIMEOUT_S)
        if not self._thread.is_alive():
            self._drain()
        self.group.shutdown()  # if the thread still waits for a rank, its wait fails now
        self._thread.join(LEAVE_TIMEOUT_S)

    def forget_after_fork(self) -> None:
        """Refuses collectives in a forked child, which has no coordinator thread. The parent's collectives go on."""
        self._ended = (
            "this process was forked from a rank and is none itself: start processes with 'spawn', or use collectives "
            "in the parent only"
        )
        self._changed = threading.Condition()

    def _add(self, name: str, handle: Handle) -> None:
        self._handles[name] = handle
        self._news = True
        self._changed.notify_all()

    def _require_running(self) -> None:
        if self._ended is not None:
            raise HorovodInternalError(self._ended)

    def _run(self) -> None:
        try:
            while self._ended is None:
                self._await_turn()
                self._cycle()
        except Exception as error:
            log.debug("wiresum: the negotiation of process set %s ends", self._name, exc_info=True)
            self._end(str(error))
            self.group.abort()  # otherwise the other ranks would wait for this one

    def _await_turn(self) -> None:
        with self._changed:
            if self._negotiation.has_joined:
                return
            self._changed.wait_for(lambda: self._news, self._pause_s if self._negotiation.is_waiting else IDLE_S)
            self._news = False

    def _cycle(self) -> None:
        now = time.monotonic()
        with self._changed:
            words, message = self._negotiation.begin_cycle(now, self._settings.stall_check_s)
        cycle = self._negotiation.read_words(self._execution.sum_words(words))
        described = any(cycle.message_bytes)
        messages = self._execution.exchange(message, cycle.message_bytes) if described else []
        with self._changed:
            outcomes = self._negotiation.end_cycle(cycle, messages)
            agreed = [(outcome, self._handles.pop(outcome.name, None)) for outcome in outcomes]
            if any(outcome.kind is RequestType.JOIN for outcome in outcomes):
                self._unnamed = 0  # ranks that joined late have made more calls; no call is pending now
        self._launch(agreed)
        if cycle.leaving:
            self._end(self._leave_reason or _shut_down(cycle.leaving))
        self._pause_s = PAUSE_S_MIN if outcomes or described else min(2 * self._pause_s, PAUSE_S_MAX)
        self._check_for_stalls(time.monotonic())

    def _launch(self, agreed: list[Agreed]) -> None:
        try:
            for outcome, handle in agreed:
                if outcome.error is not None and handle is not None:
                    handle.fail(outcome.error)
            works = self._execution.launch([pair for pair in agreed if pair[0].error is None])
        except Exception as error:
            for _, handle in agreed:
                if handle is not None:
                    handle.fail(str(error))
            raise
        self._works = [work for work in self._works if not work.is_completed()] + works

    def _check_for_stalls(self, now: float) -> None:
        if now < self._check_at:
            return
        self._check_at = now + self._settings.stall_poll_s
        with self._changed:
            stalled = self._negotiation.stalled(now, self._settings.stall_check_s)
            hopeless = self._negotiation.stalled(now, self._settings.stall_shutdown_s)
        if told := [str(stall) for stall in stalled if stall.ready[0] == self.group.rank()]:
            log.warning(
                "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are "
                "waiting for remainder of ranks for more than %g seconds. This may indicate that different ranks are "
                "trying to submit different tensors or that only subset of ranks is submitting tensors, which will "
                "cause deadlock.\nStalled ops:\n%s",
                self._settings.stall_check_s,
                "\n".join(told),
            )
        if hopeless:
            waits = "; ".join(map(str, hopeless))
            self._leave_reason = f"stalled for more than {self._settings.stall_shutdown_s:g} seconds: {waits}"
            with self._changed:
                self._negotiation.leave()
                self._news = True

    def _drain(self) -> None:
        for work in self._works:
            try:
                work.wait()
            except RuntimeError as error:
                log.debug("wiresum: a collective of %s failed while leaving: %s", self._name, error)

    def _end(self, why: str) -> None:
        with self._changed:
            self._ended = self._ended or why
            handles, self._handles = list(self._handles.values()), {}
        for handle in handles:
            handle.fail(self._ended)


def _shut_down(ranks: list[int]) -> str:
    return f"Horovod has been shut down: {ranks_text(ranks)} called shutdown() or ended, and collectives need all ranks"
