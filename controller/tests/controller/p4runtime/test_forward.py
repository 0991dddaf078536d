from __future__ import annotations

import re
from pathlib import Path

import finsy as fy

from wiresum.controller.p4runtime import Host, forward

SIZES = (Path(__file__).parents[4] / "p4src/common/sizes.p4").read_text()


def test_frames_to_a_host_go_to_its_port(hosts: tuple[Host, ...], schema: fy.P4Schema) -> None:
    entries = [fy.P4TableEntry.decode(e.encode(schema), schema) for e in forward.entries(hosts[:2])]
    assert [dict(entry.match or {}) for entry in entries] == [{"mac": fy.MACAddress(host.mac)} for host in hosts[:2]]
    for port, entry in enumerate(entries):
        assert isinstance(entry.action, fy.P4TableAction)
        assert (entry.action.name, entry.action.args) == ("forward_to", {"port": port})


def test_a_flood_goes_once_to_each_port(hosts: tuple[Host, ...]) -> None:
    group = forward.flood_group(hosts)
    assert list(group.replicas) == [(0, 0), (1, 0), (2, 0), (3, 0)]


def test_the_group_is_the_programs() -> None:
    match = re.search(r"FLOOD_GROUP = (\d+);", SIZES)
    assert match is not None
    assert int(match[1]) == forward.FLOOD_GROUP
