"""Who may ask the controller for what: `Security` is for servers, and `caller()` tells a service who calls.

The authority that issues certificates is in `authority`, and `wiresum ca` in `command`; both need `cryptography`.
"""

from wiresum.controller.security.caller import Caller, caller, identify
from wiresum.controller.security.front import Front
from wiresum.controller.security.names import CONTROLLER, OPERATOR, ROLES, SWITCH, WORKER
from wiresum.controller.security.revocation import Revocations
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
    "caller",
    "identify",
]
