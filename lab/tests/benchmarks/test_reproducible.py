"""A small run of the benchmark of reproducible gradients: real groups on real links. Needs root."""

import json
from pathlib import Path

import pytest


@pytest.mark.usefixtures("gloo_on_a_star")
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_one_word_costs_the_bytes_of_fp32_and_its_error_is_as_small(tmp_path: Path) -> None:
    from wiresum_lab.benchmarks.reproducible.__main__ import main

    path = tmp_path / "reproducible.json"
    small = ["--workers", "2", "--bytes", "400000", "--repetitions", "1", "--steps", "2"]
    assert main([*small, "--json", str(path)]) == 0
    cases = {case["group"]: case for case in json.loads(path.read_text())}
    sent = {way: case["repetitions"][0]["bytes_sent"] for way, case in cases.items()}
    assert sent["1"] < 1.05 * sent["fp32"]
    assert 1.9 * sent["fp32"] < sent["2"]
    assert 1.5 * sent["fp32"] < sent["0"]
    for one, two, exact in zip(*(cases[way]["errors"] for way in ("1", "2", "0")), strict=True):
        assert exact["error_max"] == 0 < one["error_max"] < 1e-6  # fp32 itself has 1e-7
        assert two["error_max"] <= one["error_max"] / 4
