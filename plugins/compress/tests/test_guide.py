"""The guide's table of when compression gains nothing follows from its table of measured steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

GUIDE = (Path(__file__).parents[3] / "docs" / "compress.md").read_text()
MEGABITS = {"Mbit/s": 1.0, "Gbit/s": 1e3}
BENCHMARK_MBIT = 100.0


def rows(title: str) -> dict[str, list[str]]:
    """The table below a title, by its first column."""
    section = GUIDE.partition(f"## {title}\n")[2].partition("\n#")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    table = [cells for cells in lines if len(cells) > 4]
    return {cells[0]: cells[1:] for cells in table if "ms" in cells[1]}


def measured() -> dict[str, tuple[float, float]]:
    """The rest of a step in ms, and megabits over a link, for each way."""
    found = {}
    for name, cells in rows("How fast").items():
        megabits = 8 * max(map(float, cells[3].removesuffix(" MB").split(", ")))
        found[name] = float(cells[0].removesuffix(" ms")) - megabits / BENCHMARK_MBIT * 1e3, megabits
    return found


def rate_below(way: tuple[float, float], other: tuple[float, float]) -> float | str:
    """The rate in Mbit/s below which `way` is the faster one."""
    if way[1] >= other[1]:
        return "never"
    return (other[1] - way[1]) / (way[0] - other[0]) * 1e3 if way[0] > other[0] else "any rate"


def shown(cell: str) -> float | str:
    found = re.fullmatch(r"([\d.]+) ([MG]bit/s)", cell)
    return float(found[1]) * MEGABITS[found[2]] if found else cell


def test_the_rates_follow_from_the_measured_steps() -> None:
    ways, table = measured(), rows("When it gains nothing")
    assert set(table) == set(ways) - {"fp32, Gloo"}
    for name, (rest, over, below_fp32, below_8_bits) in table.items():
        assert float(rest.removesuffix(" ms")) == pytest.approx(ways[name][0], abs=0.6), name
        assert float(over.removesuffix(" MB")) * 8 == pytest.approx(ways[name][1]), name
        for cell, other in ((below_fp32, "fp32, wiresum"), (below_8_bits, "8-bit sums")):
            if cell == "-":
                assert other == name or name == "fp32, wiresum"
            else:
                expected = rate_below(ways[name], ways[other])
                exact = expected if isinstance(expected, str) else pytest.approx(expected, rel=0.05)
                assert shown(cell) == exact, (name, other)
