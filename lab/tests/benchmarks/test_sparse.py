"""A small run of the sparse benchmark: real groups on real links. Needs root."""

import json
from pathlib import Path

import numpy as np
import pytest

from wiresum_lab.benchmarks.sparse.__main__ import main

pytestmark = pytest.mark.nightly


def test_the_given_share_of_blocks_is_drawn_and_aligned_on_request() -> None:
    from wiresum_lab.benchmarks.sparse.rank import chosen_blocks

    for rank in range(3):
        assert chosen_blocks(1000, "independent", 0.9, 1, rank).sum() == 100
    aligned = [chosen_blocks(1000, "aligned", 0.9, 1, rank) for rank in range(2)]
    assert np.array_equal(*aligned)
    independent = [chosen_blocks(1000, "independent", 0.9, 1, rank) for rank in range(2)]
    assert not np.array_equal(*independent)
    assert not np.array_equal(aligned[0], chosen_blocks(1000, "aligned", 0.9, 2, 0)), "draws differ"


def test_the_bound_of_a_worker_counts_its_blocks_headers_and_prologue() -> None:
    from wiresum_lab.benchmarks.sparse.rank import bytes_needed

    packet = 24 + 4 * 360
    # The counts of 8 workers have 4 bits each, so 2880 fit into a packet.
    needed = bytes_needed(blocks=2880 - 1056 + 1, union=100, mine=10, block=360, workers=8)
    assert needed == 10 * packet + 90 * 24 + 2 * packet
    assert bytes_needed(blocks=36000, union=361, mine=10, block=1, workers=8) == 2 * packet + packet


@pytest.mark.usefixtures("gloo_on_a_star")
@pytest.mark.timeout(300)
def test_every_method_sums_exactly_and_sparse_ones_send_only_nonzero_blocks(tmp_path: Path) -> None:
    path = tmp_path / "sparse.json"
    arguments = ["--workers", "2", "--bytes", "400000", "--repetitions", "2", "--losses", "0"]
    arguments += ["--sparsities", "0.9", "0.0", "--scattered", "0.99"]
    assert main([*arguments, "--json", str(path)]) == 0
    cases = json.loads(path.read_text())
    kinds = [("aligned", 0.9), ("aligned", 0.0), ("independent", 0.9), ("aligned", 0.99), ("independent", 0.99)]
    assert [(case["placement"], case["sparsity"], case["group"]) for case in cases] == [
        (*kind, group) for kind in kinds for group in ("sparse", "dense", "gloo")
    ]
    assert all(len(case["repetitions"]) == 2 for case in cases)
    sparse = cases[::3]
    shares = [case["union_fraction"] for case in sparse]
    assert shares[:2] == pytest.approx([28 / 278, 1.0]) and shares[2] > 28 / 278
    for case in sparse:
        if case["sparsity"] == 0.9:
            for record in case["repetitions"]:
                # The rest are retransmissions, and headers of the round for exponents.
                sent, needed = sum(record["bytes_sent"]), sum(record["bytes_needed"])
                assert needed <= sent < 1.5 * needed
