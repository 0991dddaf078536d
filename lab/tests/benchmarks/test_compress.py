"""A small run of the benchmark of compressed training, on real links as root; and the memory that its methods keep."""

import json
from pathlib import Path

import numpy as np
import pytest


def test_a_method_keeps_its_vectors_its_state_and_an_array_to_use_again_as_the_guide_says(tmp_path: Path) -> None:
    from wiresum.experiments.adaptive_optimizers import METHODS, guide_table
    from wiresum_lab.benchmarks.compress import memory
    from wiresum_lab.benchmarks.compress.__main__ import main

    path = tmp_path / "compress.json"
    assert main(["--memory", "--workers", "4", "--json", str(path)]) == 0
    table = guide_table()
    for record in json.loads((tmp_path / "compress-memory.json").read_text()):
        guide = table.pop(record["method"])
        assert record["kept"] == pytest.approx(guide["kept"], abs=0.11), record
        assert record["peak"] == pytest.approx(guide["peak"], rel=0.1), record
    assert table == {}
    side = 128
    gradient_bytes = 4 * side * (side + 2)
    for name, method in METHODS.items():
        kept, peak, engine = memory.memory_of(method, 4, side)
        state = engine.state_dict()
        stores = [*state["own"][0].values(), state["common"], *(one["state"] for one in state["states"])]
        stores += [dict(enumerate(vectors)) for vectors in engine._spare[0].values()]
        held = sum(vector.nbytes for store in stores for vector in store.values())
        assert kept * gradient_bytes == pytest.approx(held, abs=0.3 * gradient_bytes), name
        assert peak >= kept + 1, "a step has a result"


@pytest.mark.nightly
def test_training_validation_and_test_images_are_disjoint(tmp_path: Path) -> None:
    from wiresum_lab.benchmarks.compress.__main__ import write_digits

    write_digits(tmp_path / "digits.npz")
    with np.load(tmp_path / "digits.npz") as arrays:
        parts = [arrays[f"{part}images"] for part in ("", "validation_", "test_")]
        assert [len(arrays[f"{part}labels"]) for part in ("", "validation_", "test_")] == [len(part) for part in parts]
    images = {image.tobytes() for part in parts for image in part}
    assert len(images) == sum(map(len, parts)) == 1797


@pytest.mark.nightly
@pytest.mark.usefixtures("gloo_on_a_star")
@pytest.mark.timeout(300)
def test_every_method_trains_and_compressed_ones_send_less(tmp_path: Path) -> None:
    from wiresum_lab.benchmarks.compress.__main__ import main
    from wiresum_lab.benchmarks.compress.rank import DENSE_8, DENSE_16, INT_DIANA, WAYS, WIRESUM

    path = tmp_path / "compress.json"
    arguments = ["--workers", "2", "--hidden", "64", "--timed", "2", "--steps", "40", "--every", "20"]
    assert main([*arguments, "--json", str(path)]) == 0
    ways = {way["way"]: way for way in json.loads(path.read_text())}
    assert set(ways) == set(WAYS)
    for way in ways.values():
        assert len(way["repetitions"]) == 2
        assert way["steps"] == [7, 27, 40]
        assert len(way["accuracy"]) == len(way["validation"]) == 3
    dense = ("gloo", WIRESUM, DENSE_16, DENSE_8, INT_DIANA)
    assert all(ways[name]["accuracy"][-1] > 20 for name in dense), "the networks have learned something"
    assert ways["gloo"]["accuracy"] == pytest.approx(ways["wiresum"]["accuracy"], abs=3)
    received = {name: way["received_megabytes"] for name, way in ways.items()}
    assert received["wiresum-8"] < received["wiresum-16"] * 0.7 < received["wiresum"] * 0.5
    assert received["gtopk"] < received["int-diana"] / 2 < received["wiresum"] / 4
    assert path.with_suffix(".png").stat().st_size > 1000
