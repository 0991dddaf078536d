"""What all benchmarks share: turns, comparisons, records and their table."""

import os
from pathlib import Path

import pytest

from wiresum_lab.benchmarks import program
from wiresum_lab.benchmarks.program import Case, Options, right, table, take_turns
from wiresum_lab.ranks.ranks import RanksError


def case(group: str, *seconds: float, **settings: object) -> Case:
    return Case({"group": group, "bytes": 1_000_000} | settings, [{"seconds": each} for each in seconds])


def test_cases_take_turns_and_the_first_are_not_counted() -> None:
    cases, done = [case("a"), case("b")], []

    def go(each: Case) -> dict[str, float]:
        done.append((each["group"], draws[-1]))
        return {"seconds": float(draws[-1])}

    draws: list[int] = []
    take_turns(cases, 2, 1, draws.append, go)
    assert done == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert [each.all("seconds") for each in cases] == [[1.0, 2.0]] * 2


def test_a_case_is_compared_with_the_one_that_differs_in_nothing_else() -> None:
    own, peer, other = case("wiresum", 1.0, 2.0, 9.0, workers=8), case("gloo", 4.0, workers=8), case("gloo", 8.0)
    cases = [own, other, peer]
    assert own.seconds == 2 and own.goodput_mbit() == 4
    assert own.times(cases, group="gloo") == 2
    assert own.times(cases, group="openmpi") is None and other.times(cases, group="wiresum") is None


def test_a_wrong_sum_is_an_error_that_names_the_group() -> None:
    assert right("gloo", [{"wrong_elements": 0}] * 2)
    with pytest.raises(RanksError, match="3 elements of a sum by 'gloo' are wrong"):
        right("gloo", [{"wrong_elements": 0}, {"wrong_elements": 3}])


def test_the_table_has_what_is_the_same_in_all_above_and_no_lists() -> None:
    records = [
        {"group": "a", "workers": 8, "seconds": 0.123456, "of_bound": None, "repetitions": []},
        {"group": "bcd", "workers": 8, "seconds": 1234.5678, "of_bound": 1.0, "repetitions": []},
    ]
    assert table(records).splitlines() == [
        "workers 8",
        "group  seconds  of_bound",
        "    a   0.1235         -",
        "  bcd     1235         1",
    ]
    assert table(records[:1]).splitlines()[0].split() == ["group", "workers", "seconds", "of_bound"]


def test_an_options_default_says_its_type(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Options("some", "What it is.\nMore.", workers=[2, 4])
    parser.add("--loss", 0.0, "on every link")
    options = parser.parse_args(["--workers", "8", "16", "--loss", "1"])
    assert (options.workers, options.link_mbit, options.loss) == ([8, 16], 100.0, 1.0)
    assert options.json == Path("build/bench/some.json")
    with pytest.raises(SystemExit):
        parser.parse_args(["--workers", "few"])
    assert "make bench NAMES=some ARGS='...': error: argument --workers" in capsys.readouterr().err


def test_without_root_it_says_so_and_measures_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    options = Options("some", None).parse_args(["--json", str(tmp_path / "none" / "some.json")])
    assert program.run(options, lambda _: pytest.fail("it measures"), lambda case, cases: {}) == 2
    assert "need root" in capsys.readouterr().out and not (tmp_path / "none").exists()
