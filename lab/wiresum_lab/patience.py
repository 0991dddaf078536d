"""How long tests, demos and the laboratory wait for an event: one bound, and one factor.

No test passes or fails by how long something took. A bound only ends what hangs, so it is generous; on a machine that
is slow or busy the factor makes it longer. A run of the tests measures the factor at its start (`slowness.py`)
and says it in TEST_PATIENCE; every process that it starts inherits that.
"""

from __future__ import annotations

import os

from wiresum_lab.slowness import VARIABLE

FACTOR = max(1.0, float(os.environ.get(VARIABLE, "1")))
"""By how much this machine is slower now than a quiet one."""
PATIENCE_S = 60.0 * FACTOR
"""For an event that must come, however busy the machine is."""


class TimedOutError(AssertionError):
    """An event did not come in time; the text says which. A report counts it apart from what was wrong."""
