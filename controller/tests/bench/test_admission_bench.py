from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench/admission_bench.py"


def test_jobs_that_come_and_go_leave_nothing_behind() -> None:
    command = [sys.executable, str(BENCH), "--seconds", "0", "--jobs", "24", "--json"]
    finished = subprocess.run(command, check=False, capture_output=True, text=True, timeout=110)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    outcome = json.loads(finished.stdout)
    assert outcome["leaks"] == {}
    assert outcome["jobs"] == 24 * outcome["rounds"] > 0
    assert (outcome["after"]["jobs"], outcome["after"]["entries"], outcome["after"]["slots_taken"]) == (0, 0, 0)
    assert outcome["before"]["files"] > 3
    assert outcome["before"]["tasks"] > 0
    assert 0 < outcome["join_ms_median"] <= outcome["join_ms_p99"] <= outcome["join_ms_max"]
