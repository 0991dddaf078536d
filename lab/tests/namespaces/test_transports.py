"""A training gives the same parameters, bit for bit, over each transport. Needs root."""

import json
from pathlib import Path

import pytest

from wiresum_lab.namespaces.star import MANAGEMENT_DEVICE, Star
from wiresum_lab.namespaces.transports import missing, start_switch, start_worker

WORKERS = 2
PATIENCE_S = 120.0

pytestmark = [pytest.mark.usefixtures("namespaces"), pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def plain(namespaces: None, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The parameters of a training over UDP."""
    return digests("udp", tmp_path_factory.mktemp("training") / "udp")


@pytest.mark.slow
@pytest.mark.parametrize(("transport", "threads"), [("xdp", 1), ("dpdk", 1), ("dpdk", 2)])
def test_a_training_over_another_transport_equals_the_one_over_udp(
    transport: str, threads: int, plain: list[str], tmp_path: Path
) -> None:
    if reason := missing(transport):
        pytest.skip(reason)
    assert len(plain) == WORKERS
    assert len(set(plain)) == 1
    assert digests(transport, tmp_path / transport, threads) == plain


def digests(transport: str, folder: Path, threads: int = 1) -> list[str]:
    """The digest of each worker's parameters after an epoch, with so many threads at both ends."""
    folder.mkdir()
    with Star(WORKERS) as star:
        start_switch(star, transport, folder / "switch.log", "--threads", str(threads))
        store = {"MASTER_ADDR": star.workers[0].management_address, "MASTER_PORT": "29500", "OMP_NUM_THREADS": "1"}
        store |= {"WORLD_SIZE": str(WORKERS), "LOCAL_RANK": "0", "GLOO_SOCKET_IFNAME": MANAGEMENT_DEVICE}
        store |= {"WIRESUM_THREADS": str(threads)}
        command = ["-m", "wiresum_lab.demos.digits.train", "--epochs", "1", "--output", str(folder)]
        command += ["--run", "run", "wiresum"]
        workers = [
            start_worker(star, host, transport, command, folder / f"{rank}.log", {**store, "RANK": str(rank)})
            for rank, host in enumerate(star.workers)
        ]
        for worker in workers:
            code = worker.process.wait(PATIENCE_S)
            assert code == 0, f"{worker.said()}\n{(folder / 'switch.log').read_text()}"
    lines = [(folder / "run" / f"rank-{rank}.jsonl").read_text().splitlines()[-1] for rank in range(WORKERS)]
    return [json.loads(line)["digest"] for line in lines]
