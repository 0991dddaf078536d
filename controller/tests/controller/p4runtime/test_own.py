from __future__ import annotations

from ipaddress import IPv4Address

import finsy as fy
import pytest

from wiresum.controller.p4runtime import own


def test_the_switchs_address_has_an_entry_with_its_mac(schema: fy.P4Schema) -> None:
    mac = fy.MACAddress("02:00:0a:00:00:01")
    destinations = []
    for wanted in own.entries("10.0.0.1", str(mac)):
        entry = fy.P4TableEntry.decode(wanted.encode(schema), schema)
        match = dict(entry.match or {})
        destinations.append(match.pop("destination"))
        assert match == {"address": IPv4Address("10.0.0.1")}
        assert isinstance(entry.action, fy.P4TableAction)
        assert (entry.action.name, entry.action.args) == ("own_address", {"mac": mac})
    assert destinations == [mac, fy.MACAddress("ff:ff:ff:ff:ff:ff")]


@pytest.mark.parametrize("given", [own.KeysGiven(0, 0), own.KeysGiven(64, 0xBEEF), own.KeysGiven(0xFFFFFFFF, 0xFFFF)])
def test_the_number_of_keys_is_read_as_it_was_written_and_makes_no_address_the_switchs(
    schema: fy.P4Schema, given: own.KeysGiven
) -> None:
    entry = fy.P4TableEntry.decode(own.keys_given(given).encode(schema), schema)
    assert own.is_keys_given(entry)
    assert own.decode_keys_given(entry) == given
    assert isinstance(entry.action, fy.P4TableAction)
    assert entry.action.name == "note"
    assert not any(map(own.is_keys_given, own.entries("10.0.0.1", "02:00:0a:00:00:01")))
