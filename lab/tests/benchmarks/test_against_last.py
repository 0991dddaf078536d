"""The comparison with an earlier revision: what counts, and that a build of another revision takes its turns."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from wiresum_lab.benchmarks.packets import against_last
from wiresum_lab.benchmarks.packets.against_last import compared, main


def test_the_least_of_all_turns_counts_and_what_one_of_both_lacks_does_not() -> None:
    records = compared({"receive": [120.0, 100.0], "old": [1.0]}, {"receive": [105.0, 300.0], "new": [1.0]})
    assert records == [{"what": "receive", "ns then": 100.0, "ns now": 105.0, "ratio": 1.05}]


@pytest.mark.parametrize(("now", "status"), [(109.0, 0), (111.0, 1)])
def test_a_tenth_slower_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, now: float, status: int) -> None:
    costs = {"now": now, "then": 100.0}
    monkeypatch.setattr(against_last, "built", lambda repository: "now" if repository.name != "then" else "then")
    monkeypatch.setattr(against_last, "costs_of", lambda bench, *_: {"receive": costs[bench]})
    assert main(["--revision", "HEAD", "--turns", "2", "--json", str(tmp_path / "records.json")]) == status


def test_without_a_tag_it_says_what_to_give(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(against_last, "last_release", lambda: "")
    with pytest.raises(SystemExit):
        main([])
    assert "--revision" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0, reason="the benchmark makes network namespaces, which needs root")
def test_a_revision_is_built_and_measured(tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    arguments = ["--revision", "HEAD", "--turns", "1", "--seconds", "0.05", "--only", "with offloads"]
    assert main([*arguments, "--json", str(path)]) in (0, 1)
    names: Sequence[str] = [record["what"] for record in json.loads(path.read_text())]
    assert "UDP, with offloads" in names and len(names) > 3
