"""The exercise, its solution and its checker. Needs p4c, and bmv2 for all but the first test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from wiresum_lab import REPOSITORY
from wiresum_lab.namespaces.star import Star, StarError
from wiresum_mininet import exercise_check as check

EXERCISE = REPOSITORY / "mininet" / "exercise" / "verdict.p4"
SOLUTION = REPOSITORY / "p4src" / "common" / "verdict.p4"

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def tools() -> None:
    """Skips where the checker cannot run, with the reason."""
    for tool in ("p4c-bm2-ss", "simple_switch_grpc"):
        if shutil.which(tool) is None:
            pytest.skip(f"the checker of the exercise is not tested: {tool} is not on PATH")
    try:
        Star(1).close()
    except StarError as error:
        pytest.skip(f"the checker of the exercise is not tested: {error}")


def test_the_exercise_is_the_programs_own_table_without_five_rows() -> None:
    exercise, solution = EXERCISE.read_text().splitlines(), SOLUTION.read_text().splitlines()
    (todo,) = [line for line in exercise if line not in solution]
    assert "TODO" in todo
    left_out = [line for line in solution if line not in exercise]
    assert [line.split(":")[1].strip() for line in left_out] == [
        "refuse(reason_t.DUPLICATE);",
        "resend();",
        "report_missing();",
        "complete();",
        "hold();",
    ]
    at = exercise.index(todo)
    assert exercise[:at] + left_out + exercise[at + 1 :] == solution


@pytest.mark.nightly
def test_the_exercise_fails_and_shows_the_expected_output(tools: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main([str(EXERCISE), "sums", "questions"]) == 1
    output = capsys.readouterr().out
    assert "questions.txt:7: 1.1 QUESTION round=1 -> missing" in output
    assert "2 files fail." in output


def test_the_solution_passes(tools: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main([str(SOLUTION), "sums"]) == 0
    assert "Every packet is answered as the protocol says." in capsys.readouterr().out


@pytest.mark.nightly
def test_a_wrong_row_is_found(tools: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = SOLUTION.read_text().replace(
        "(1, 1, 1, 1, _, 1, 1, 1, _, _, _) : resend();", "(1, 1, 1, 1, _, 1, 1, 1, _, _, _) : complete();"
    )
    assert wrong != SOLUTION.read_text()
    (tmp_path / "verdict.p4").write_text(wrong)
    assert check.main([str(tmp_path / "verdict.p4"), "duplicates"]) == 1
    assert "duplicates.txt" in capsys.readouterr().out


def test_complaints_of_p4c_are_shown(tools: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "verdict.p4").write_text("control Verdict {")
    assert check.main([str(tmp_path / "verdict.p4")]) == 2
    assert "p4c does not take the program" in capsys.readouterr().out
    assert check.main([str(tmp_path / "none.p4")]) == 2
    assert "cannot read it" in capsys.readouterr().out
