"""Wiresum's errors, as the exceptions that users of `torch.distributed` catch.

The text is the same, and the `WiresumError` itself (with, for example, the lost worker's rank) is `__cause__`. All are
`RuntimeError`s, which most training scripts catch.
"""

from __future__ import annotations

import torch.distributed as dist

from wiresum.agent.errors import CollectiveTimeoutError, JoinError, SwitchUnreachableError, WiresumError


class WiresumTimeoutError(dist.DistBackendError, TimeoutError):
    """A collective, a wait or a join did not end in time."""


STILL_GOES_ON = "the collective goes on, and can be waited for again"
"""After a wait that had a time-out of its own."""


def timed_out(who: str, timeout_s: float, what: str, why: str) -> str:
    """The text of a time-out. PyTorch's own code looks for " Timed out " in it, and for "Timed out waiting"."""
    return f"{who}: Timed out waiting {timeout_s:g} s for {what}: {why}"


_JOIN_ERRORS: dict[str, type[Exception]] = {
    "UNAVAILABLE": dist.DistNetworkError,
    "DEADLINE_EXCEEDED": WiresumTimeoutError,
}
"""By gRPC's code."""


def as_torch_error(error: WiresumError, more: str = "", *, text: str = "") -> Exception:
    """A new exception each time, so that tracebacks do not accumulate. `more` is added to its text, or `text` given."""
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
