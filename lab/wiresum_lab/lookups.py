"""Records the names that this process looks up: by functions of the module `socket`, or as addresses of sockets, which
the kernel's calls look up, too."""

from __future__ import annotations

import contextlib
import ipaddress
import sys
from collections.abc import Iterator

ODD_ADDRESSES = (
    "",
    "\0",
    "10.0.0.1\0",
    "10.0.0.1\0.example",
    " 10.0.0.1",
    "10.0.0.1\n",
    "10.0.0.01",
    "010.0.0.1",
    "0x0a000001",
    "167772161",
    "10.1",
    "10.0.0.1.",
    "10.0.0.1/32",
    "10.0.0.1:80",
    "10.0.0.256",
    "::1",
    "::ffff:10.0.0.1",
    "fe80::1%lo",
    "fe80::1%\0",
    "[::1]",
    "localhost",
    "worker.example",
    "bücher.example",
    "xn--bcher-kva.example",
    "\u0661\u0660.0.0.1",
    "10\u30020\u30020\u30021",
    "unix:/run/wiresum",
    "-",
    "." * 8000,
    "a" * 8000,
    "a." * 4000,
    "1." * 4000,
)
"""Texts that a peer may send in place of an IPv4 address."""

_LOOK_UP = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo")
_TAKE_ADDRESS = ("socket.bind", "socket.connect", "socket.sendto", "socket.sendmsg")

_notes: list[list[str]] = []


@contextlib.contextmanager
def noted() -> Iterator[list[str]]:
    """Gives the list of names that any thread looks up in the block."""
    found: list[str] = []
    _notes.append(found)
    try:
        yield found
    finally:
        _notes.remove(found)


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if not _notes:
        return
    if event in _LOOK_UP:
        name = str(arguments[0])
    elif event in _TAKE_ADDRESS and isinstance(arguments[1], tuple):
        name = str(arguments[1][0])
    else:
        return
    if not _is_address(name):
        for found in _notes:
            found.append(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


sys.addaudithook(_hear)  # Python cannot remove an audit hook
