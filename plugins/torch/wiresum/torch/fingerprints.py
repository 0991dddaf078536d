"""Hashes of weights and optimizer state, the same at any number of workers, and the step at which two trainings
diverge.

`fingerprint` is one SHA-256 of everything. `Log` writes one for each part (parameter, buffer, optimizer state) after
each step, and `python -m wiresum.torch.fingerprints A B` names the first step and the first parts that differ between
two such files.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import torch

Parts: TypeAlias = dict[str, str]

_NAMED_MAX = 8


def fingerprint(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> str:
    """SHA-256, in hex, of names, dtypes, shapes and bytes of parameters, buffers and optimizer state."""
    return hashlib.sha256(json.dumps(part_fingerprints(model, optimizer)).encode()).hexdigest()


def part_fingerprints(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Parts:
    """The SHA-256 of each parameter, buffer and optimizer state, by name: `layer.weight`, `layer.weight/exp_avg`."""
    return {name: _hash(value) for name, value in sorted(_parts(model, optimizer))}


class Log:
    """A file with a line for each step: JSON with the step and the fingerprint of each part."""

    def __init__(self, path: str | Path) -> None:
        self._file = Path(path).open("a")  # noqa: SIM115

    def write(self, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        self._file.write(json.dumps({"step": step, "parts": part_fingerprints(model, optimizer)}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def first_difference(one: str | Path, other: str | Path) -> str | None:
    """Names the first step that is in both logs and differs, and its parts that differ; None if there is none.

    Raises ValueError if the logs have no step in common.
    """
    ours, theirs = _read(one), _read(other)
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        raise ValueError(f"{one} and {other} have no step in common")
    for step in common:
        names = ours[step].keys() | theirs[step].keys()
        different = [name for name in sorted(names) if ours[step].get(name) != theirs[step].get(name)]
        if different:
            more = f" and {len(different) - _NAMED_MAX} more" if len(different) > _NAMED_MAX else ""
            return f"step {step}: {', '.join(different[:_NAMED_MAX])}{more} of {len(names)} parts differ"
    return None


def _parts(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[tuple[str, Any]]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    yield from ((name, parameter) for parameter, name in names.items())
    yield from model.named_buffers()
    if optimizer is None:
        return
    for index, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            name = names.get(parameter, f"group {index}, parameter {place}")
            yield from ((f"{name}/{key}", value) for key, value in optimizer.state.get(parameter, {}).items())
        settings = {key: value for key, value in group.items() if key != "params"}
        yield f"group {index}", sorted(settings.items())


def _hash(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return hashlib.sha256(repr(value).encode()).hexdigest()
    plain = value.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{plain.dtype} {tuple(plain.shape)} ".encode())
    if plain.numel():
        digest.update(plain.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read(path: str | Path) -> dict[int, Parts]:
    """Reads a log. A step that was done again after a restart counts as it was last."""
    lines = (json.loads(line) for line in Path(path).read_text().splitlines())
    return {line["step"]: line["parts"] for line in lines}


def _main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m wiresum.torch.fingerprints LOG LOG\n")
        return 2
    try:
        difference = first_difference(*arguments)
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"wiresum.torch.fingerprints: {error}\n")
        return 2
    sys.stdout.write(f"{difference or 'no difference in the steps that both have'}\n")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
