"""A small run of the whole benchmark: real systems on real links. Needs root; systems that are not installed are
omitted."""

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from wiresum_lab.benchmarks.against_gloo_and_mpi import __main__ as dense
from wiresum_lab.benchmarks.against_gloo_and_mpi.__main__ import main, parse, stars
from wiresum_lab.benchmarks.against_gloo_and_mpi.records import Case, Repetition
from wiresum_lab.benchmarks.against_gloo_and_mpi.systems import SYSTEMS, SYSTEMS_BY_DEFAULT
from wiresum_lab.ranks.ranks import RanksError

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
        assert record["error"] is None
        assert record["correct"]
        assert len(record["seconds"]) == 2
        assert 0 < record["bound_ratio"] <= 1
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
    assert all(record["correct"] for record in records)
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


def test_a_system_that_fails_is_left_out_and_its_error_is_in_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, abandoned = [], []
    found = Repetition(1.0, 0.1, None, 0, None)

    def repeat(system: str, bits: int, elements: int, repetition: int, timeout_s: float) -> Repetition:
        tried.append((system, repetition))
        if (system, repetition) == ("gloo", 1):
            raise RanksError("gloo does not answer")
        return found

    class Name(str):
        def abandon(self) -> None:
            abandoned.append(self)

    monkeypatch.setattr(dense, "repeat", repeat)
    ranks: Any = {name: Name(name) for name in ("wiresum", "gloo")}
    cases = [Case(name, 2, 100.0, 4000) for name in ("wiresum", "gloo", "openmpi")]
    own, gloo = dense.take_turns(ranks, cases, 2, Console(quiet=True))
    assert tried == [("wiresum", 0), ("gloo", 0), ("wiresum", 1), ("gloo", 1), ("wiresum", 2)]
    assert (own.repetitions, own.error, gloo.repetitions, gloo.error) == ([found] * 2, None, [], "gloo does not answer")
    assert abandoned == ["gloo"] and list(ranks) == ["wiresum"]


def test_without_root_the_error_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["--systems", "gloo"]) == 2
    assert "need root" in capsys.readouterr().out


def test_a_missing_system_is_left_out_with_advice_on_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    console = Console(record=True, file=io.StringIO())
    assert dense.installed(["openmpi"], console) == []
    output = " ".join(console.export_text().split())
    assert "Open MPI is left out: install" in output and "apt install openmpi-bin" in output
