from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.slow
def test_jobs_train_through_faults_and_attacks(run_bench: Run) -> None:
    """A short run of `make soak-cluster`."""
    finished = run_bench("soaks.cluster_soak", "--seconds", "12", "--seed", "11", "--json")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    outcome = json.loads(finished.stdout.splitlines()[-1])
    assert outcome["seed"] == 11
    assert outcome["steps"] > 0
    assert sum(outcome["came"].values()) > 2
