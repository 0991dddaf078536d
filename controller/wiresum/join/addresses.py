"""What an IP address is: whose it may be, and by which one a caller counts. Pure: nothing is looked up."""

from __future__ import annotations

import contextlib
import functools
import ipaddress

IPV6_HOST_BITS = 64
ADDRESSES_REMEMBERED = 4096


def canonical(text: str) -> str:
    """An IP address, IPv4 if it is mapped into IPv6; empty: it is none."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(text)
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return str(mapped or address)
    return ""


def is_loopback(address: str) -> bool:
    """Is it an IP address that only this host reaches? A name is none: it is not looked up."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    return False


def can_send(address: ipaddress.IPv4Address) -> bool:
    """Can a host send packets from it?"""
    return not (address.is_unspecified or address.is_multicast or address.is_reserved)


@functools.lru_cache(maxsize=ADDRESSES_REMEMBERED)
def counted_as(address: str) -> str:
    """An IPv6 address counts by its first 64 bits, since a host may have all addresses that begin with these. Empty if
    it is no IP address, as of a Unix socket."""
    found = canonical(address)
    return str(ipaddress.ip_network((found, IPV6_HOST_BITS), strict=False)) if ":" in found else found
