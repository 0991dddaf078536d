"""How long a worker waits for what may not come: for the reason of a failure, which another worker or the service
knows, and, when it leaves, for what is under way. Tests, whose processes may stand still, wait longer."""

from __future__ import annotations

CAUSE_S = 5.0
"""For the service to say who was lost, after Gloo found a connection broken."""
CALLS_S = 2.0
"""For the other workers to say what they have called, after calls that differ."""
DEPARTURE_S = 2.0
"""For the store to say how many of Gloo's collectives a worker that has left had finished."""
DRAIN_S = 5.0
"""For pending works to end before this worker leaves."""
