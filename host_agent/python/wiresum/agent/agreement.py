"""This module checks that all ranks were given the same, where a difference would silently change their results.

The ranks exchange one hash of what they were given. Only if hashes differ do they exchange descriptions, and all of
them raise the same error, which names the differences and the ranks. A rank that refuses its arguments takes part as
well, since the others would wait for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from wiresum.join import ranks_text as ranks_text

Gather: TypeAlias = Callable[[bytes], Sequence[bytes]]
"""Exchanges messages of one length. Returns the messages of all ranks, by rank."""

_DIFFERENCES_SHOWN_MAX = 5
_VALUE_CHARACTERS_MAX = 200
_DESCRIPTION_BYTES_MAX = 1 << 24
_LENGTH_BYTES = 8
_NOTHING = "nothing"


def require_agreement(
    what: str, describe: Callable[[], Mapping[str, Any]], gather: Gather, global_ranks: Sequence[int] = ()
) -> None:
    """Compares what `describe` returns: names, with numbers, text, None, or sequences or mappings of these.

    `describe` may raise instead, for arguments that this rank refuses. If it raises at all ranks, each raises its own
    error. Otherwise a ValueError at all ranks says what differs. `what` is the subject of its text, in the plural.
    `global_ranks`, by rank, are for that text (ranks_text).
    """
    error: Exception | None = None
    try:
        mine = {"parts": dict(_flat(describe()))}
    except Exception as raised:
        error, mine = raised, {"error": {"": str(raised)}}
    digests = gather(hashlib.sha256(json.dumps(mine, sort_keys=True).encode()).digest())
    if len(set(digests)) > 1:
        everybody = [_read(message) for message in _gather_unequal(_written(mine), gather)]
        if not all("error" in one for one in everybody):
            raise ValueError(_disagreement(what, everybody, global_ranks)) from error
    if error is not None:
        raise error


def by_rank(values: Mapping[int, object], global_ranks: Sequence[int] = ()) -> str:
    """Each value with the ranks that have it: "rank 0 has 1; ranks 1, 2 have 2". `global_ranks` are by rank."""
    ranks: dict[object, list[int]] = {}
    for rank, value in sorted(values.items()):
        ranks.setdefault(value, []).append(rank)
    return "; ".join(
        f"{_named(who, global_ranks)} {'has' if len(who) == 1 else 'have'} {value}" for value, who in ranks.items()
    )


def _named(ranks: Sequence[int], global_ranks: Sequence[int]) -> str:
    return ranks_text(ranks, [global_ranks[rank] for rank in ranks] if global_ranks else [])


def _flat(parts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields the values of nested mappings, as text."""
    for name, value in parts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", repr(list(value) if isinstance(value, tuple) else value)


def _written(mine: Mapping[str, Mapping[str, str]]) -> bytes:
    """Returns the rank's description: long values are cut, and so is a description that is too long for an error."""
    ((kind, parts),) = mine.items()
    message = json.dumps({kind: {name: _cut(value) for name, value in parts.items()}}).encode()
    return message if len(message) <= _DESCRIPTION_BYTES_MAX else json.dumps({kind: {}}).encode()


def _cut(value: str) -> str:
    if len(value) <= _VALUE_CHARACTERS_MAX:
        return value
    return f"{value[:_VALUE_CHARACTERS_MAX]}... (SHA-256 {hashlib.sha256(value.encode()).hexdigest()[:16]})"


def _gather_unequal(message: bytes, gather: Gather) -> list[bytes]:
    lengths = [int.from_bytes(one, "big") for one in gather(len(message).to_bytes(_LENGTH_BYTES, "big"))]
    lengths = [min(length, _DESCRIPTION_BYTES_MAX) for length in lengths]  # other ranks' numbers
    padded = gather(message.ljust(max(lengths), b"\0"))
    return [bytes(one[:length]) for one, length in zip(padded, lengths, strict=True)]


def _read(message: bytes) -> dict[str, dict[str, str]]:
    """Decodes the description of another rank."""
    try:
        ((kind, parts),) = json.loads(message).items()
        return {str(kind): {str(name): str(value) for name, value in parts.items()}}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {"parts": {"what it says": "bytes that cannot be read: run one version of wiresum at all ranks"}}


def _disagreement(what: str, everybody: Sequence[Mapping[str, Mapping[str, str]]], global_ranks: Sequence[int]) -> str:
    """Returns the error's text, which depends only on what all ranks have received."""
    if refused := {rank: one["error"].get("", _NOTHING) for rank, one in enumerate(everybody) if "error" in one}:
        said = "; ".join(f"{_named([rank], global_ranks)} says: {text}" for rank, text in refused.items())
        return f"{what} are refused at {_named(list(refused), global_ranks)}, and so at all ranks. {said}"
    parts = [one.get("parts", {}) for one in everybody]
    names = dict.fromkeys(name for mine in parts for name in mine)
    different = [name for name in names if len({mine.get(name) for mine in parts}) > 1]
    shown = [
        f"{name} ({by_rank({rank: mine.get(name, _NOTHING) for rank, mine in enumerate(parts)}, global_ranks)})"
        for name in different[:_DIFFERENCES_SHOWN_MAX]
    ]
    more = len(different) - len(shown)
    return (
        f"{what} must be the same at all ranks, and differ: {', '.join(shown) or 'too much to name it'}"
        f"{f', and {more} more' if more else ''}"
    )
