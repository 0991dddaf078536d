"""A small run of the benchmark of precision: real groups on real links. Needs root."""

import json
from pathlib import Path

import pytest

from wiresum_lab.benchmarks.precision.__main__ import main


@pytest.mark.usefixtures("gloo_on_a_star")
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_exact_sum_keeps_values_that_block_floating_point_loses(tmp_path: Path) -> None:
    path = tmp_path / "precision.json"
    arguments = ["--workers", "2", "--elements", "4", "9000", "--kinds", "packed", "--repetitions", "1"]
    assert main([*arguments, "--json", str(path)]) == 0
    cases = json.loads(path.read_text())
    assert [(case["elements"], case["group"]) for case in cases] == [
        (elements, group) for elements in (4, 9000) for group in ("block", "exact", "gloo")
    ]
    for case in cases:
        if case["group"] == "block":
            assert case["error_max"] > 1e6 and case["lost"] > 0.2
        else:
            # A sum of two terms is rounded once by both; the reference for the exact sum is rounded as well.
            assert case["error_max"] <= 1.0001 and case["lost"] == 0
