"""A small run of the benchmark with several aggregators: real groups and switches on real links. Needs root."""

import json
from pathlib import Path

import pytest

from wiresum_lab.benchmarks.program import Case
from wiresum_lab.benchmarks.switches import aggregators


def bound_mbit(group: str, size: int = 8_000_000, sparsity: float = 0.0) -> float:
    settings = {"group": group, "workers": 4, "link_mbit": 100.0, "bytes": size, "sparsity": sparsity}
    return aggregators.bound_mbit(Case(settings)) or 0.0


def test_the_aggregators_links_are_the_bound_until_there_is_one_for_each_worker() -> None:
    bounds = [bound_mbit(str(count)) for count in (1, 2, 4, 8)]
    assert bounds[0] == pytest.approx(24, abs=0.1)
    assert bounds[1:] == pytest.approx([2 * bounds[0], 4 * bounds[0], 4 * bounds[0]])
    assert bound_mbit("gloo", sparsity=0.9) == bound_mbit("gloo") == pytest.approx(64, abs=0.2)


def test_zeros_are_not_counted_in_the_bound() -> None:
    dense, sparse = (bound_mbit("2", 80_000_000, sparsity) for sparsity in (0.0, 0.9))
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
        assert record["of_bound"] == pytest.approx(record["goodput_mbit"] / record["bound_mbit"], abs=1e-3)
    assert records[1]["bound_mbit"] == pytest.approx(2 * records[0]["bound_mbit"], rel=1e-3)
