from __future__ import annotations

import finsy as fy

from wiresum.controller import REASONS
from wiresum.controller.p4runtime import count


def test_a_row_is_read_at_the_indexes_that_the_program_uses(schema: fy.P4Schema) -> None:
    asked = [entity.encode(schema).counter_entry for entity in count.reads(3)]
    names = {counter.id: counter.alias for counter in schema.counters}
    found = [(names[entry.counter_id], entry.index.index) for entry in asked]
    expected = [("packets", 24 + i) for i in range(8)] + [("contributions", 96 + i) for i in range(32)]
    assert found == [*expected, ("results", 3)]


def test_counters_are_split_by_reason_and_worker() -> None:
    answers = count.reads(3)
    for number, answer in enumerate(answers):
        answer.data = fy.P4CounterData(packet_count=1000 + number)
    counters = count.decode(answers, workers=2)
    assert counters.packets == {reason: 1000 + i for i, reason in enumerate(REASONS)}
    assert counters.contributions == (1008, 1009)
    assert counters.results == 1040
    assert not counters.tensor_last


def test_a_reset_covers_all_counters_that_are_read(schema: fy.P4Schema) -> None:
    resets = [entity.encode(schema).counter_entry for entity in count.resets(3)]
    reads = [entity.encode(schema).counter_entry for entity in count.reads(3)]
    assert [(e.counter_id, e.index.index) for e in resets] == [(e.counter_id, e.index.index) for e in reads]
    assert all(entry.HasField("data") and entry.data.packet_count == 0 for entry in resets)
