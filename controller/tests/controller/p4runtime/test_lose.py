from __future__ import annotations

import finsy as fy
import pytest

from wiresum.controller.p4runtime import lose


@pytest.mark.parametrize(("fraction", "chance"), [(1.0, 65535), (0.5, 32767), (0.01, 654), (1e-9, 0)])
def test_of_65536_copies_chance_plus_one_are_lost(fraction: float, chance: int, schema: fy.P4Schema) -> None:
    entry = fy.P4TableEntry.decode(lose.entry(fraction, receiver=2).encode(schema), schema)
    assert isinstance(entry.action, fy.P4TableAction)
    assert entry.action.args == {"chance": chance}


def test_what_is_not_named_is_not_looked_at(schema: fy.P4Schema) -> None:
    entry = lose.entry(1.0, receiver=2, round=9).encode(schema).table_entry
    assert len(entry.match) == 2
    assert entry.priority == 1


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1])
def test_a_fraction_is_a_fraction(fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction"):
        lose.entry(fraction)
