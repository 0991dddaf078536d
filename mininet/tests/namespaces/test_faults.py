"""Real processes over links that lose, duplicate and reorder packets: every sum is right, and all ends. Needs root."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from links import Link
from star import Star

WORKERS = 3
CONTROL_PORT = 43487
PATIENCE_S = 150.0
PROGRAM = Path(__file__).with_name("faulty_worker.py")


pytestmark = [pytest.mark.usefixtures("namespaces"), pytest.mark.timeout(240)]

LINKS = {
    "loss": Link(rate_mbit=1000, loss=0.03),
    "duplication": Link(rate_mbit=1000, duplicate=0.05),
    "reordering": Link(rate_mbit=1000, reorder=0.05),
    "all at once": Link(rate_mbit=1000, loss=0.02, duplicate=0.02, reorder=0.02),
}


@pytest.mark.slow
@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS.keys())
def test_every_element_is_right_over_bad_links(link: Link) -> None:
    with Star(WORKERS, link) as star:
        control = f"{star.switch.management_address}:{CONTROL_PORT}"
        switch = [sys.executable, "-m", "wiresum.cli", "switch", "--bind", star.switch.address]
        switch += ["--control", control, "--insecure"]
        environment = {**os.environ, "WIRESUM_SWITCH": control, "WIRESUM_INSECURE": "1"}
        star.switch.popen(switch, stdout=subprocess.DEVNULL)
        workers = [
            host.popen(
                [sys.executable, str(PROGRAM), str(rank), str(WORKERS)],
                environment={**environment, "WIRESUM_ADDRESS": host.address},
                stdout=subprocess.PIPE,
            )
            for rank, host in enumerate(star.workers)
        ]
        reports = [json.loads(worker.communicate(timeout=PATIENCE_S)[0]) for worker in workers]
    assert [report["wrong"] for report in reports] == [0] * WORKERS
    if link.loss:
        assert all(report["retransmissions"] > 0 for report in reports), "the links lost nothing, so nothing was shown"
