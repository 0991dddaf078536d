"""Who is calling, and what that caller may do.

`caller()` is the caller of the call which the current task serves. Without the interceptor of this package the caller
may do all.
"""

from __future__ import annotations

import fnmatch
import hashlib
import ipaddress
import socket
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from urllib.parse import unquote

from wiresum import join
from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.security.names import OPERATOR, WORKER, Claims, parse
from wiresum.controller.security.revocation import expiry_of, serial_of
from wiresum.controller.security.shares import ADDRESS, CERTIFICATE, TENANT, Party
from wiresum.join.addresses import canonical, counted_as, is_loopback
from wiresum.join.constants import TENANT_BYTES_MAX


@dataclass(frozen=True)
class Caller:
    peer: str = ""
    """The peer in gRPC's form, as ipv4:10.0.0.7:50123."""
    address: str = ""
    """The connection's IP address; empty for a Unix socket."""
    name: str = ""
    """The common name of the caller's certificate; empty: it has none."""
    authenticated: bool = False
    """True if the caller has a certificate of the authority; otherwise the service is one without TLS."""
    serial: str = ""
    """Serial of the caller's certificate, hexadecimal."""
    expires_at: float = 0.0
    """When the caller's certificate expires, in Unix time; 0: it has none."""
    claims: Claims = field(default_factory=Claims)
    addresses: frozenset[str] = frozenset()
    """IP addresses in the certificate, where the caller may have data sockets."""

    def __str__(self) -> str:
        return f"{self.name} at {self.address or 'this host'}" if self.authenticated else self.address or "this host"

    def has_role(self, *roles: str) -> bool:
        """True if the caller has one of these roles."""
        return not self.authenticated or not self.claims.roles.isdisjoint(roles)

    def tenant(self, asked: str) -> str:
        """Returns the tenant that was asked for, if the certificate names it, or the certificate's only tenant; for a
        certificate without tenants, its own name. Raises a `Refusal`."""
        tenants = self.claims.tenants
        if not self.authenticated or asked in tenants:
            return asked
        if not tenants:
            if asked in ("", self.name):
                return _as_tenant(self.name)
            raise self._refusal(
                f"names no tenant, and {asked!r} was asked for: issue it again with --tenant {asked}, or set "
                f"WIRESUM_TENANT to none"
            )
        if not asked and len(tenants) == 1:
            return tenants[0]
        listed = ", ".join(map(repr, tenants))
        raise self._refusal(f"is for {listed}, and tenant {asked!r} was asked for: set WIRESUM_TENANT to one of them")

    @property
    def has_own_account(self) -> bool:
        """True if the caller's certificate names no tenant."""
        return self.authenticated and not self.claims.tenants

    @property
    def tenants_seen(self) -> frozenset[str] | None:
        """Tenants whose jobs the caller may read about; None: all tenants."""
        if self.has_role(OPERATOR):
            return None
        return frozenset(self.claims.tenants or (_as_tenant(self.name),))

    @property
    def counted_address(self) -> str:
        """The address by which callers are counted; empty for a Unix socket."""
        return counted_as(self.address)

    @property
    def parties(self) -> tuple[Party, ...]:
        """The parties that share room with others: the caller's address, and what its certificate says. The tenants
        come last, in the order of the certificate."""
        address = Party(ADDRESS, self.counted_address or "this host")
        if not self.authenticated:
            return (address,)
        own = (_as_tenant(self.name),) if self.has_role(WORKER) else ()
        tenants = dict.fromkeys(self.claims.tenants or own)
        return (address, Party(CERTIFICATE, self.name), *(Party(TENANT, tenant) for tenant in tenants))

    def check_may_join(self, job_name: str, tenant: str, address: ipaddress.IPv4Address) -> None:
        """Raises a `Refusal` if the caller may not join the job. `address`: address of the caller's data sockets."""
        self.tenant(tenant)
        patterns = self.claims.jobs
        if patterns and not any(fnmatch.fnmatchcase(job_name, pattern) for pattern in patterns):
            listed = ", ".join(map(repr, patterns))
            raise self._refusal(f"is for jobs {listed}, and not for {job_name!r}: choose such a name (WIRESUM_JOB)")
        if self.authenticated and not self._owns(address):
            raise self._refusal(
                f"names no address {address}, nor does the connection come from there ({self.address}): set "
                f"WIRESUM_ADDRESS to an address that it names, or issue it again with --address {address}"
            )

    def _owns(self, address: ipaddress.IPv4Address) -> bool:
        if str(address) == self.address or str(address) in self.addresses:
            return True
        return (not self.address or is_loopback(self.address)) and _is_of_this_host(address)

    def _refusal(self, text: str) -> Refusal:
        return Refusal("PERMISSION_DENIED", f"the certificate of {self} {text}")


def _as_tenant(name: str) -> str:
    """A tenant's name for a certificate's name, which may be any text."""
    return name if not join.name_problem(name, TENANT_BYTES_MAX) else hashlib.sha256(name.encode()).hexdigest()[:16]


_caller: ContextVar[Caller] = ContextVar("wiresum_caller", default=Caller())  # noqa: B039 - a Caller is immutable


def caller() -> Caller:
    return _caller.get()


def set_caller(of_this_call: Caller) -> None:
    """Sets the caller for the rest of the current task."""
    _caller.set(of_this_call)


def identify(peer: str, auth_context: Mapping[str, Iterable[bytes]]) -> Caller:
    """Makes a caller from what gRPC knows of a connection, whose certificate has been verified."""

    def texts(key: str) -> list[str]:
        return [value.decode(errors="replace") for value in auth_context.get(key) or ()]

    authenticated = texts("transport_security_type") == ["ssl"]
    names = texts("x509_subject_alternative_name") if authenticated else []
    return Caller(
        peer=peer,
        address=_address_of(peer),
        name=next(iter(texts("x509_common_name")), "") if authenticated else "",
        authenticated=authenticated,
        serial=next(map(serial_of, auth_context.get("x509_pem_cert") or ()), "") if authenticated else "",
        expires_at=next(map(expiry_of, auth_context.get("x509_pem_cert") or ()), 0.0) if authenticated else 0.0,
        claims=parse(names),
        addresses=frozenset(filter(None, map(canonical, names))),
    )


def _address_of(peer: str) -> str:
    """The address in a peer's text: ipv4:10.0.0.7:50123, ipv6:%5B::1%5D:50123, or unix:."""
    kind, _, rest = unquote(peer).partition(":")
    return canonical(rest.rpartition(":")[0].strip("[]")) if kind in ("ipv4", "ipv6") else ""


def _is_of_this_host(address: ipaddress.IPv4Address) -> bool:
    """True if the address is one of this host's. A process that connects over loopback may use any address of this
    host."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))  # a name would be looked up here
    except OSError:
        return False
    return True
