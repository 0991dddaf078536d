"""A small run of the benchmark with several aggregators: real groups and switches on real links. Needs root."""

import json
from pathlib import Path

import pytest

from wiresum_lab.benchmarks.switches import aggregators
from wiresum_lab.benchmarks.switches.aggregators import Case


def test_the_aggregators_links_are_the_bound_until_there_is_one_for_each_worker() -> None:
    bounds = [Case(str(count), 4, 100.0, 8_000_000, 0.0, 0.0).bound_mbit for count in (1, 2, 4, 8)]
    assert bounds[0] == pytest.approx(24, abs=0.1)
    assert bounds[1:] == pytest.approx([2 * bounds[0], 4 * bounds[0], 4 * bounds[0]])
    ring = Case("gloo", 4, 100.0, 8_000_000, 0.9, 0.0).bound_mbit
    assert ring == Case("gloo", 4, 100.0, 8_000_000, 0.0, 0.0).bound_mbit == pytest.approx(64, abs=0.2)


def test_zeros_are_not_counted_in_the_bound() -> None:
    dense, sparse = (Case("2", 4, 100.0, 80_000_000, sparsity, 0.0).bound_mbit for sparsity in (0.0, 0.9))
    assert sparse == pytest.approx(10 * dense, rel=0.01)


@pytest.mark.usefixtures("gloo_on_a_star")
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_any_number_of_aggregators_sums_exactly_with_loss(tmp_path: Path) -> None:
    path = tmp_path / "aggregators.json"
    arguments = ["--workers", "2", "--aggregators", "1", "2", "--bytes", "400000", "--repetitions", "2"]
    assert aggregators.main([*arguments, "--sparsities", "0.5", "--loss", "0.02", "--json", str(path)]) == 0
    records = json.loads(path.read_text())
    assert [record["group"] for record in records] == ["1", "2"]
    for record in records:
        assert len(record["repetitions"]) == 2
        assert sum(repetition["retransmissions"] for repetition in record["repetitions"]) > 0
        assert record["bound_ratio"] == pytest.approx(record["goodput_mbit"] / record["bound_mbit"], abs=1e-3)
    assert records[1]["bound_mbit"] == pytest.approx(2 * records[0]["bound_mbit"], rel=1e-3)
