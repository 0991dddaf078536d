from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench/cluster_soak.py"


def test_jobs_train_through_faults_and_attacks() -> None:
    """A short one; `make soak-cluster` is the long one."""
    command = [sys.executable, str(BENCH), "--seconds", "12", "--seed", "11", "--json"]
    finished = subprocess.run(command, check=False, capture_output=True, text=True, timeout=110)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    outcome = json.loads(finished.stdout.splitlines()[-1])
    assert outcome["seed"] == 11
    assert outcome["wrong"] == 0
    assert outcome["steps"] > 0
    assert sum(outcome["came"].values()) > 2
