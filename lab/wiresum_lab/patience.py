"""The bound on waits for an event in tests, demos and the laboratory, and its factor.

No test passes or fails by a duration. A bound only ends a test that hangs, so it is generous; on a machine that is slow
or busy the factor makes it longer. A run of the tests measures the factor at its start (`slowness.py`) and sets
TEST_PATIENCE, which every process that it starts inherits.
"""

from __future__ import annotations

import os

from wiresum_lab.slowness import VARIABLE

FACTOR = max(1.0, float(os.environ.get(VARIABLE, "1")))
"""How many times slower this machine is now than a quiet one."""
PATIENCE_S = 60.0 * FACTOR
"""Bound on the wait for an event that must come at any load of the machine."""


class TimedOutError(AssertionError):
    """An event, which the text names, did not come in time. Reports count time-outs apart from failures."""
