"""The demo over bmv2 as a user runs it, with loss in both directions: the parameters equal those of the software
switch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from wiresum_lab.patience import PATIENCE_S

DEMO_S_MAX = 5 * PATIENCE_S
WORKERS = 3


@pytest.mark.nightly
@pytest.mark.timeout(DEMO_S_MAX + 20)
def test_training_over_bmv2_gives_the_same_bits_as_the_software_switch(bmv2: None, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "wiresum_lab.demos.bmv2_demo",
        "--output",
        str(tmp_path),
        "--workers",
        str(WORKERS),
        "--epochs",
        "1",
    ]
    command += ["--loss", "0.01"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEMO_S_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["parameters_identical"] is True
    assert found["retransmissions"] > 0
    assert found["accuracy"] == found["accuracy_software"]
    digests = {
        json.loads(path.read_text().splitlines()[-1])["digest"]
        for run in ("bmv2", "software")
        for path in (tmp_path / run).glob("rank-*.jsonl")
    }
    assert len(digests) == 1
    assert "bit for bit the same" in done.stdout
