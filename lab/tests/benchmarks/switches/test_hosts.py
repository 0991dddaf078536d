"""A small run of the benchmark with several workers on a host: real groups on real links. Needs root."""

import argparse
import json
from pathlib import Path

import pytest

from wiresum_lab.benchmarks.program import Case
from wiresum_lab.benchmarks.switches import hosts
from wiresum_lab.benchmarks.switches.hosts import APART, CHECKED, GLOO, NARROW, SHARED, shape_of


def bound_mbit(group: str, count: int = 2) -> float | None:
    return hosts.bound_mbit(
        Case({"group": group, "workers": 8, "link_mbit": 100.0, "bytes": 8_000_000, "hosts": count})
    )


def test_apart_a_hosts_link_carries_the_tensors_of_all_its_workers() -> None:
    shared = bound_mbit(SHARED)
    assert shared == pytest.approx(96, abs=0.5)
    assert bound_mbit(NARROW) == pytest.approx(4 * shared, rel=0.02)
    assert bound_mbit(APART) == pytest.approx(shared / 4)
    assert bound_mbit(APART, 4) == pytest.approx(shared / 2)
    assert bound_mbit(GLOO) == pytest.approx(shared * 8 / 14, rel=0.02)


def test_on_one_host_no_link_is_a_bound() -> None:
    assert bound_mbit(SHARED, 1) is None


@pytest.mark.parametrize("text", ["2", "x4", "0x4", "2x", "2x4x1", "ax2"])
def test_a_shape_is_hosts_by_workers(text: str) -> None:
    assert shape_of("2x4") == (2, 4)
    with pytest.raises(argparse.ArgumentTypeError, match="is not like 2x4"):
        shape_of(text)


@pytest.mark.usefixtures("gloo_on_a_star")
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_workers_that_share_a_stream_sum_exactly_and_take_the_link_once(tmp_path: Path) -> None:
    path = tmp_path / "hosts.json"
    arguments = ["--shapes", "2x2", "--bytes", "2000000", "--repetitions", "2", "--json", str(path)]
    assert hosts.main(arguments) == 0
    found = {record["group"]: record for record in json.loads(path.read_text())}
    assert list(found) == [SHARED, CHECKED, NARROW, APART, GLOO]
    assert found[CHECKED]["over_shared"] == found[SHARED]["seconds"] / found[CHECKED]["seconds"]
    assert found[SHARED]["goodput_mbit"] > found[APART]["bound_mbit"], "each of its own could not be so fast"
