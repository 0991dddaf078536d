"""A small run of the benchmark of small sums, with real processes."""

import json
from pathlib import Path

import pytest

from wiresum_lab.benchmarks.small import PRECISIONS, TRANSPORTS, main
from wiresum_lab.namespaces.transports import missing


@pytest.mark.nightly
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_each_kind_of_sum_is_measured(tmp_path: Path, transport: str) -> None:
    if reason := missing(transport):
        pytest.skip(reason)
    path = tmp_path / "small.json"
    assert main(["--calls", "100", "--transports", transport, "--json", str(path)]) == 0
    results = json.loads(path.read_text())
    assert [result["precision"] for result in results] == [*PRECISIONS]
    for result in results:
        assert 0 < result["tenth_us"] <= result["median_us"] <= result["nine_tenths_us"]
