"""Stage `forward`: traffic that is not wiresum's. p4src/common/forward.p4."""

from __future__ import annotations

from collections.abc import Iterable

import finsy as fy

from wiresum.controller.switches import Host
from wiresum.join.constants import FLOOD_GROUP


def entries(hosts: Iterable[Host]) -> list[fy.P4TableEntry]:
    """An entry for each host."""
    return [
        fy.P4TableEntry("forward", match=fy.Match(mac=host.mac), action=fy.Action("forward_to", port=host.port))
        for host in hosts
    ]


def flood_group(hosts: Iterable[Host]) -> fy.P4MulticastGroupEntry:
    """A group with a copy for each port that has a host; the program drops the copy that would go back."""
    ports = sorted({host.port for host in hosts})
    return fy.P4MulticastGroupEntry(FLOOD_GROUP, replicas=[(port, 0) for port in ports])
