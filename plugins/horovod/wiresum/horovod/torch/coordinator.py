"""The thread that negotiates for one process set, and starts what was agreed on.

It begins a cycle as soon as this rank has a new request, and then waits for the other ranks, which begin theirs in the
same way. A rank without requests begins a cycle every `IDLE_S`: so no cycle stays open for long, all learn of a rank
that leaves, and all know which ranks the others wait for. A rank that waits for what others have not requested yet
pauses between cycles, a little longer each time; one that has joined does not, since the others pause.

So an idle job costs a packet a second, and a collective that all ranks request costs one round trip before it starts.
Horovod's own thread runs a cycle every millisecond even when idle, which would cost too much in Python.
"""

from __future__ import annotations

import logging
import threading
import time

import torch.distributed as dist

from wiresum.horovod.torch.execution import Agreed, Execution
from wiresum.horovod.torch.handle import Handle, HorovodInternalError
from wiresum.horovod.torch.negotiation import Negotiation, Response
from wiresum.horovod.torch.request import Request, RequestType, ranks_text
from wiresum.horovod.torch.settings import Settings

log = logging.getLogger("wiresum")

IDLE_S = 1.0
PAUSE_S_MIN, PAUSE_S_MAX = 0.001, 0.016
LEAVE_TIMEOUT_S = 10.0
"""How long a rank that leaves waits for the others' next cycle, which is IDLE_S away if they are alive."""

_JOIN = ""
"""The name of the handle of a join; no request has it."""


class Coordinator:
    """`group` is the process group of the set, of which it is the only user."""

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
        self._look_at = time.monotonic() + settings.stall_look_s
        self._works: list[dist.Work] = []
        self._thread = threading.Thread(target=self._run, name=f"wiresum-horovod-{name}", daemon=True)
        self._thread.start()

    def next_name(self) -> str:
        """For a call without a name: the same at all ranks that call in the same order, whatever they call."""
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
        """Tells the others and leaves; what is not agreed on fails at all ranks. What is under way ends first."""
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
        """In the child, where the thread is not: it uses no collectives, and its parent's are not its own to end."""
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
            self.group.abort()  # the others would wait for this rank

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
            agreed = [(outcome, self._handle_of(outcome)) for outcome in outcomes]
        self._launch(agreed)
        if cycle.leaving:
            self._end(self._leave_reason or _shut_down(cycle.leaving))
        self._pause_s = PAUSE_S_MIN if outcomes or described else min(2 * self._pause_s, PAUSE_S_MAX)
        self._look_for_stalls(time.monotonic())

    def _handle_of(self, outcome: Response) -> Handle | None:
        if outcome.kind is RequestType.JOIN:
            self._unnamed = 0  # those that joined late called more; nobody has a call under way
            return self._handles.pop(_JOIN, None)
        return self._handles.pop(outcome.name, None)

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

    def _look_for_stalls(self, now: float) -> None:
        if now < self._look_at:
            return
        self._look_at = now + self._settings.stall_look_s
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
