"""Which callers may ask the controller for what: `Security` is for servers, and `caller()` tells a service who calls.

The authority that issues certificates is in `authority`, and `wiresum ca` in `command`; both need `cryptography`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wiresum.controller.security.caller import Caller, caller, identify
from wiresum.controller.security.front import Front
from wiresum.controller.security.names import CONTROLLER, OPERATOR, ROLES, SWITCH, WORKER
from wiresum.controller.security.revocation import Revocations
from wiresum.controller.security.shares import Shares

if TYPE_CHECKING:
    from wiresum.controller.security.security import CONNECTION_OPTIONS, OPTIONS, Security

__all__ = [
    "CONNECTION_OPTIONS",
    "CONTROLLER",
    "OPERATOR",
    "OPTIONS",
    "ROLES",
    "SWITCH",
    "WORKER",
    "Caller",
    "Front",
    "Revocations",
    "Security",
    "Shares",
    "caller",
    "identify",
]


def __getattr__(name: str) -> Any:
    """Imports names that need gRPC on first use, so that `wiresum ca` does without gRPC."""
    if name not in ("CONNECTION_OPTIONS", "OPTIONS", "Security"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from wiresum.controller.security import security

    return getattr(security, name)
