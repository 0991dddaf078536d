"""The study of scale: its bounds, its cases and its tables. host_agent/tests/sim/test_scale.py runs a small sweep."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from wiresum.join.constants import BELOW_ROOT_WORKERS_MAX, JOB_WORKERS_MAX, SWITCH_WORKERS_MAX
from wiresum_lab.benchmarks.scale import bounds, calibration
from wiresum_lab.benchmarks.scale.__main__ import main, parse
from wiresum_lab.benchmarks.scale.bounds import Path as LinkPath
from wiresum_lab.benchmarks.scale.case import Case, simulate
from wiresum_lab.benchmarks.scale.studies import RACKS, STUDIES
from wiresum_lab.simulation import racks

MB = 1e6
LINK_NS = 1000.0
FLAT = LinkPath(gbit=100, link_ns=LINK_NS)
PACKET_S = 1506 * 8e-11


def seconds_to_carry(payload_bytes: float) -> float:
    return payload_bytes / 1440 * PACKET_S


def test_a_ring_carries_the_tensor_nearly_twice_and_its_latency_grows_with_the_workers() -> None:
    step_s = 2 * LINK_NS * 1e-9 + PACKET_S
    for workers in (2, 8, 32):
        expected = 2 * (workers - 1) * (seconds_to_carry(MB / workers) + step_s)
        assert bounds.ring_s(workers, MB, FLAT) == pytest.approx(expected)


def test_halving_and_doubling_takes_a_logarithm_of_steps() -> None:
    step_s = 2 * LINK_NS * 1e-9 + PACKET_S
    for workers, doublings in ((2, 1), (8, 3), (32, 5)):
        expected = 2 * seconds_to_carry(MB * (workers - 1) / workers) + 2 * doublings * step_s
        assert bounds.halving_doubling_s(workers, MB, FLAT) == pytest.approx(expected)


def test_in_a_tree_a_path_goes_up_to_the_switch_that_both_ends_are_below() -> None:
    path = replace(FLAT, racks=(16, 2))
    assert [path.links_between(distance) for distance in (1, 8, 16, 32, 512)] == [2, 2, 4, 6, 6]
    latencies = [path.latency_s(links) for links in (2, 4, 6)]
    # Of 1,024 neighbours in a ring, 64 pairs are in different leaves, and 32 of these in different racks.
    mean = (960 * latencies[0] + 32 * latencies[1] + 32 * latencies[2]) / 1024
    expected = 2 * 1023 * (seconds_to_carry(MB / 1024) + mean)
    assert bounds.ring_s(1024, MB, path) == pytest.approx(expected)
    assert bounds.in_network_s(1024, MB, path) == pytest.approx(seconds_to_carry(MB) + path.latency_s(6))


def test_loss_costs_packets_and_round_trips() -> None:
    assert bounds.mean_rounds_lost(1, 0.5) == pytest.approx(1.0)  # a geometric distribution's mean
    assert bounds.mean_rounds_lost(1, 0.1) == pytest.approx(0.1 / 0.9)
    # The largest of n geometric variables is near log10 n, less a half, more Euler's constant over ln 10.
    assert bounds.mean_rounds_lost(10**6, 0.1) == pytest.approx(6 - 0.5 + 0.5772 / math.log(10), abs=0.02)
    lossy = replace(FLAT, loss=0.01)
    for time_of in (bounds.ring_s, bounds.halving_doubling_s):
        assert time_of(8, MB, replace(FLAT, loss=1e-9)) == pytest.approx(time_of(8, MB, FLAT), rel=1e-5)
        assert time_of(8, MB, lossy) > time_of(8, MB, FLAT) / (1 - 0.01) ** 2


MEASURED_MBIT = {(2, 0.0): 95.5, (4, 0.0): 94.4, (8, 0.0): 92.5, (8, 0.01): 90.4}
"""By workers and loss: docs/benchmark.md, "What it shows", fp32 at 100 Mbit/s."""


@pytest.mark.parametrize(("workers", "loss"), MEASURED_MBIT)
def test_the_simulation_takes_as_long_as_a_star_of_namespaces_did(workers: int, loss: float) -> None:
    record = {"workers": workers, "loss": loss, "link_mbit": calibration.LINK_MBIT, "bytes": 8_000_000}
    measured_s = 8 * record["bytes"] / (MEASURED_MBIT[workers, loss] * 1e6)
    # The star's eight workers and switch share two cores, so its own times vary by as much as that without loss.
    assert calibration.simulated_s(record) == pytest.approx(measured_s, rel=calibration.DEVIATION_MAX[loss] + 0.005)


def test_the_trees_of_the_study_are_such_as_switches_can_sum_for() -> None:
    for workers, sizes in RACKS.items():
        parents, leaves = racks(workers, *sizes)
        children = [*leaves, *parents[1:]]
        assert len(leaves) == workers <= JOB_WORKERS_MAX
        for switch in range(len(parents)):
            limit = BELOW_ROOT_WORKERS_MAX if switch else SWITCH_WORKERS_MAX
            assert 0 < children.count(switch) <= limit
    assert max(RACKS) == JOB_WORKERS_MAX


@pytest.mark.parametrize("a_host", [2, 4])
def test_workers_of_a_host_put_as_much_on_its_link_as_one_does(a_host: int) -> None:
    alone = simulate(Case(workers=4, megabytes=0.1))
    shared = simulate(Case(workers=4 * a_host, a_host=a_host, megabytes=0.1))
    assert shared.link_packets == alone.link_packets
    assert shared.seconds == pytest.approx(alone.seconds, rel=0.01)
    assert shared.case.bound_s == alone.case.bound_s


@pytest.mark.parametrize("link_ns", [1000, 20_000])
def test_a_link_that_lets_a_burst_pass_first_is_filled(link_ns: int) -> None:
    """Then a queue makes round trips hundreds of times longer, beyond any RTO that was measured before."""
    outcome = simulate(Case(workers=4, gbit=0.1, link_ns=link_ns, slots=256, burst_bytes=32_000))
    assert outcome.of_bound > 0.9
    assert outcome.questions < outcome.packets_sent / 20


@pytest.mark.nightly
def test_two_tables_are_simulated_printed_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    studies = ("jobs", "loss")
    options = ["--quick", "--workers-max", "8", "--json", str(tmp_path / "scale.json"), "--draw", str(tmp_path)]
    assert main([*studies, *options]) == 0
    printed = capsys.readouterr().out
    assert all(STUDIES[name].title in printed for name in studies)
    records = json.loads((tmp_path / "scale.json").read_text())
    assert {record["study"] for record in records} == {*studies}
    assert all(record["seconds"] > record["bound_s"] > 0 for record in records)
    assert (tmp_path / "scale-loss.png").stat().st_size > 10_000


def test_one_case_says_all_that_was_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["case", "workers=32", "racks=16,", "megabytes=0.5", "loss=0.001", "seed=3"]) == 0
    printed = capsys.readouterr().out
    assert "32 workers, 100 Gbit/s, loss 0.001, 0.5 MB" in printed
    assert "retransmissions" in printed and "buffer_held_max" in printed


def test_an_unknown_table_is_refused_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["los"])
    refusal = capsys.readouterr().err
    assert all(name in refusal for name in STUDIES)


def test_a_star_that_gives_no_figures_is_no_calibration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(calibration, "REPOSITORY", tmp_path)
    monkeypatch.setattr(calibration.sys, "executable", "/bin/false")
    with pytest.raises(calibration.CalibrationError, match="star of 2 workers gave no figures"):
        calibration.star_records(2)
