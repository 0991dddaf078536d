"""Copies gradients from an accelerator to the host, where they are compressed, and back.

DDP calls its hook long before the device has computed the bucket. So nothing in the hook waits for the device: a bucket
is copied to pinned memory behind an event of the caller's current stream, and the thread that compresses waits for that
copy. Copies to the host and copies back have a stream each: on a common one, the copy back of an average would wait for
buckets that the backward pass has not computed yet.

Tensors on the CPU are used in place.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import torch
from torch.distributed.constants import default_pg_timeout

from wiresum.agent.polling import sleep_until

TIMEOUT_S = default_pg_timeout.total_seconds()
"""How long to wait for the device: as long as PyTorch's collectives by default."""


class Streams:
    """Two streams for each device: one for copies to the host, one for copies back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pairs: dict[torch.device, tuple[torch.Stream, torch.Stream]] = {}

    def of(self, device: torch.device) -> tuple[torch.Stream, torch.Stream]:
        with self._lock:
            if device not in self._pairs:
                self._pairs[device] = torch.Stream(device=device), torch.Stream(device=device)
            return self._pairs[device]


class Call:
    """A point in the device's current stream: everything that the stream had queued at construction.

    Construct it in the thread that calls the hook.
    """

    def __init__(self, device: torch.device, streams: Streams) -> None:
        self.device = device
        self._to_host: torch.Stream | None = None
        self._back: torch.Stream | None = None
        if device.type != "cpu":
            self._to_host, self._back = streams.of(device)
            self._event = torch.accelerator.current_stream(device).record_event()

    def future(self) -> torch.futures.Future[torch.Tensor]:
        """A future that makes a waiting stream wait for the stream that is current when the result is set."""
        return torch.futures.Future(devices=[self.device] if self._back is not None else None)

    @contextlib.contextmanager
    def resumed(self) -> Iterator[None]:
        """Waits, in another thread, until the device has come to the call; then makes the stream for copies back the
        current one. RuntimeError after TIMEOUT_S."""
        if self._back is None:
            yield
            return
        self._await(self._event)
        with self._back:
            yield

    def to_host(self, tensor: torch.Tensor) -> HostCopy:
        """Queues a copy to the host of the tensor's values at the call. Runs in the thread that calls the hook."""
        return HostCopy(self, tensor, self._to_host, self._back)

    def _await(self, event: torch.Event) -> None:
        """Waits for the event, in another thread. RuntimeError after TIMEOUT_S."""
        # A new thread has the first device as its current one, on which CUDA would create a needless context.
        torch.accelerator.set_device_index(self.device)
        if not sleep_until(event.query, time.monotonic() + TIMEOUT_S):
            raise RuntimeError(
                f"{self.device} has not come to a bucket of gradients within {TIMEOUT_S:.0f} s: something that was "
                "queued before hangs"
            )


class HostCopy:
    """A tensor and a copy of its values in host memory; a tensor on the CPU is its own copy."""

    def __init__(
        self, call: Call, tensor: torch.Tensor, to_host: torch.Stream | None, back: torch.Stream | None
    ) -> None:
        self._call = call
        self.tensor = tensor
        self._host = tensor
        self._copied: torch.Event | None = None
        if to_host is None or back is None:
            return
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        for stream in (to_host, back):
            tensor.record_stream(stream)
        to_host.wait_event(call._event)
        with to_host:
            self._host.copy_(tensor, non_blocking=True)
        self._copied = to_host.record_event()

    def values(self) -> torch.Tensor:
        """The values in host memory, after a wait for the copy. RuntimeError after TIMEOUT_S."""
        if self._copied is not None:
            self._call._await(self._copied)
        return self._host

    def copy_back(self) -> None:
        """Queues a copy of the host memory to the tensor on the current stream."""
        if self._copied is not None:
            self.tensor.copy_(self._host, non_blocking=True)
