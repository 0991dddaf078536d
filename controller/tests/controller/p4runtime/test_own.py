from __future__ import annotations

import re
from ipaddress import IPv4Address
from pathlib import Path

import finsy as fy

from wiresum.controller.p4runtime import own

WIRE = (Path(__file__).parents[4] / "p4src/common/wire.p4").read_text()


def test_an_address_is_answered_for_with_its_mac(schema: fy.P4Schema) -> None:
    entry = fy.P4TableEntry.decode(own.entry("10.0.0.1", "02:00:0a:00:00:01").encode(schema), schema)
    assert dict(entry.match or {}) == {"address": IPv4Address("10.0.0.1")}
    assert isinstance(entry.action, fy.P4TableAction)
    assert (entry.action.name, entry.action.args) == ("own_address", {"mac": fy.MACAddress("02:00:0a:00:00:01")})


def test_the_data_port_is_the_programs() -> None:
    match = re.search(r"#define SWITCH_PORT (0x\w+)", WIRE)
    assert match is not None
    assert int(match[1], 16) == own.DATA_PORT
