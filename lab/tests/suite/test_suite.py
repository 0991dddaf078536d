"""The parts of the suite's plug-in that need no run of pytest."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from wiresum_lab import slowness
from wiresum_lab.patience import TimedOutError
from wiresum_lab.suite import proofs, times
from wiresum_lab.suite.outcomes import waited_for
from wiresum_lab.suite.times import Table


def test_the_factor_is_the_slower_of_what_was_measured_and_of_how_many_share_the_cores() -> None:
    quiet = [slowness.ROUND_S] * 3
    assert slowness.factor(quiet, busy=0, cores=2) == 1
    assert slowness.factor([seconds / 2 for seconds in quiet], busy=0, cores=2) == 1, "a fast machine waits no shorter"
    assert slowness.factor([slowness.ROUND_S, 100.0, slowness.ROUND_S], busy=0, cores=2) == 1, "one hiccup is no load"
    assert slowness.factor([4 * seconds for seconds in quiet], busy=0, cores=2) == 4
    assert slowness.factor(quiet, busy=4, cores=2) == 3
    assert slowness.factor([1e9] * 3, busy=0, cores=2) == slowness.FACTOR_MAX


def test_the_factor_is_measured_once_and_inherited() -> None:
    environment: dict[str, str] = {}
    slowness.share(environment)
    assert 1 <= float(environment[slowness.VARIABLE]) <= slowness.FACTOR_MAX
    environment[slowness.VARIABLE] = "7"
    slowness.share(environment)
    assert environment == {slowness.VARIABLE: "7"}


def raised(raises: object) -> BaseException:
    try:
        raises()  # type: ignore[operator]
    except BaseException as error:
        return error
    raise AssertionError


def fails_beside(first: BaseException) -> None:
    try:
        raise first
    except BaseException:
        raise AssertionError("it has not ended")  # noqa: B904 - without a cause


def test_only_a_wait_that_ran_out_is_a_time_out() -> None:
    assert waited_for(TimedOutError("the moon\nand its log")) == "the moon"
    assert waited_for(TimeoutError()) == "TimeoutError"
    assert waited_for(subprocess.TimeoutExpired("p4c", 60)) == "Command 'p4c' timed out after 60 seconds"
    assert waited_for(AssertionError("1 == 2")) is None
    assert waited_for(raised(lambda: fails_beside(TimedOutError("the moon")))) == "the moon"
    assert waited_for(raised(lambda: fails_beside(TimeoutError("the product's")))) is None, "a test may await that"


TABLE = Table(100, {"quick": {"a.py": 70.0, "b.py": 30.0}, "slow": {"b.py": 50.0}, "nightly": {}})


def test_a_file_counts_for_the_tiers_that_run_and_with_a_default_when_nobody_knows_it() -> None:
    assert [TABLE.of("b.py", ["quick"]), TABLE.of("b.py", ["quick", "slow"])] == [30, 80]
    assert TABLE.of("new.py", ["quick"]) == times.DEFAULT_S


def test_the_quick_tier_may_pass_its_budget_by_a_fifth() -> None:
    grown = TABLE._replace(seconds={**TABLE.seconds, "quick": {"a.py": 65.0, "b.py": 50.0, "c.py": 5.0}})
    assert grown.kept() and not grown.kept(["a.py", "new.py"])


def test_the_table_reads_what_it_has_written() -> None:
    assert times.parse(times.text_of(TABLE)) == TABLE


@pytest.mark.parametrize("change", ["p4src/common/admit.p4", "controller/wiresum/controller/p4runtime/client.py"])
def test_a_part_is_unproved_from_its_change_to_the_next_night(tmp_path: Path, change: str) -> None:
    for part in proofs.PARTS.values():
        for folder in part.sources:
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / proofs.PROVED).parent.mkdir(parents=True)
    assert proofs.unproved(tmp_path) == set(proofs.PARTS), "nothing was proved before the first night"
    proofs.write(tmp_path)
    assert proofs.unproved(tmp_path) == set()
    (tmp_path / change).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / change).write_text("control")
    assert proofs.unproved(tmp_path) == {"p4"}
    proofs.write(tmp_path)
    assert proofs.unproved(tmp_path) == set()
    assert proofs.proves("p4src/tests/test_compile_program.py::test_it", {"p4"})
    assert not proofs.proves("lab/tests/test_processes.py::test_it", {"p4"})


def test_a_page_is_proved_by_its_own_scenes() -> None:
    scenes = [f"{proofs.TYPED}[{name}]" for name in ("torch", "cluster, two hosts", "cluster, services")]
    assert [proofs.proves(scene, {"cluster"}) for scene in scenes] == [False, True, True]
    assert [proofs.proves(scene, {"torch"}) for scene in scenes] == [True, False, False]


def test_what_parts_name_exists() -> None:
    from wiresum_lab import REPOSITORY

    missing = [path for part in proofs.PARTS.values() for path in (*part.sources, *part.tests)]
    assert [path for path in missing if not (REPOSITORY / path.partition("::")[0]).exists()] == []


def test_a_file_that_was_measured_keeps_no_seconds_of_a_tier_that_it_left(tmp_path: Path) -> None:
    (tmp_path / times.TABLE).parent.mkdir(parents=True)
    (tmp_path / times.TABLE).write_text(times.text_of(TABLE))
    for file in ("a.py", "b.py"):
        (tmp_path / file).touch()
    times.write(tmp_path, {"quick": {"b.py": 2.0}, "slow": {"a.py": 3.0}})
    assert times.load(tmp_path).seconds == {"quick": {"b.py": 2.0}, "slow": {"a.py": 3.0}, "nightly": {}}
