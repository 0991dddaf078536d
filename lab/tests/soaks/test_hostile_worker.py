"""Messages of a hostile worker. That the service withstands them is for the soak and test_extremes.py."""

from __future__ import annotations

import random
from typing import Any

import pytest

from wiresum import join
from wiresum_lab.soaks.hostile_worker import UNSIGNED, spoil

TRIES = 1000


@pytest.mark.parametrize(
    "kind", [join.JoinRequest, join.Heartbeat, join.LeaveRequest, join.AbortRequest, join.Member, join.ListEndedRequest]
)
def test_each_field_is_set_to_extremes_and_the_message_can_be_sent(kind: type[Any]) -> None:
    chance, seen = random.Random(1), set[str]()
    for _ in range(TRIES):
        message = kind()
        spoil(message, chance)
        assert kind.FromString(message.SerializeToString()) == message
        seen |= {field.name for field, _ in message.ListFields()}
    maps = {field.name for field in kind.DESCRIPTOR.fields if field.message_type and _is_map(field)}
    assert seen == {field.name for field in kind.DESCRIPTOR.fields} - maps


def test_a_moves_number_gets_each_extreme() -> None:
    chance, seen = random.Random(1), set[int]()
    for _ in range(TRIES):
        halted = join.Halted()
        spoil(halted, chance)
        seen.add(halted.move_number)
    assert seen == set(UNSIGNED)


def _is_map(field: Any) -> bool:
    return bool(field.message_type.GetOptions().map_entry)
