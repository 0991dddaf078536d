"""How long a worker waits for what may not come: the reason of a failure, which another worker or the service knows,
and the end of pending works when it leaves. Tests, whose processes may stand still, wait longer."""

from __future__ import annotations

CAUSE_S = 5.0
"""The wait, after Gloo found a connection broken, for the service to say who was lost."""
CALLS_S = 2.0
"""The wait, after calls that differ, for the other workers to say what they have called."""
DEPARTURE_S = 2.0
"""The wait for the store to say how many of Gloo's collectives a worker that has left had finished."""
DRAIN_S = 5.0
"""The wait for pending works to end before this worker leaves."""
