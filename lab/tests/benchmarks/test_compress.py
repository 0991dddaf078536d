"""The rules of time to loss; a small run on real links, as root; and the memory that the methods keep."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pytest

from wiresum_lab.benchmarks.program import Case


def test_a_method_keeps_its_vectors_its_state_and_an_array_to_use_again_as_the_guide_says(tmp_path: Path) -> None:
    from wiresum.experiments.adaptive_optimizers import METHODS, guide_table
    from wiresum_lab.benchmarks.compress import memory

    path = tmp_path / "memory.json"
    assert memory.main(["--workers", "4", "--json", str(path)]) == 0
    table = guide_table()
    for record in json.loads(path.read_text()):
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


class Scripted:
    """Ranks that train as a script says: the seconds of a step, and the loss after each, by way."""

    def __init__(self, **ways: tuple[float, list[float]]) -> None:
        self._ways = ways

    def command(self, name: str, *words: Any) -> list[Any]:
        if name == "begin":
            self._seconds, losses = self._ways[words[1]]
            self._losses = iter(losses)
        if name == "loss":
            return [next(self._losses)]
        return [{"start_ns": 0, "end_ns": self._seconds * 1e9, "bytes_received": 2e6}]


def test_a_way_ends_at_gloos_loss_plus_2_percent_or_after_twice_its_steps() -> None:
    from wiresum_lab.benchmarks.compress.__main__ import cell, figures, markdown, trained

    ranks: Any = Scripted(
        gloo=(1.0, [3.0, 2.0, 1.01, 1.0]),
        wiresum=(0.5, [2.0, 1.5, 1.3, 1.1, 1.02]),
        diana=(0.5, [2.0] * 8),
    )
    options, cases = argparse.Namespace(steps=4, every=1), []
    for way in ("gloo", "wiresum", "diana"):
        case = Case({"way": way, "model": "cnn", "link_mbit": 100.0})
        for seed in (1, 2):
            case.repetitions.append(trained(ranks, case, seed, options, cases[0].repetitions if cases else []))
        cases.append(case)
    assert [len(case.repetitions[1]["losses"]) for case in cases] == [4, 5, 8], "the end, the target, twice the steps"
    assert cases[1].repetitions[0]["seconds"] == 2.5 and cases[0].repetitions[0]["seconds"] == 3.0
    assert cases[1].repetitions[0]["received_megabytes"] == 2.0
    records = [case.settings | figures(case, cases) for case in cases]
    assert [cell(record) for record in records] == ["1.00 (3.0 s)", "1.20 (2.5 s)", "never (2.00)"]
    table = markdown([*records, {"way": "gloo", "model": "gpt", "link_mbit": 1000.0, **figures(cases[0], cases)}])
    assert table.splitlines()[0] == "| way | CNN, SGD, 100 Mbit/s | GPT, AdamW, 1000 Mbit/s |"
    assert table.splitlines()[4] == "| `DIANA()` | never (2.00) | refused |"


@pytest.mark.nightly
@pytest.mark.usefixtures("gloo_on_a_star")
@pytest.mark.timeout(1200)
def test_every_way_trains_every_model_and_a_run_is_a_function_of_its_seed(tmp_path: Path) -> None:
    from wiresum_lab.benchmarks.compress.__main__ import main
    from wiresum_lab.benchmarks.compress.rank import MODELS, TITLES, is_refused

    arguments = ["--workers", "2", "--rates", "1000", "--seeds", "1", "--steps", "3", "--every", "3"]

    def run(*more: str) -> dict[tuple[str, str], Any]:
        path = tmp_path / "time-to-loss.json"
        assert main([*arguments, *more, "--json", str(path)]) == 0
        return {(record["model"], record["way"]): record for record in json.loads(path.read_text())}

    def losses(record: dict[str, Any]) -> list[float]:
        return [loss for each in record["repetitions"] for loss in each["losses"]]

    records = run()
    ways = {(model, way) for model in MODELS for way in TITLES}
    assert set(records) == {each for each in ways if not is_refused(*each)} and len(ways) - len(records) == 1
    assert all(math.isfinite(loss) for record in records.values() for loss in losses(record))
    again = run("--models", "cnn", "--ways", "wiresum", "gloo-powersgd", "intdiana-bits-8", "topk-0-01")
    assert {name: losses(each) for name, each in again.items()} == {name: losses(records[name]) for name in again}
    received = {way: record["received_megabytes"] for (model, way), record in records.items() if model == "cnn"}
    assert received["wiresum-8"] < received["wiresum-16"] * 0.7 < received["wiresum"] * 0.5
    assert received["topk-0-01"] < received["intdiana-bits-8"] / 2 < received["wiresum"] / 4
