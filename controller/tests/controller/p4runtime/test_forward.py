from __future__ import annotations

import finsy as fy

from wiresum.controller.p4runtime import Host, forward


def test_frames_to_a_host_are_sent_to_its_port(hosts: tuple[Host, ...], schema: fy.P4Schema) -> None:
    entries = [fy.P4TableEntry.decode(e.encode(schema), schema) for e in forward.entries(hosts[:2])]
    assert [dict(entry.match or {}) for entry in entries] == [{"mac": fy.MACAddress(host.mac)} for host in hosts[:2]]
    for port, entry in enumerate(entries):
        assert isinstance(entry.action, fy.P4TableAction)
        assert (entry.action.name, entry.action.args) == ("forward_to", {"port": port})


def test_a_flood_sends_one_copy_to_each_port(hosts: tuple[Host, ...]) -> None:
    group = forward.flood_group(hosts)
    assert list(group.replicas) == [(0, 0), (1, 0), (2, 0), (3, 0)]
