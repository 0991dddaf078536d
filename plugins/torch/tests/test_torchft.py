"""Training with torchft's Manager over the switch: a worker is killed, the others go on, and it comes back."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from wiresum_lab.processes import SwitchProcess, wait_until
from wiresum_lab.ranks.replicas import Replicas

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parent / "examples" / "torchft_ddp.py"
PATIENCE_S = 90.0
HEARTBEAT = ("--heartbeat_timeout_ms", "1500")
"""So that the lighthouse does not need 5 s to give a worker up."""

needs_torchft = pytest.mark.skipif(
    importlib.util.find_spec("torchft") is None, reason="torchft is not installed, so training with it is not tested"
)


def loses_one_and_gets_it_back(replicas: Replicas, names: list[str]) -> None:
    """Ends when all have ended."""
    for name in names:
        replicas.start(name)
    stays, goes = names[0], names[1]
    wait_until(lambda: replicas.first_committed(stays, 3, 0.0), "all three take part", PATIENCE_S)
    killed_at = time.monotonic()
    replicas.programs[goes].kill()
    wait_until(lambda: replicas.first_committed(stays, 2, killed_at), "the others go on", PATIENCE_S)
    back_at = time.monotonic()
    replicas.start(goes)
    wait_until(lambda: replicas.first_committed(goes, 3, back_at), "it takes part again", PATIENCE_S)
    for name in names:
        program = replicas.programs[name]
        wait_until(lambda: program.exit_code is not None, f"{name} ends", PATIENCE_S)  # noqa: B023
        assert program.exit_code == 0, program.tail()


@needs_torchft
@pytest.mark.slow
@pytest.mark.timeout(5 * PATIENCE_S)
@pytest.mark.usefixtures("compiled")
def test_the_example_ends_with_the_same_weights_everywhere(switch: SwitchProcess, tmp_path: Path) -> None:
    program = [str(EXAMPLE), "--until", "800", "--pause", "0.02"]
    with Replicas(program, tmp_path, switch.endpoint, lighthouse=HEARTBEAT) as replicas:
        loses_one_and_gets_it_back(replicas, ["a", "b", "c"])
        weights = [replicas.programs[name].said().splitlines()[-1] for name in "abc"]
        assert weights[0].startswith("weights ") and len(set(weights)) == 1, weights
        assert "quorum" in replicas.programs["a"].said()


@needs_torchft
@pytest.mark.slow
@pytest.mark.timeout(5 * PATIENCE_S)
@pytest.mark.usefixtures("compiled")
def test_each_committed_sum_is_that_of_those_who_took_part(switch: SwitchProcess, tmp_path: Path) -> None:
    program = [str(HERE / "replica.py"), "--until", "800"]
    with Replicas(program, tmp_path, switch.endpoint, lighthouse=HEARTBEAT) as replicas:
        loses_one_and_gets_it_back(replicas, ["0", "1", "2"])
        committed: dict[int, set[tuple[int, str]]] = {}
        for name in "012":
            for step in replicas.steps(name):
                if step.verdict == "committed":
                    committed.setdefault(step.number, set()).add((step.workers, step.result))
        totals = {replicas.programs[name].said().splitlines()[-1] for name in "012"}
    assert sorted(committed) == list(range(1, 801))
    sums = []
    for number, results in committed.items():
        ((workers, result),) = results  # the same at all
        digits = [int(float(result)) // 4**k % 4 for k in range(3)]
        assert set(digits) <= {0, 1} and sum(digits) == workers, (number, result)
        sums.append(float(result))
    assert {21.0, 17.0} <= set(sums), "with all three, and without the one that was killed"
    assert totals == {f"total {sum(sums):g}"}


def test_without_torchft_the_module_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("torchft"):
            raise ImportError(f"No module named {name!r}")
        return imported(name, *arguments, **options)

    monkeypatch.delitem(sys.modules, "wiresum.torch.torchft", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"needs torchft .* pip install torchft"):
        importlib.import_module("wiresum.torch.torchft")
