from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_jobs_that_come_and_go_leave_nothing_behind(run_bench: Run) -> None:
    shape = ["--jobs", "4", "--workers", "6", "--leaves", "2"]
    finished = run_bench("benchmarks.cluster.admission", "--seconds", "0", "--json", *shape)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    outcome = json.loads(finished.stdout)
    assert outcome["leaks"] == {}
    assert outcome["jobs"] == int(shape[1]) * outcome["rounds"] > 0
    assert (outcome["after"]["jobs"], outcome["after"]["entries"], outcome["after"]["slots_taken"]) == (0, 0, 0)
    assert outcome["before"]["files"] > 3
    assert outcome["before"]["tasks"] > 0
    assert 0 < outcome["join_ms_median"] <= outcome["join_ms_p99"] <= outcome["join_ms_max"]
