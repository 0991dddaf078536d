"""Stage `own`: which addresses are the switch's own, and how many keys it has been given. p4src/common/own.p4.

A switch must remember the number of keys as long as its cells, for the next controller (jobs/keys.py). P4Runtime has no
field for that which every server keeps. But every server keeps entries until the program is loaded and all cells are
new. So there is an entry for an address that no packet is sent to: its MAC is the number, and 16 bits of its author.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import finsy as fy

KEYS_ADDRESS = "0.0.0.1"
"""In 0.0.0.0/8, which is nobody's (RFC 1122)."""


@dataclass(frozen=True)
class KeysGiven:
    """How many keys, from the first of the sequence, may be in the switch's cells."""

    reserved: int
    by: int
    """16 random bits of the controller."""


def keys_given(given: KeysGiven) -> fy.P4TableEntry:
    return entry(KEYS_ADDRESS, (given.by << 32 | given.reserved).to_bytes(6, "big").hex(":"))


def is_keys_given(held: fy.P4TableEntry) -> bool:
    match: Mapping[str, Any] = held.match or {}
    return held.table_id == "own" and str(match.get("address")) == KEYS_ADDRESS


def decode_keys_given(held: fy.P4TableEntry) -> KeysGiven:
    assert isinstance(held.action, fy.P4TableAction), "the table has no other actions"
    mac = int(str(held.action.args["mac"]).replace(":", ""), 16)
    return KeysGiven(mac & 0xFFFFFFFF, mac >> 32)


def entry(address: str, mac: str) -> fy.P4TableEntry:
    """Makes `address` the switch's; it answers ARP requests for it with `mac`."""
    return fy.P4TableEntry("own", match=fy.Match(address=address), action=fy.Action("own_address", mac=mac))
