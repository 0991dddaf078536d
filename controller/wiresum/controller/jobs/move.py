"""A job's change of lease, as data; moving.py says how it goes. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wiresum.controller.jobs.positions import ROUNDS

if TYPE_CHECKING:
    from wiresum.controller.jobs.job import Job

MOVES_MAX = ROUNDS - 1
"""Of a job: its moves are numbered with 32 bits."""
POSITIONS_MAX = 1 << 20
"""Of all workers of a job together. A larger one does not move: comparing more takes seconds."""


class Cause(enum.Enum):
    SWITCH_LOST = "switch_lost"
    SWITCH_RESTARTED = "switch_restarted"
    SWITCH_DRAINED = "switch_drained"
    INTERRUPTED = "interrupted"
    """The service before has ended in the middle of a move."""


@dataclass(eq=False)
class Move:
    """From its cause until the workers are told their new lease."""

    cause: Cause
    reason: str
    """A clause for people."""
    since: float
    lease: Job | None = None
    """The job's next lease: in the queue, being admitted, or there, as its state says; None: it is not asked for."""
    obstacle: str = ""
    """Why there is no such lease."""
    again_at: float = 0.0
    """When another one may be asked for."""
    halting_since: float = 0.0
    """When its workers were first told to halt."""
    positions: dict[int, bytes] = field(default_factory=dict)
    """By rank, of those that have halted, as they say them."""

    def forgive(self, stalled: float) -> None:
        """The service stood still for so many seconds."""
        self.since += stalled
        self.again_at += stalled
        self.halting_since += stalled


@dataclass(eq=False)
class Moved:
    """From then until all workers have gone on."""

    at: float
    roles: dict[int, bytes]
    """By rank, of those that have not gone on yet, as far as is known: what each repeats first."""
    told_on: dict[int, int] = field(default_factory=dict)
    """By rank: the number of the stream on which it was told."""
