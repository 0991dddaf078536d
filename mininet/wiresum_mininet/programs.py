"""Programs that run in a node of Mininet, each with a log of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wiresum_lab import processes

if TYPE_CHECKING:
    from mininet.node import Node


class Program(processes.Program):
    """A process in a node, until `stop`. It ends with the thread that started it."""

    def __init__(self, node: Node, argv: Sequence[str], log: Path, variables: Mapping[str, str] | None = None) -> None:
        self.host = str(node.name)
        # Mininet's popen runs it in the node's namespace; setpriv replaces itself by the program.
        command = ["setpriv", "--pdeathsig", "KILL", "--", *argv]
        super().__init__(command, log, variables, at=node.popen, name=f"{Path(argv[0]).name} of {node.name}")
