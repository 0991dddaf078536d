"""Wiresum's errors, as the exceptions that users of `torch.distributed` catch.

An exception has the text of its `WiresumError`, which is its `__cause__` (and has, for example, the lost worker's
rank). All are `RuntimeError`s, which most training scripts catch.
"""

from __future__ import annotations

import torch.distributed as dist

from wiresum.agent.errors import CollectiveTimeoutError, JoinError, SwitchUnreachableError, WiresumError


class WiresumTimeoutError(dist.DistBackendError, TimeoutError):
    """A collective, a wait or a join did not end in time."""


STILL_GOES_ON = "the collective goes on, and can be waited for again"
"""Ends the text of a wait with a time-out of its own."""


def timed_out(who: str, timeout_s: float, what: str, why: str) -> str:
    """The text of a time-out. PyTorch's own code looks for " Timed out " in it, and for "Timed out waiting"."""
    return f"{who}: Timed out waiting {timeout_s:g} s for {what}: {why}"


_JOIN_ERRORS: dict[str, type[Exception]] = {
    "UNAVAILABLE": dist.DistNetworkError,
    "DEADLINE_EXCEEDED": WiresumTimeoutError,
}
"""PyTorch's exceptions by gRPC's code."""


def as_torch_error(error: WiresumError, more: str = "", *, text: str = "") -> Exception:
    """Makes a new exception each time, so that tracebacks do not accumulate. `more` is added to the error's text;
    `text` replaces it."""
    kind: type[Exception] = dist.DistBackendError
    if isinstance(error, CollectiveTimeoutError):
        kind = WiresumTimeoutError
    elif isinstance(error, SwitchUnreachableError):
        kind = dist.DistNetworkError
    elif isinstance(error, JoinError):
        kind = _JOIN_ERRORS.get(error.code, kind)
    translated = kind(text or (f"{error}. {more}" if more else str(error)))
    translated.__cause__ = error
    return translated
