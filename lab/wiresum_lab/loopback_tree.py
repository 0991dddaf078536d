"""A tree of software switches in this process: a spine, and leaves below it, each with an address on loopback."""

from __future__ import annotations

from typing import Any

from wiresum.switch import SoftwareSwitch


def host_of(network: str, leaf: int) -> str:
    """The address of the workers at a leaf."""
    return f"{network}.{101 + leaf}"


def loopback_tree(network: str, leaves: int, **settings: Any) -> list[SoftwareSwitch]:
    """The switches, the spine first. `network` is the first three numbers of their addresses, like 127.0.6; `settings`
    are for each switch."""

    class Node(SoftwareSwitch):
        parent = ""
        host = ""

        def reaches(self, address: str) -> bool:
            return address == self.host

    spine = Node(bind=f"{network}.1", port=0, threads=1, **settings)
    nodes: list[SoftwareSwitch] = [spine]
    for leaf in range(leaves):
        node = Node(bind=f"{network}.{2 + leaf}", port=0, threads=1, **settings)
        node.parent, node.host = spine.name, host_of(network, leaf)
        nodes.append(node)
    return nodes
