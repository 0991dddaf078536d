"""A small run of the benchmark of precision: real groups on real links. Needs root."""

import json
from pathlib import Path

import pytest

from wiresum_lab.benchmarks.against_gloo_and_mpi.systems import component_missing

needs_component = pytest.mark.skipif(component_missing() is not None, reason=str(component_missing()))


@pytest.mark.usefixtures("gloo_on_a_star")
@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mpi", [False, pytest.param(True, marks=needs_component)], ids=["", "mpi"])
def test_an_exact_sum_keeps_values_that_block_floating_point_loses(tmp_path: Path, mpi: bool) -> None:
    from wiresum_lab.benchmarks.precision.__main__ import main

    path = tmp_path / "precision.json"
    arguments = ["--workers", "2", "--elements", "4", "20000", "--kinds", "packed", "--repetitions", "1"]
    assert main([*arguments, *["--mpi"] * mpi, "--json", str(path)]) == 0
    cases = json.loads(path.read_text())
    groups = [
        "block",
        "adaptive",
        "exact",
        "gloo",
        *(["mpi-block", "mpi-adaptive", "mpi-exact", "openmpi"] if mpi else []),
    ]
    assert [(case["elements"], case["group"]) for case in cases] == [
        (elements, group) for elements in (4, 20000) for group in groups
    ]
    for case in cases:
        # A few elements MPI sums without the network.
        if case["group"] == "block" or (case["group"] == "mpi-block" and case["elements"] > 4):
            assert case["error_max"] > 1e6 and case["lost"] > 0.2
        else:
            # A sum of two terms is rounded once by all; the reference for the exact sum is rounded as well.
            assert case["error_max"] <= 1.0001 and case["lost"] == 0
