"""A small run of the benchmark with racks: a real tree on real links. Needs root."""

import json
from pathlib import Path

import pytest

from wiresum_lab.benchmarks.program import Case
from wiresum_lab.benchmarks.switches import racks
from wiresum_lab.benchmarks.switches.racks import GLOO, RACKS, SPINE


def bound_mbit(group: str) -> float:
    settings = {"group": group, "workers": 8, "racks": 2, "link_mbit": 100.0, "bytes": 8_000_000}
    return racks.bound_mbit(Case(settings)) or 0.0


def test_with_a_spine_alone_an_uplink_carries_the_tensors_of_all_workers_in_the_rack() -> None:
    assert bound_mbit(SPINE) == pytest.approx(bound_mbit(RACKS) / 4)
    assert bound_mbit(GLOO) == pytest.approx(bound_mbit(RACKS) * 8 / 14, rel=0.02)


@pytest.mark.nightly
@pytest.mark.usefixtures("gloo_on_a_star")
def test_a_tree_sums_exactly_and_an_uplink_carries_the_tensor_once_in_each_direction(tmp_path: Path) -> None:
    path = tmp_path / "racks.json"
    arguments = ["--workers", "4", "--bytes", "400000", "--repetitions", "2", "--loss", "0.02", "--json", str(path)]
    assert racks.main(arguments) == 0
    found = {(record["group"], record["loss"]): record for record in json.loads(path.read_text())}
    assert set(found) == {(RACKS, 0.0), (SPINE, 0.0), (GLOO, 0.0), (RACKS, 0.02), (SPINE, 0.02)}
    assert 1.0 <= found[RACKS, 0.0]["uplink_tensors"] < 1.1
    assert 2.0 <= found[SPINE, 0.0]["uplink_tensors"] < 2.2
