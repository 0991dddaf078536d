"""A small run of the benchmark beside TCP: real groups and connections on real links. Needs root."""

import json
from pathlib import Path

import pytest

from wiresum_lab.benchmarks.tcp import main
from wiresum_lab.namespaces.tcp_flow import mbit_per_s


@pytest.mark.usefixtures("gloo_on_a_star")
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_job_and_connections_share_a_link(tmp_path: Path) -> None:
    path = tmp_path / "tcp.json"
    arguments = ["--bytes", "400000", "--seconds", "2", "--settle-seconds", "0.5", "--json", str(path)]
    assert main([*arguments, "--flows", "0", "2"]) == 0
    cases = json.loads(path.read_text())
    both = ("wiresum", "gloo")
    assert [(case["group"], case["flows"]) for case in cases] == [(group, flows) for flows in (0, 2) for group in both]
    for case in cases:
        assert case["job_mbit"] > 0
        assert (case["tcp_mbit"] > 0) == (case["flows"] > 0)


def test_the_rate_is_of_what_came_between_two_times() -> None:
    printed = "0.9 500000\n1.0 1000000\n2.0 2000000\n3.0 4000000\n3.1 9000000\n3.2 9"
    assert mbit_per_s(printed, 1.0, 3.0) == 12.0
    with pytest.raises(ValueError, match="the sink printed 1 lines"):
        mbit_per_s(printed, 1.5, 2.5)
