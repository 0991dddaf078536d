"""Collapses tests whose program is not installed: for each reason one test is left. Its skip text has their number.

A conftest calls this module at the end of the collection:

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(items): leave_one_for_each_reason(items, why_not)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest


def leave_one_for_each_reason(items: list[pytest.Item], why_not: Callable[[pytest.Item], str]) -> None:
    """Removes tests from `items`. `why_not` gives the reason why a test cannot run here; empty if the test can run, or
    belongs to another conftest."""
    reasons = [why_not(item) for item in items]
    counts = Counter(reasons)
    left: list[pytest.Item] = []
    for item, reason in zip(items, reasons, strict=True):
        if count := counts.pop(reason, 0) if reason else 0:
            item.add_marker(pytest.mark.skip(reason if count == 1 else f"{count} tests: {reason}"))
        if count or not reason:
            left.append(item)
    items[:] = left
