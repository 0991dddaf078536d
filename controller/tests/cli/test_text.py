from __future__ import annotations

import pytest

from wiresum import join
from wiresum.cli.text import as_dict, duration, table, visible, workers_of


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.9, "0s"), (59, "59s"), (61, "1m01s"), (3600, "1h00m"), (86399, "23h59m"), (100_000, "1d03h")],
)
def test_a_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_columns_are_aligned() -> None:
    assert table([("A", "LONG"), ("value", "1")]) == "A      LONG\nvalue  1"


def test_control_characters_in_received_text_are_escaped() -> None:
    assert visible("a\x1b[2Jb\n") == "a\N{REPLACEMENT CHARACTER}[2Jb\N{REPLACEMENT CHARACTER}"
    assert "\x1b" not in table([("\x1b[31mred",)])


def test_a_message_becomes_an_object_with_all_its_fields() -> None:
    worker = join.WorkerReport(peer=join.Peer(rank=1), contributions=1 << 60)
    job = as_dict(join.JobReport(name="x", packets={"stale": 1 << 50}, workers=[worker]))
    assert job["packets"] == {"stale": 1 << 50}
    assert (job["name"], job["results"], job["age_seconds"]) == ("x", 0, 0.0)
    (found,) = job["workers"]
    assert (found["peer"]["rank"], found["contributions"]) == (1, 1 << 60)
    assert (found["tensor_last"], found["endpoint"]) == (None, None)


def test_workers_that_share_streams_are_counted_with_them() -> None:
    of = [(0, 8, 0), (3, 8, 0), (8, 8, 8), (8, 8, 2), (1, 1, 1)]
    jobs = (join.JobReport(joined=joined, world_size=size, streams=streams) for joined, size, streams in of)
    assert [*map(workers_of, jobs)] == ["0/8", "3/8", "8/8", "8/8 in 2", "1/1"]
