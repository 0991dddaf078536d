from __future__ import annotations

from ipaddress import IPv4Address

import finsy as fy

from wiresum.controller.p4runtime import own


def test_the_switchs_address_has_an_entry_with_its_mac(schema: fy.P4Schema) -> None:
    entry = fy.P4TableEntry.decode(own.entry("10.0.0.1", "02:00:0a:00:00:01").encode(schema), schema)
    assert dict(entry.match or {}) == {"address": IPv4Address("10.0.0.1")}
    assert isinstance(entry.action, fy.P4TableAction)
    assert (entry.action.name, entry.action.args) == ("own_address", {"mac": fy.MACAddress("02:00:0a:00:00:01")})
