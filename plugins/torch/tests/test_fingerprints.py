"""Hashes of weights and optimizer state, and where two trainings began to differ."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import wiresum.torch
from wiresum.torch.fingerprints import Log, _main, first_difference, part_fingerprints


def trained(steps: int = 2) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def change_weight(model: torch.nn.Module, _: torch.optim.Optimizer) -> None:
    """Changes a weight by one bit, in the sign of a zero or the last place."""
    model.get_parameter("0.bias").data.view(torch.int32)[2] ^= 1


def change_buffer(model: torch.nn.Module, _: torch.optim.Optimizer) -> None:
    model.get_buffer("1.running_mean")[0] += 1


def change_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.state[model.get_parameter("0.weight")]["exp_avg"].view(torch.int32)[0, 0] ^= 1


def change_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.state[model.get_parameter("0.weight")]["step"] += 1


def change_rate(_: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["lr"] = 0.2


CHANGES: dict[str, Callable[[torch.nn.Module, torch.optim.Optimizer], None]] = {
    "0.bias": change_weight,
    "1.running_mean": change_buffer,
    "0.weight/exp_avg": change_state,
    "0.weight/step": change_step,
    "group 0": change_rate,
}


def test_the_same_state_has_the_same_fingerprint() -> None:
    model, optimizer = trained()
    fingerprint = wiresum.torch.fingerprint(model, optimizer)
    assert len(fingerprint) == 64
    assert wiresum.torch.fingerprint(*trained()) == fingerprint
    assert wiresum.torch.fingerprint(model) != fingerprint
    again = torch.optim.AdamW(model.parameters())
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert wiresum.torch.fingerprint(model, again) == fingerprint


@pytest.mark.parametrize("part", CHANGES)
def test_every_bit_counts_and_is_named(part: str) -> None:
    model, optimizer = trained()
    before, parts = wiresum.torch.fingerprint(model, optimizer), part_fingerprints(model, optimizer)
    CHANGES[part](model, optimizer)
    assert wiresum.torch.fingerprint(model, optimizer) != before
    after = part_fingerprints(model, optimizer)
    assert [name for name in parts if parts[name] != after[name]] == [part]


def test_shape_and_dtype_count() -> None:
    prints = {wiresum.torch.fingerprint(model) for model in map(one_parameter, ["a", "b"], [(2, 3), (2, 3)])}
    prints |= {wiresum.torch.fingerprint(one_parameter("a", shape)) for shape in [(3, 2), (6,), (0,), (6, 0)]}
    prints.add(wiresum.torch.fingerprint(one_parameter("a", (2, 3)).double()))
    prints.add(wiresum.torch.fingerprint(one_parameter("a", (2, 3)).bfloat16()))
    assert len(prints) == 8


def one_parameter(name: str, shape: tuple[int, ...]) -> torch.nn.Module:
    return torch.nn.ParameterDict({name: torch.nn.Parameter(torch.zeros(shape))})


def log_of(path: Path, steps: range, changed: int | None = None) -> Path:
    log = Log(path)
    for step in steps:
        model, optimizer = trained(step)
        if step == changed:
            change_state(model, optimizer)
        log.write(step, model, optimizer)
    log.close()
    return path


def test_the_first_step_and_part_that_differ_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = log_of(tmp_path / "one", range(1, 5))
    assert first_difference(one, log_of(tmp_path / "two", range(2, 6))) is None
    three = log_of(tmp_path / "three", range(1, 5), changed=3)
    assert first_difference(one, three) == "step 3: 0.weight/exp_avg of 20 parts differ"
    assert compare(one, three) == 1
    assert capsys.readouterr().out == "step 3: 0.weight/exp_avg of 20 parts differ\n"
    assert compare(one, tmp_path / "two") == 0
    assert capsys.readouterr().out == "no difference in the steps that both have\n"


def test_a_step_that_was_done_again_counts_as_it_was_last(tmp_path: Path) -> None:
    one = log_of(tmp_path / "one", range(1, 4), changed=3)
    log_of(one, range(3, 4))
    assert first_difference(one, log_of(tmp_path / "two", range(1, 4))) is None


def test_logs_without_a_common_step_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(log_of(tmp_path / "one", range(1, 2)), log_of(tmp_path / "two", range(2, 3))) == 2
    assert "no step in common" in capsys.readouterr().err
    assert compare(tmp_path / "one", tmp_path / "none") == 2


def compare(*logs: Path) -> int:
    """The exit code of `python -m wiresum.torch.fingerprints`."""
    return _main([str(log) for log in logs])
