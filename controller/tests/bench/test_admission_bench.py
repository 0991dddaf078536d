from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench/admission_bench.py"


@pytest.mark.parametrize("shape", [["--jobs", "24"], ["--jobs", "2", "--workers", "40", "--leaves", "2"]])
def test_jobs_that_come_and_go_leave_nothing_behind(shape: list[str]) -> None:
    command = [sys.executable, str(BENCH), "--seconds", "0", "--json", *shape]
    finished = subprocess.run(command, check=False, capture_output=True, text=True, timeout=110)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    outcome = json.loads(finished.stdout)
    assert outcome["leaks"] == {}
    assert outcome["jobs"] == int(shape[1]) * outcome["rounds"] > 0
    assert (outcome["after"]["jobs"], outcome["after"]["entries"], outcome["after"]["slots_taken"]) == (0, 0, 0)
    assert outcome["before"]["files"] > 3
    assert outcome["before"]["tasks"] > 0
    assert 0 < outcome["join_ms_median"] <= outcome["join_ms_p99"] <= outcome["join_ms_max"]
