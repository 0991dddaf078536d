"""Stage `own`: which addresses are the switch's own. p4src/common/own.p4."""

from __future__ import annotations

import finsy as fy

DATA_PORT = 0xA9E0
"""Base UDP port, fixed in the program: `SWITCH_PORT` in p4src/common/wire.p4."""


def entry(address: str, mac: str) -> fy.P4TableEntry:
    """Makes `address` the switch's; it answers ARP requests for it with `mac`."""
    return fy.P4TableEntry("own", match=fy.Match(address=address), action=fy.Action("own_address", mac=mac))
