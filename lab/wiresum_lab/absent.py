"""Tests whose program is not installed: for each reason one is left, and is skipped. It says how many there are.

A conftest calls this at the end of the collection:

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(items): leave_one_for_each_reason(items, why_not)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest


def leave_one_for_each_reason(items: list[pytest.Item], why_not: Callable[[pytest.Item], str]) -> None:
    """`why_not`: why a test cannot run here; empty if it can, or is another conftest's."""
    reasons = [why_not(item) for item in items]
    counts = Counter(reasons)
    left: list[pytest.Item] = []
    for item, reason in zip(items, reasons, strict=True):
        if count := counts.pop(reason, 0) if reason else 0:
            item.add_marker(pytest.mark.skip(reason if count == 1 else f"{count} tests: {reason}"))
        if count or not reason:
            left.append(item)
    items[:] = left
