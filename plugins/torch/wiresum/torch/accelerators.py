"""Brings tensors on an accelerator to the network and back, without a thread that waits for the device in a call.

Theory of operation

The network reads and writes host memory. A call records an event on the caller's current stream and returns. Each
*piece* of it (pieces.py) then goes through these steps:

  copied in    on a stream of our own, behind the call's event, into a span of the group's pinned memory
  submitted    by the thread of order.py, when the copy's event is there, in the order of the calls
  summed       by the network
  copied back  on a second stream of our own, by whoever settles the piece's work: a waiting caller, or the attendant

While a piece is in the network, the next is copied. Copies in are queued in the order of the calls as soon as there is
room: by the call itself, or later by the thread that submits.

`StreamWork.wait()` waits until the network has done the last piece, and then makes the caller's current stream wait for
the copies back. So what the caller queues on its stream after wait() sees the sum, and the device is never
synchronised.

Pinned memory. Each group has RING_BYTES, made when it is first needed and given out in the order of the calls. Groups
do not share it: if two groups waited for each other's memory, in a different order at another worker, none would go on.
A span is free when its copies and its operation have ended.

The thread asks for events, and sleeps in between (wiresum/agent/polling.py).
"""

from __future__ import annotations

import bisect
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch

from wiresum.agent.polling import sleep_until
from wiresum.agent.session import Region
from wiresum.torch.pieces import cut
from wiresum.torch.plan import CollectivePlan
from wiresum.torch.work import NO_TIMEOUT, GroupedWork, NetworkWork, OnSettled

RING_BYTES = 32 << 20
CLOSE_TIMEOUT_S = 5.0
_ALIGNMENT = 4

_abandoned: list[torch.Tensor] = []
"""Pinned memory of closed groups that a device may still use."""


def is_on_accelerator(plans: Sequence[CollectivePlan]) -> bool:
    return any(plan.device.type != "cpu" for plan in plans)


def refuse_capture(device: torch.device) -> None:
    """Raises if the current stream records a graph: a replay would not reach the network."""
    if device.type == "cpu":
        return
    stream: Any = torch.accelerator.current_stream(device)
    if hasattr(stream, "is_capturing"):  # from PyTorch 2.13 on
        is_capturing = stream.is_capturing()
    else:
        is_capturing = getattr(torch.get_device_module(device), "is_current_stream_capturing", lambda: False)()
    if is_capturing:
        raise RuntimeError(
            "collectives of wiresum cannot be part of a captured graph, since a replay would not reach the network: "
            "call them outside of the capture"
        )


def synchronize(tensors: Sequence[torch.Tensor]) -> None:
    """Waits for the current streams of the tensors' devices."""
    for device in {tensor.device for tensor in tensors if not tensor.is_cpu}:
        torch.accelerator.current_stream(device).synchronize()


@dataclass(eq=False)
class Span:
    """The users of a span of pinned memory."""

    copied_in: torch.Event | None = None
    copied_back: torch.Event | None = None
    has_ended: bool = False
    """True once the network will not use the span any more."""

    def is_free(self) -> bool:
        return self.has_ended and _has_come(self.copied_in) and _has_come(self.copied_back)


@dataclass(eq=False)
class Piece:
    """A part of a call. `plan` has addresses of device memory, `submitted` of host memory."""

    transfer: Transfer
    plan: CollectivePlan
    submitted: CollectivePlan | None = None
    """The plan for the network; None until the piece is copied in."""
    copies_back: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """Pairs of (device memory, host memory)."""
    error: Exception | None = None
    """The error of the copies in."""
    span: Span = field(default_factory=Span)

    @property
    def bytes(self) -> int:
        """Bytes of pinned memory that the piece needs."""
        return sum(map(self.bytes_of, self.plan.regions))

    def bytes_of(self, region: Region) -> int:
        """Bytes of pinned memory for a region; 0 if this worker neither gives nor gets it."""
        is_used = region.source is not None or region.destination is not None
        used = region.elements * self.plan.element_bytes if is_used else 0
        return -(-used // _ALIGNMENT) * _ALIGNMENT

    def is_copied_in(self) -> bool:
        return self.error is not None or (self.submitted is not None and _has_come(self.span.copied_in))


class Ring:
    """Pinned memory. Spans are given out one after the other, and become free in any order."""

    def __init__(self, size: int) -> None:
        self.memory = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
        self._spans: deque[tuple[int, Span]] = deque()
        """(offset, span) pairs in the order in which they were given out."""
        self._end = 0

    def is_unused(self) -> bool:
        while self._spans and self._spans[0][1].is_free():
            self._spans.popleft()
        return not self._spans

    def take(self, size: int, span: Span) -> torch.Tensor | None:
        """Memory for the span; None if there is no room now."""
        if self.is_unused():
            begin, limit = 0, len(self.memory)
        elif (oldest := self._spans[0][0]) >= self._end:  # the used part wraps round the end
            begin, limit = self._end, oldest
        elif self._end + size <= len(self.memory):
            begin, limit = self._end, len(self.memory)
        else:
            begin, limit = 0, oldest
        if begin + size > limit:
            return None
        self._spans.append((begin, span))
        self._end = begin + size
        return self.memory[begin : begin + size]


class Pipeline:
    """A group's own streams, pinned memory, and pieces that have not been copied in yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ring: Ring | None = None
        self._waiting: deque[Piece] = deque()
        self._streams: dict[torch.device, tuple[torch.Stream, torch.Stream]] = {}

    def streams(self, device: torch.device) -> tuple[torch.Stream, torch.Stream]:
        """The device's streams for copies in and for copies back."""
        with self._lock:
            if device not in self._streams:
                self._streams[device] = torch.Stream(device=device), torch.Stream(device=device)
            return self._streams[device]

    def add(self, pieces: Sequence[Piece]) -> None:
        with self._lock:
            self._waiting.extend(pieces)
        self.copy_in()

    def copy_in(self) -> None:
        """Queues copies of pieces, in order, as far as there is room."""
        with self._lock:
            while self._waiting:
                piece = self._waiting[0]
                if not piece.span.has_ended and not self._copy_in(piece):
                    return
                self._waiting.popleft()

    def _copy_in(self, piece: Piece) -> bool:
        """Returns False if there is no room."""
        try:
            if self._ring is None:
                self._ring = Ring(RING_BYTES)
            if (memory := self._ring.take(piece.bytes, piece.span)) is None:
                return False
            piece.transfer.copy_in(piece, memory)
        except Exception as error:  # an error of the device, or out of memory; whoever submits the piece reports it
            piece.error = error
        return True

    def await_copy(self, piece: Piece, deadline: float, has_failed: Callable[[], bool]) -> bool:
        """Waits until the piece can be submitted. Returns False at the deadline. Raises the device's error."""

        def is_there() -> bool:
            self.copy_in()
            return piece.is_copied_in() or has_failed()

        if not sleep_until(is_there, deadline):
            return False
        if piece.error is not None:
            raise piece.error
        return True

    def close(self) -> None:
        """Frees the memory. Call it when the network no longer uses any."""
        with self._lock:
            self._waiting.clear()
            ring, self._ring = self._ring, None
        if ring is not None and not sleep_until(ring.is_unused, time.monotonic() + CLOSE_TIMEOUT_S):
            _abandoned.append(ring.memory)


class DeviceCall:
    """A call with tensors on a device. The device runs it after all that the caller's current stream has queued, and
    before what that stream queues after `order`. Make it in the caller's thread."""

    def __init__(self, pipeline: Pipeline, device: torch.device) -> None:
        self.device = device
        self._in, self.stream = pipeline.streams(device)
        self._called = torch.accelerator.current_stream(device).record_event()
        self._done: torch.Event | None = None

    def has_come(self) -> bool:
        """True when the device has reached the call."""
        return self._called.query()

    def end(self, steps: Sequence[Callable[[], None]]) -> None:
        """Takes the last steps, which write the result, on the stream for copies back."""
        with self.stream:
            for step in steps:
                step()
            self._done = self.stream.record_event()

    def is_done(self) -> bool:
        """True when the device holds the sum."""
        return self._done is not None and self._done.query()

    def order(self) -> None:
        """Makes the caller's current stream wait for the sum."""
        assert self._done is not None
        torch.accelerator.current_stream(self.device).wait_event(self._done)


class RowsCall(DeviceCall):
    """A sum of sparse tensors on a device. The submitting thread copies them to the host, and the sums back, in memory
    that is not pinned, since sizes are known late."""

    def __init__(self, pipeline: Pipeline, device: torch.device, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(pipeline, device)
        self._tensors = tensors

    def to_host(self) -> list[torch.Tensor]:
        """Copies the tensors to the host. Call it when the device has reached the call."""
        with self.stream:
            return [tensor.detach().cpu() for tensor in self._tensors]

    def order(self) -> None:
        super().order()
        stream: Any = torch.accelerator.current_stream(self.device)
        for tensor in self._tensors:  # the tensors' memory was allocated for our stream
            for part in (tensor._indices(), tensor._values()):
                part.record_stream(stream)


class Transfer(DeviceCall):
    """One plan on its way to the network and back. Make it in the caller's thread, after staging the plan. `finish` are
    steps on the device when all is copied back."""

    def __init__(self, pipeline: Pipeline, plan: CollectivePlan, finish: Sequence[Callable[[], None]]) -> None:
        super().__init__(pipeline, plan.device)
        self._memory = _bytes_of_storages(plan.kept)
        self._begins = [begin for begin, _ in self._memory]
        for tensor in (*plan.kept, *(caller for caller, _ in plan.staged)):
            tensor.record_stream(self.stream)  # the caller may drop it before the copies back have ended
        self._finish = finish
        self._lock = threading.Lock()
        self._left = 0
        """The number of pieces that have not been copied back."""

    def pieces_of(self, plan: CollectivePlan, lanes: int) -> list[Piece]:
        """Cuts the transfer's plan into pieces; call it once. Pieces refer to the transfer, which does not refer to
        them, so the tensor's memory is freed with the last piece."""
        pieces = [Piece(self, part) for part in cut(plan, lanes)]
        self._left = len(pieces)
        return pieces

    def copy_in(self, piece: Piece, memory: torch.Tensor) -> None:
        """Queues the piece's copies into its pinned memory, and makes the plan that is submitted."""
        regions: list[Region] = []
        sources: list[tuple[torch.Tensor, torch.Tensor]] = []
        used = 0
        for region in piece.plan.regions:
            size = region.elements * piece.plan.element_bytes
            host = memory[used : used + size]
            used += piece.bytes_of(region)
            address = host.data_ptr()
            if region.source is not None and size:
                sources.append((host, self._at(region.source, size)))
            if region.destination is not None and size:
                piece.copies_back.append((self._at(region.destination, size), host))
            source, destination = (None if side is None else address for side in (region.source, region.destination))
            regions.append(Region(source, destination, region.elements))
        if sources:
            self._in.wait_event(self._called)
            with self._in:
                for host, source_memory in sources:
                    host.copy_(source_memory, non_blocking=True)
            piece.span.copied_in = self._in.record_event()
        piece.submitted = CollectivePlan(
            piece.plan.kind,
            piece.plan.dtype,
            piece.plan.root,
            piece.plan.integer_bits,
            regions=regions,
            kept=[memory],
            reduction=piece.plan.reduction,
            about=piece.plan.about,
        )

    def copy_back(self, piece: Piece) -> None:
        """Queues the copies of the sum, and after the last piece the steps that finish the call."""
        self.stream.wait_event(self._called)  # there may have been nothing to copy in
        with self.stream:
            for device_memory, host in piece.copies_back:
                device_memory.copy_(host, non_blocking=True)
            piece.span.copied_back = self.stream.record_event()
            with self._lock:
                self._left -= 1
                is_last = self._left == 0
        if is_last:
            self.end(self._finish)

    def _at(self, address: int, size: int) -> torch.Tensor:
        """The device memory at `address`, as bytes."""
        for begin, memory in reversed(self._memory[: bisect.bisect_right(self._begins, address)]):
            if address + size <= begin + len(memory):
                return memory[address - begin : address - begin + size]
        raise AssertionError(f"no tensor of the call has {size} bytes at {address}")


class StreamWork(GroupedWork):
    """A call whose tensors are on an accelerator: a work for each piece."""

    def __init__(
        self, works: Sequence[NetworkWork], result: list[torch.Tensor], transfers: Sequence[DeviceCall]
    ) -> None:
        super().__init__(works)
        self._result = result
        self._transfers = transfers

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Waits for the network, and orders the caller's current streams after the copies back."""
        super().wait(timeout)
        for transfer in self._transfers:
            transfer.order()
        return True

    def is_completed(self) -> bool:
        """True if the device holds the result, or the call has failed."""
        if not super().is_completed():
            return False
        return self.exception() is not None or all(transfer.is_done() for transfer in self._transfers)

    def when_settled(self, callback: OnSettled) -> None:
        """Calls back when the copies back are queued, with their streams as the current ones: a future orders later
        work after these streams."""

        def settled(result: list[torch.Tensor], error: Exception | None) -> None:
            with contextlib.ExitStack() as current:
                for transfer in self._transfers:
                    current.enter_context(transfer.stream)
                callback(result, error)

        super().when_settled(settled)


def _has_come(event: torch.Event | None) -> bool:
    return event is None or event.query()


def _bytes_of_storages(tensors: Sequence[torch.Tensor]) -> list[tuple[int, torch.Tensor]]:
    """(address, memory as bytes) of each tensor's storage, in the order of addresses."""
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors if tensor.numel() > 0}
    made = []
    for address, tensor in sorted(storages.items(), key=lambda item: item[0]):
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        made.append((address, whole.set_(tensor.untyped_storage())))
    return made
