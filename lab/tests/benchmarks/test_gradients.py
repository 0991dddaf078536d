"""A small run of the benchmark of gradients: real groups on real links. Needs root."""

import json
from pathlib import Path

import pytest


@pytest.mark.usefixtures("gloo_on_a_star")
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_gpt_has_chunks_that_blocks_cannot_carry_and_learns_alike_in_all_ways(tmp_path: Path) -> None:
    from wiresum_lab.benchmarks.gradients.__main__ import main

    path = tmp_path / "gradients.json"
    assert main(["--workers", "2", "--models", "gpt", "--steps", "3", "--json", str(path)]) == 0
    cases = {case["group"]: case for case in json.loads(path.read_text())}
    assert list(cases) == ["gloo", "block", "adaptive", "exact"]
    assert all(abs(case["losses"][-1] - cases["gloo"]["losses"][-1]) < 1e-4 for case in cases.values())
    assert cases["block"]["counted"]["chunks_wide"] > 0 == cases["block"]["counted"]["chunks_exact"]
    assert cases["adaptive"]["counted"]["chunks_exact"] > 0 == cases["adaptive"]["counted"]["chunks_wide"]
    assert cases["adaptive"]["counted"]["bytes_sent"] < 1.2 * cases["block"]["counted"]["bytes_sent"]
