"""Stage `own`: the switch's own addresses, and how many keys it has been given. p4src/common/own.p4.

A switch must remember the number of keys as long as its cells, for the next controller (jobs/keys.py). P4Runtime has no
field for this that every server keeps. But every server keeps entries until the program is loaded and all cells are
new. So there is an entry whose action does nothing: its parameter is the number, and 16 bits of its author.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import finsy as fy

from wiresum.controller.p4runtime.target import NO_MAC

KEYS_ADDRESS = "0.0.0.1"
"""An address in 0.0.0.0/8, which is nobody's (RFC 1122)."""
BROADCAST = "ff:ff:ff:ff:ff:ff"


@dataclass(frozen=True)
class KeysGiven:
    """How many keys, from the first of the sequence, may be in the switch's cells."""

    reserved: int
    by: int
    """Random bits of the controller that gave them, 16."""


def keys_given(given: KeysGiven) -> fy.P4TableEntry:
    match = fy.Match(address=KEYS_ADDRESS, destination=NO_MAC)
    return fy.P4TableEntry("own", match=match, action=fy.Action("note", number=given.by << 32 | given.reserved))


def is_keys_given(held: fy.P4TableEntry) -> bool:
    match: Mapping[str, Any] = held.match or {}
    place = str(match.get("address")), str(match.get("destination"))
    return held.table_id == "own" and place == (KEYS_ADDRESS, NO_MAC)


def decode_keys_given(held: fy.P4TableEntry) -> KeysGiven:
    assert isinstance(held.action, fy.P4TableAction), "an entry of this table has an action"
    number = held.action.args.get("number", 0)  # an entry that somebody else wrote may have the other action
    assert isinstance(number, int)
    return KeysGiven(number & 0xFFFFFFFF, number >> 32)


def entries(address: str, mac: str) -> list[fy.P4TableEntry]:
    """Entries that make `address` the switch's, in frames to `mac`. The entry for broadcasts is for ARP requests: the
    program takes no other broadcasts."""
    action = fy.Action("own_address", mac=mac)
    return [
        fy.P4TableEntry("own", match=fy.Match(address=address, destination=destination), action=action)
        for destination in (mac, BROADCAST)
    ]
