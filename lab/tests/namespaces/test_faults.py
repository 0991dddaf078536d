"""Real processes over links that lose, duplicate and reorder packets: every sum is right, and no operation hangs.
Needs root."""

import json
from pathlib import Path

import pytest

from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star
from wiresum_lab.namespaces.transports import TRANSPORTS, missing, start_switch, start_worker

WORKERS = 3
PATIENCE_S = 150.0
PROGRAM = Path(__file__).with_name("faulty_worker.py")


pytestmark = [pytest.mark.usefixtures("namespaces"), pytest.mark.timeout(240)]

LINKS = {
    "loss": Link(rate_mbit=1000, loss=0.03),
    "duplication": Link(rate_mbit=1000, duplicate=0.05),
    "reordering": Link(rate_mbit=1000, reorder=0.05),
    "all at once": Link(rate_mbit=1000, loss=0.02, duplicate=0.02, reorder=0.02),
}
CASES = [("udp", name) for name in LINKS] + [(transport, "all at once") for transport in TRANSPORTS[1:]]


@pytest.mark.slow
@pytest.mark.parametrize(("transport", "name"), CASES, ids=[f"{transport}, {name}" for transport, name in CASES])
def test_every_element_is_right_over_bad_links(transport: str, name: str, tmp_path: Path) -> None:
    if reason := missing(transport):
        pytest.skip(reason)
    link = LINKS[name]
    with Star(WORKERS, link) as star:
        start_switch(star, transport, tmp_path / "switch.log")
        workers = [
            start_worker(star, host, transport, [str(PROGRAM), str(rank), str(WORKERS)], tmp_path / f"{rank}.log")
            for rank, host in enumerate(star.workers)
        ]
        for worker in workers:
            worker.process.wait(PATIENCE_S)
        reports = [json.loads(worker.said().splitlines()[-1]) for worker in workers]
    assert [report["wrong"] for report in reports] == [0] * WORKERS
    assert all(report["transport"].startswith(transport) for report in reports)
    if link.loss:
        assert all(report["retransmissions"] > 0 for report in reports), (
            "the links lost nothing, so the test proves nothing"
        )
