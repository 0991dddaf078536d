"""Checks that a state belongs to the engine that loads it, before the engine changes.

A state belongs to one method with its options, one worker, one world size, and tensors with names, shapes and types.
Another engine would load it without an error, and train wrongly: a residual would be added to any gradient of the same
size, and shifts whose mean is not the common one would bias every later step. So the state names all of these.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from wiresum.compress.compressor import Compressor
from wiresum.compress.memory import memory_of

NAMES_SHOWN_MAX = 5


class Tensor(NamedTuple):
    """Shape and dtype of a piece's gradients."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{list(self.shape)} of {self.dtype.name}"


def described(method: Compressor) -> dict[str, Any]:
    """Describes a method and all its options by mappings, lists, text and numbers. A memory that was given by name is
    described as the object."""
    description: dict[str, Any] = description_of(method)
    description["memory"] = description_of(memory_of(method.memory))
    description["down"] = None if method.down is None else described(method.down)
    return description


def description_of(value: Any, within: frozenset[int] = frozenset()) -> Any:
    """Describes an object and its options by mappings, lists, text and numbers.

    `within` has the ids of the objects that contain this one, so that a cycle ends: an object inside itself is
    described by its type alone.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if id(value) in within:
        return {"type": type(value).__name__}
    within |= {id(value)}
    if isinstance(value, Mapping):
        return {str(name): description_of(item, within) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [description_of(item, within) for item in value]
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    options = {**getattr(value, "__dict__", {}), **{field.name: getattr(value, field.name) for field in fields}}
    described_options = {name: description_of(option, within) for name, option in options.items()}
    return {"type": type(value).__name__, **described_options}


def differences(there: Any, here: Any, what: str) -> list[str]:
    """Texts that name each difference between a state's description and this engine's."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        if there.get("type") != here.get("type"):
            return [f"{what} is {there.get('type')} in the state and {here.get('type')} here"]
        found = []
        for name in [*here, *(name for name in there if name not in here)]:
            if name in there and name in here:
                found += differences(there[name], here[name], f"{what}.{name}")
            else:
                found.append(f"{what}.{name} is {'only in the state' if name in there else 'not in the state'}")
        return found
    return [] if there == here else [f"{what} is {_shown(there)} in the state and {_shown(here)} here"]


def _shown(value: Any) -> str:
    return str(value["type"]) if isinstance(value, Mapping) and "type" in value else repr(value)


def differing_tensors(there: Mapping[str, Tensor | str], here: Mapping[str, Tensor | str]) -> list[str]:
    """Texts that name the tensors that state and engine both have, with different shapes or dtypes."""
    return [
        f"'{name}' is {there[name]} in the state and {here[name]} here"
        for name in there
        if name in here and there[name] != here[name]
    ]


def refuse(found: list[str]) -> None:
    """Raises ValueError if `found` names any difference."""
    if found:
        raise ValueError(
            f"this compression state does not fit, and nothing of it was loaded: {'; '.join(found)}. Load the state "
            "that this worker saved, with the same method and model, or begin without a state"
        )


def require_entries(state: Any, expected: Iterable[str], what: str) -> None:
    """Raises ValueError unless `state` is a mapping with exactly the expected entries."""
    if not isinstance(state, Mapping):
        raise ValueError(f"{what} is {type(state).__name__}, not a compression state: nothing of it was loaded")
    refuse(mismatched_names(state, expected, what))


def mismatched_names(found: Iterable[str], expected: Iterable[str], what: str) -> list[str]:
    found, expected = set(found), set(expected)
    return [
        f"{what} {verb} {_listed(names)}"
        for verb, names in (("lacks", expected - found), ("has in addition", found - expected))
        if names
    ]


def mismatched_vectors(store: Any, tensors: Mapping[str, Tensor], what: str) -> list[str]:
    """Texts that name the vectors in `store` that are not flat arrays with the size and dtype of their tensors."""
    if not isinstance(store, Mapping):
        return [f"{what} is {type(store).__name__}"]
    found = mismatched_names(store, tensors, what)
    for name, vector in store.items():
        if name not in tensors:
            continue
        if not isinstance(vector, np.ndarray) or vector.ndim != 1:
            found.append(f"{what}.{name} is no flat array")
        elif (len(vector), vector.dtype) != (tensors[name].size, tensors[name].dtype):
            found.append(f"{what}.{name} has {len(vector)} values of {vector.dtype}, and its tensor is {tensors[name]}")
    return found


def digest_of(*stores: Mapping[Any, Any]) -> str:
    """The SHA-256 digest, in hex, of nested mappings of arrays and numbers."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Mapping):
            for name in sorted(value):
                digest.update(f"{name!r}: ".encode())
                add(value[name])
        elif isinstance(value, np.ndarray):
            digest.update(f"{value.dtype} {value.shape} ".encode())
            digest.update(np.ascontiguousarray(value).data)
        else:
            digest.update(f"{value!r} ".encode())

    for store in stores:
        add(store)
    return digest.hexdigest()


def _listed(names: set[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in sorted(names)[:NAMES_SHOWN_MAX])
    return shown if len(names) <= NAMES_SHOWN_MAX else f"{shown} and {len(names) - NAMES_SHOWN_MAX} more"
