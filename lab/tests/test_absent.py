from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from wiresum_lab.absent import leave_one_for_each_reason


@dataclass
class Item:
    why_not: str = ""
    marks: list[pytest.MarkDecorator] = field(default_factory=list)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark)


def test_for_each_reason_one_test_is_left_which_says_how_many_there_are() -> None:
    items = [Item("no bmv2"), Item(), Item("no p4c"), Item("no bmv2"), Item()]
    leave_one_for_each_reason(items, lambda item: item.why_not)  # type: ignore[arg-type, attr-defined]
    assert [item.why_not for item in items] == ["no bmv2", "", "no p4c", ""]
    assert [mark.args for item in items for mark in item.marks] == [("2 tests: no bmv2",), ("no p4c",)]
