"""What the nodes of one P4Runtime device share: connection, program and tables. Most switches are one node, but each
pipe in use of a Tofino is one (controller/nodes.py). Each node is driven by a thread of its own, which must hold the
lock."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator

import finsy as fy

from wiresum.controller.driver import JobEntry
from wiresum.controller.p4runtime import own
from wiresum.controller.p4runtime.client import Client, Times
from wiresum.controller.p4runtime.difference import KEYS, NormalEntry
from wiresum.controller.p4runtime.own import KeysGiven
from wiresum.controller.p4runtime.tables import Tables
from wiresum.controller.p4runtime.target import Target


class P4Device:
    """A device, from construction, which does not wait for the switch, to `close`."""

    def __init__(self, target: Target, *, election_id: int, times: Times | None = None) -> None:
        """`target`: any of the device's nodes."""
        self.lock = threading.Lock()
        self._on_change: list[Callable[[], None]] = []
        self.jobs: dict[str, dict[int, JobEntry]] = {}
        """Admitted jobs, by node and number."""
        self._reconciled: dict[str, int] = {}
        """For each node, the client's term in which it was last reconciled."""
        self._nodes = 1 + len(target.siblings)
        self.client = Client(
            target.p4runtime,
            target.device,
            election_id=election_id,
            tls=target.tls,
            on_change=self._tell,
            times=times,
        )
        self.tables = Tables(self.client, target.pipeline)
        self._id = secrets.randbits(16)
        self._given: KeysGiven | None = None
        """The last number of keys that was read from the switch or written to it; None: there is none."""
        self._gave = False
        """True if this controller has given keys to the switch. Then a number with its 16 random bits is its own;
        before, such a number is another controller's, which has equal bits."""
        self._given_by_others = 0

    def look_at_keys(self, held: Iterable[NormalEntry]) -> int:
        """How many keys other controllers have given to the switch, as far as is known. `held`: all entries that the
        switch holds."""
        found = (entry.entity for entry in held if entry.stage == KEYS)
        self._given = next((own.decode_keys_given(e) for e in found if isinstance(e, fy.P4TableEntry)), None)
        if self._given is not None and not (self._gave and self._given.by == self._id):
            self._given_by_others = max(self._given_by_others, self._given.reserved)
        return self._given_by_others

    def give_keys(self, reserved: int) -> None:
        """Tells the switch how many keys are reserved; to be called after `look_at_keys`, and before the switch is
        given a job with one of them. Raises `DriverError`, and may be repeated then."""
        if self._given is not None and reserved <= self._given.reserved:
            return
        given = KeysGiven(reserved, self._id)
        write = self.tables.insert if self._given is None else self.tables.modify
        write("how many keys it has been given", [own.keys_given(given)])
        self._given, self._gave = given, True

    def add(self, name: str, on_change: Callable[[], None]) -> None:
        """Adds a node. `on_change` is called whenever the client's trouble has changed."""
        self._on_change.append(on_change)
        self.jobs[name] = {}

    def all_jobs(self) -> Iterator[JobEntry]:
        """The jobs of all nodes; a job at several nodes comes several times."""
        return (entry for jobs in self.jobs.values() for entry in jobs.values())

    def is_reconciled(self, name: str) -> bool:
        return self._reconciled.get(name) == self.client.term

    def note_reconciled(self, name: str, term: int) -> None:
        self._reconciled[name] = term

    def is_last(self, name: str, term: int) -> bool:
        """True if all nodes but this one have been reconciled in this term."""
        others = [other for other, when in self._reconciled.items() if other != name and when == term]
        return len(others) == self._nodes - 1

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        self.client.close()

    def _tell(self) -> None:
        for on_change in list(self._on_change):
            on_change()
