"""Properties of IP addresses: whose an address may be, and as which one a caller counts. Pure: nothing is looked up."""

from __future__ import annotations

import contextlib
import functools
import ipaddress

IPV6_HOST_BITS = 64
ADDRESSES_REMEMBERED = 4096


def canonical(text: str) -> str:
    """An IP address in canonical form, IPv4 if it is mapped into IPv6; empty: the text is no IP address."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(text)
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return str(mapped or address)
    return ""


def is_loopback(address: str) -> bool:
    """True for an IP address that only this host reaches. False for a name, which is not looked up."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    return False


def can_send(address: ipaddress.IPv4Address) -> bool:
    """True if a host can send packets from the address."""
    return not (address.is_unspecified or address.is_multicast or address.is_reserved)


@functools.lru_cache(maxsize=ADDRESSES_REMEMBERED)
def counted_as(address: str) -> str:
    """The address as which a caller counts. An IPv6 address counts by its first 64 bits, since a host may have all
    addresses that begin with these. Empty if the text is no IP address, for instance for a Unix socket."""
    found = canonical(address)
    return str(ipaddress.ip_network((found, IPV6_HOST_BITS), strict=False)) if ":" in found else found
