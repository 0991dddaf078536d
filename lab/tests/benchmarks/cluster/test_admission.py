from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [["--jobs", "24"], ["--jobs", "2", "--workers", "40", "--leaves", "2"]])
def test_jobs_that_come_and_go_leave_nothing_behind(run_bench: Run, shape: list[str]) -> None:
    finished = run_bench("benchmarks.cluster.admission", "--seconds", "0", "--json", *shape)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    outcome = json.loads(finished.stdout)
    assert outcome["leaks"] == {}
    assert outcome["jobs"] == int(shape[1]) * outcome["rounds"] > 0
    assert (outcome["after"]["jobs"], outcome["after"]["entries"], outcome["after"]["slots_taken"]) == (0, 0, 0)
    assert outcome["before"]["files"] > 3
    assert outcome["before"]["tasks"] > 0
    assert 0 < outcome["join_ms_median"] <= outcome["join_ms_p99"] <= outcome["join_ms_max"]
