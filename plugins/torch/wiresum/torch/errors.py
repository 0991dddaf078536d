"""Wiresum's errors, as the exceptions that users of `torch.distributed` catch.

The text is the cause's own; the `WiresumError` itself (with the lost worker's rank, for one) is `__cause__`.
All of them are `RuntimeError`s, which is what most training scripts catch.
"""

from __future__ import annotations

import torch.distributed as dist

from wiresum.agent.errors import CollectiveTimeoutError, JoinError, SwitchUnreachableError, WiresumError

_JOIN_CODES_NETWORK = frozenset({"UNAVAILABLE"})
_JOIN_CODES_TIMEOUT = frozenset({"DEADLINE_EXCEEDED"})


class WiresumTimeoutError(dist.DistBackendError, TimeoutError):
    """A collective, a wait or a join did not end in time."""


def as_torch_error(error: WiresumError, more: str = "") -> Exception:
    """A new exception each time, so that raising it often does not accumulate tracebacks. `more` ends its text."""
    kind: type[Exception] = dist.DistBackendError
    if isinstance(error, CollectiveTimeoutError):
        kind = WiresumTimeoutError
    elif isinstance(error, SwitchUnreachableError):
        kind = dist.DistNetworkError
    elif isinstance(error, JoinError):
        if error.code in _JOIN_CODES_NETWORK:
            kind = dist.DistNetworkError
        elif error.code in _JOIN_CODES_TIMEOUT:
            kind = WiresumTimeoutError
    translated = kind(f"{error}. {more}" if more else str(error))
    translated.__cause__ = error
    return translated
