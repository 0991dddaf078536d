"""A small run of the whole benchmark: real systems on real links. Needs root; systems that are not installed are
omitted."""

import json
import shutil
from pathlib import Path

import pytest

from wiresum_lab.benchmarks.against_gloo_and_mpi import __main__ as dense
from wiresum_lab.benchmarks.against_gloo_and_mpi.__main__ import main, parse, stars
from wiresum_lab.benchmarks.against_gloo_and_mpi.systems import SYSTEMS, SYSTEMS_BY_DEFAULT
from wiresum_lab.benchmarks.program import Case

needs_gloo_on_a_star = pytest.mark.usefixtures("gloo_on_a_star")


@needs_gloo_on_a_star
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_every_installed_system_sums_exactly_on_shaped_and_lossy_links(tmp_path: Path) -> None:
    path = tmp_path / "results" / "allreduce.json"
    arguments = ["--only", "rate", "loss", "--workers", "2", "--link-mbit", "100", "--bytes", "400000"]
    assert main([*arguments, "--repetitions", "2", "--json", str(path)]) == 0
    records = json.loads(path.read_text())
    installed = {name for name in SYSTEMS_BY_DEFAULT if SYSTEMS[name].missing() is None}
    assert {record["system"] for record in records if not record["loss"]} == installed
    assert {record["system"] for record in records if record["loss"] == 0.01} == installed - {"openmpi"}
    for record in records:
        assert len(record["repetitions"]) == 2
        assert 0 < record["of_bound"] <= 1
    if "wiresum" in installed:
        lanes = {record["bits"] for record in records if record["system"] == "wiresum"}
        assert lanes == {32, 16, 8}


@pytest.mark.usefixtures("namespaces")
@pytest.mark.nightly
def test_unshaped_links_are_measured_at_both_mtus(tmp_path: Path) -> None:
    path = tmp_path / "allreduce.json"
    arguments = ["--systems", "wiresum", "--workers", "2", "--only", "unshaped", "--bytes", "400000"]
    assert main([*arguments, "--repetitions", "1", "--json", str(path)]) == 0
    records = json.loads(path.read_text())
    assert [(record["link_mbit"], record["mtu"]) for record in records] == [(None, 1500), (None, 9000)]
    # The last switch that was started is the one with jumbo frames.
    assert "2232 lanes" in (tmp_path / "log" / "wiresum-switch.log").read_text()


def test_the_most_workers_lose_packets_and_only_few_have_unshaped_links() -> None:
    options = parse(["--workers", "2", "8"])
    assert [(workers, [str(link) for link in links]) for workers, links in stars(options)] == [
        (2, ["100 Mbit/s", "1000 Mbit/s"]),
        (8, ["100 Mbit/s", "1000 Mbit/s", "100 Mbit/s, loss 1.00%"]),
        (2, ["unshaped"]),
        (2, ["unshaped, MTU 9000"]),
    ]


def test_a_peer_sends_floats_as_they_are_and_a_ring_has_its_own_bound() -> None:
    alike = {"workers": 8, "link_mbit": 100.0, "bytes": 14_400_000, "loss": 0.0, "mtu": 1500}
    took = {"worker_cpu_s": 0.144, "switch_cpu_s": 0.288, "retransmissions": 1}
    own = Case({"system": "wiresum", "bits": 8} | alike, [{"seconds": each} | took for each in (2.0, 1.0, 9.0)])
    nothing = {"switch_cpu_s": None, "retransmissions": None}
    ring = Case({"system": "gloo", "bits": 32} | alike, [{"seconds": 4.0} | took | nothing])
    found, of_ring = (dense.figures(case, [own, ring]) for case in (own, ring))
    assert found["goodput_mbit"] == pytest.approx(57.6)
    assert (found["over_gloo"], found["over_openmpi"], found["sent_again"]) == (2.0, None, 3)
    assert (found["worker_cpu_s_per_gb"], found["switch_cpu_s_per_gb"]) == pytest.approx((10.0, 20.0))
    assert found["of_own_bound"] == found["of_bound"] < 0.2
    assert of_ring["of_own_bound"] == pytest.approx(1.75 * of_ring["of_bound"], rel=0.02)
    assert (of_ring["switch_cpu_s_per_gb"], of_ring["sent_again"]) == (None, None)


def test_a_missing_system_is_left_out_with_advice_on_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    assert dense.installed(["openmpi"]) == []
    output = capsys.readouterr().out
    assert "openmpi is left out: install" in output and "apt install openmpi-bin" in output
