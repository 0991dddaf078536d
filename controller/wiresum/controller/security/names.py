"""What a certificate says of its holder, as URIs among its alternative names.

    wiresum:role/worker        what the holder may do; without a role, nothing; fallback beside it: also serve joins
    wiresum:job/night-*        for a worker: jobs that it may join, as a shell's pattern; none: any job
    wiresum:tenant/vision      for a worker: a tenant of its jobs; none: its own name

The part after the slash is percent-encoded (RFC 3986, section 2.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote

SCHEME = "wiresum:"

CONTROLLER, SWITCH, OPERATOR, WORKER = "controller", "switch", "operator", "worker"
ROLES = (CONTROLLER, SWITCH, OPERATOR, WORKER)
FALLBACK = "fallback"
"""A role that a worker may have besides: its host may serve joins while no other service does. The role allows no
calls."""
SERVING_ROLES = frozenset({CONTROLLER, SWITCH, FALLBACK})
"""Roles that have server certificates; other workers must not pass for a controller."""

_PATTERN_CHARACTERS = "*?[]!"


@dataclass(frozen=True)
class Claims:
    roles: frozenset[str] = frozenset()
    jobs: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()

    def uris(self) -> list[str]:
        return [
            *(f"{SCHEME}role/{role}" for role in sorted(self.roles)),
            *(f"{SCHEME}job/{quote(pattern, safe=_PATTERN_CHARACTERS)}" for pattern in self.jobs),
            *(f"{SCHEME}tenant/{quote(tenant, safe='')}" for tenant in self.tenants),
        ]


def parse(uris: Iterable[str]) -> Claims:
    """Reads claims. Ignores other URIs and unknown roles."""
    found: dict[str, list[str]] = {"role": [], "job": [], "tenant": []}
    for uri in uris:
        kind, slash, value = uri.removeprefix(SCHEME).partition("/")
        if uri.startswith(SCHEME) and slash and kind in found:
            found[kind].append(unquote(value))
    return Claims(frozenset(found["role"]) & frozenset((*ROLES, FALLBACK)), tuple(found["job"]), tuple(found["tenant"]))
