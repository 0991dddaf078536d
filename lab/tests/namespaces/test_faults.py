"""Real processes over links that lose, duplicate and reorder packets: every sum is right, and no operation hangs.
Needs root."""

import json
from pathlib import Path

import pytest

from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star
from wiresum_lab.namespaces.transports import missing, start_switch, start_worker
from wiresum_lab.patience import PATIENCE_S

WORKERS = 3
PROGRAM = Path(__file__).with_name("faulty_worker.py")


pytestmark = [pytest.mark.usefixtures("namespaces"), pytest.mark.timeout(240)]

LINK = Link(rate_mbit=1000, loss=0.02, duplicate=0.02, reorder=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("transport", "threads"), [("udp", 1), ("xdp", 1), ("dpdk", 2)])
def test_every_element_is_right_over_bad_links(transport: str, threads: int, tmp_path: Path) -> None:
    if reason := missing(transport):
        pytest.skip(reason)
    with Star(WORKERS, LINK) as star:
        start_switch(star, transport, tmp_path / "switch.log", "--threads", str(threads))
        variables = {"WIRESUM_THREADS": str(threads)}
        workers = [
            start_worker(
                star, host, transport, [str(PROGRAM), str(rank), str(WORKERS)], tmp_path / f"{rank}.log", variables
            )
            for rank, host in enumerate(star.workers)
        ]
        for worker in workers:
            worker.process.wait(3 * PATIENCE_S)
        reports = [json.loads(worker.said().splitlines()[-1]) for worker in workers]
    assert [report["wrong"] for report in reports] == [0] * WORKERS
    assert all(report["transport"].startswith(transport) for report in reports)
    assert all(report["retransmissions"] > 0 for report in reports), (
        "the links lost nothing, so the test proves nothing"
    )
