"""The interface of a switch under test: jobs in its tables, frames in at its ports, frames out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from wiresum.conformance import frames
from wiresum.controller.driver import JobEntry
from wiresum.controller.switches import Host

RESULTS = "results"
"""The key of `Switch.counted` for completed cells; the other keys are `REASONS`."""


class SwitchError(RuntimeError):
    """The switch or its vendor's script failed outside the protocol; the text says in what."""


@dataclass(frozen=True)
class PlacedJob:
    """A job, and the machines of its workers and of its parent switch."""

    entry: JobEntry
    hosts: tuple[Host, ...]
    parent: Host | None = None


class Switch(Protocol):
    """A switch under test. Its methods raise `SwitchError`, or the driver's errors."""

    @property
    def own(self) -> frames.Host:
        """The MAC and IPv4 address that the switch answers to."""

    @property
    def ports(self) -> Sequence[int]:
        """The numbers of the ports at which frames go in and come out."""

    @property
    def lanes(self) -> int:
        """The words of the switch's packets."""

    @property
    def profiles(self) -> frozenset[str]:
        """The `PROFILES` that the switch implements."""

    def fresh(self, slots: int) -> int:
        """Ends all jobs; returns the first of so many slots whose cells no job has used."""
        ...

    def admit(self, job: PlacedJob) -> None: ...

    def evict(self, job: PlacedJob) -> None: ...

    def exchange(self, sent: Sequence[tuple[int, bytes]], expected: int = 0) -> list[tuple[int, bytes]]:
        """Sends frames, each at its port, and returns all that come out, in the order of arrival at each port. A switch
        for which waiting is dear waits for `expected` frames, and returns later ones at the next call."""
        ...

    def counted(self) -> Counter[str] | None:
        """Returns the packets counted since some moment, of all jobs and of none: by reason, and as `RESULTS`. None:
        the switch does not tell."""
        ...
