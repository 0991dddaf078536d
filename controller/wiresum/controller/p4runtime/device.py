"""What the nodes of one P4Runtime device have in common: most switches are one node, and a Tofino is one for each pipe
in use (controller/nodes.py). The connection is one, the program, and the tables, whose entries are in all pipes.

Each node is driven by a thread of its own, so a `Device` has a lock, which whoever calls holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from wiresum.controller.driver import JobEntry
from wiresum.controller.p4runtime.client import Client
from wiresum.controller.p4runtime.tables import Tables
from wiresum.controller.p4runtime.target import Target


class Device:
    """From construction, which does not wait for the switch, to `close`."""

    def __init__(self, target: Target, *, election_id: int) -> None:
        """`target`: any of the nodes."""
        self.lock = threading.Lock()
        self._on_change: dict[str, Callable[[], None]] = {}
        self.jobs: dict[str, dict[int, JobEntry]] = {}
        """Those that are admitted, by node and number."""
        self._reconciled: dict[str, int] = {}
        """By node, in which of the client's terms."""
        self._nodes = 1 + len(target.siblings)
        self.client = Client(
            target.p4runtime, target.device, election_id=election_id, tls=target.tls, on_change=self._tell
        )
        self.tables = Tables(self.client, target.pipeline)
        """What the switch holds, for whoever looks after it."""

    def add(self, name: str, on_change: Callable[[], None]) -> None:
        """A node. `on_change` is called whenever the client's trouble has changed."""
        self._on_change[name] = on_change
        self.jobs.setdefault(name, {})

    def all_jobs(self) -> Iterator[JobEntry]:
        """Those of a node; a job that has several counts at each."""
        return (entry for jobs in self.jobs.values() for entry in jobs.values())

    def is_reconciled(self, name: str) -> bool:
        return self._reconciled.get(name) == self.client.term

    def note_reconciled(self, name: str, term: int) -> None:
        self._reconciled[name] = term

    def is_last(self, name: str, term: int) -> bool:
        """Have all nodes but this one been reconciled in this term?"""
        others = [other for other, when in self._reconciled.items() if other != name and when == term]
        return len(others) == self._nodes - 1

    def close(self) -> None:
        """Idempotent."""
        self.client.close()

    def _tell(self) -> None:
        for on_change in list(self._on_change.values()):
            on_change()
