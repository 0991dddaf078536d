"""The addresses that a host's name has here, and whether other hosts reach them.

Debian gives a host's own name 127.0.1.1 in /etc/hosts. Other hosts cannot reach a server or data at this address, and
the mistake shows only once there are several hosts. So every look-up of a name, to listen at it or to find the route of
data, is made here.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import socket
import threading

from wiresum.join.addresses import is_loopback

log = logging.getLogger(__name__)

_warned: set[str] = set()
_lock = threading.Lock()


def addresses_of(host: str, family: int = socket.AF_UNSPEC) -> list[str]:
    """Addresses of a host, at least one; loopback addresses come last. Raises `OSError`."""
    try:
        found = socket.getaddrinfo(host or None, 0, family, socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError:  # python's own text is about its codecs
        raise OSError(errno.EINVAL, "a part of the name is empty, or too long") from None
    return sorted(dict.fromkeys(str(at[0]) for *_, at in found), key=is_loopback)


def why_only_here(host: str) -> str:
    """Says why other hosts cannot reach this host by the name, and what to do; empty if they can, or if the text means
    this host only: localhost, or an address."""
    if is_address(host) or not host or host.partition(".")[0] == "localhost":
        return ""
    with contextlib.suppress(OSError):
        found = addresses_of(host)
        if all(map(is_loopback, found)):
            return (
                f"{host!r} is {' and '.join(found)} on this host, which others cannot reach: say the address that they "
                f"use (`ip -brief address` lists those of this host), or take the name out of that line of /etc/hosts"
            )
    return ""


def shown(host: str) -> str:
    """The text with its addresses, if it is a name."""
    with contextlib.suppress(OSError):
        return host if is_address(host) else f"{host} ({', '.join(addresses_of(host))})"
    return host


def warn_if_only_here(setting: str, host: str) -> None:
    """Logs a warning, once in a process, if only this host reaches the name. `setting`: the setting that has the
    name."""
    text = f"{setting}: {why}" if (why := why_only_here(host)) else ""
    with _lock:
        new = bool(text) and text not in _warned
        _warned.add(text)
    if new:
        log.warning("%s", text)


def is_address(host: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host.strip("[]"))
        return True
    return False
