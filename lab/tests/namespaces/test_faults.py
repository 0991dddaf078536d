"""Real processes over links that lose, duplicate and reorder packets: every sum is right, and no operation hangs.
Needs root."""

import json
from pathlib import Path

import pytest

from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star
from wiresum_lab.namespaces.transports import missing, start_switch, start_worker
from wiresum_lab.patience import PATIENCE_S

HOSTS = 3
PROGRAM = Path(__file__).with_name("faulty_worker.py")


pytestmark = [pytest.mark.usefixtures("namespaces"), pytest.mark.timeout(240)]

LINK = Link(rate_mbit=1000, loss=0.02, duplicate=0.02, reorder=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "threads", "a_host"),
    [("udp", 1, 1), ("xdp", 1, 1), ("dpdk", 2, 1), ("udp", 2, 2), ("xdp", 1, 2), ("dpdk", 2, 2)],
)
def test_every_element_is_right_over_bad_links(transport: str, threads: int, a_host: int, tmp_path: Path) -> None:
    """Workers of one host share a stream, over whatever transport."""
    if reason := missing(transport):
        pytest.skip(reason)
    with Star(HOSTS, LINK) as star:
        start_switch(star, transport, tmp_path / "switch.log", "--threads", str(threads))
        variables = {"WIRESUM_THREADS": str(threads)}
        hosts = [host for host in star.workers for _ in range(a_host)]
        workers = [
            start_worker(
                star, host, transport, [str(PROGRAM), str(rank), str(len(hosts))], tmp_path / f"{rank}.log", variables
            )
            for rank, host in enumerate(hosts)
        ]
        for worker in workers:
            worker.process.wait(3 * PATIENCE_S)
        reports = [json.loads(worker.said().splitlines()[-1]) for worker in workers]
    assert [report["wrong"] for report in reports] == [0] * len(hosts)
    senders = [report["transport"] for report in reports[::a_host]]
    assert all(name.startswith(transport) for name in senders), senders
    assert all(len(report["sharing"]) == (a_host if a_host > 1 else 0) for report in reports), reports
    assert all(report["retransmissions"] > 0 for report in reports), (
        "the links lost nothing, so the test proves nothing"
    )
