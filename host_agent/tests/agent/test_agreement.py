"""Ranks that were given different things all raise the same error."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from wiresum.agent.agreement import Gather, require_agreement
from wiresum_lab.patience import PATIENCE_S

Describe = Callable[[], Mapping[str, Any]]


class Exchange:
    """All-gathers between threads. Counts the bytes of each rank's messages."""

    def __init__(self, size: int) -> None:
        self._there = threading.Barrier(size, timeout=PATIENCE_S)
        self._messages: list[bytes] = [b""] * size
        self.sent_bytes = [0] * size

    def of(self, rank: int) -> Gather:
        def gather(message: bytes) -> Sequence[bytes]:
            self.sent_bytes[rank] += len(message)
            self._messages[rank] = message
            self._there.wait()
            everybody = list(self._messages)
            self._there.wait()
            assert len({len(one) for one in everybody}) == 1, "an all-gather has messages of one length"
            return everybody

        return gather


def outcomes(*describe: Describe, global_ranks: Sequence[int] = ()) -> tuple[list[str], Exchange]:
    """Each rank's error; "" where there is none."""
    exchange = Exchange(len(describe))

    def run(rank: int) -> str:
        try:
            require_agreement("the arguments of f()", describe[rank], exchange.of(rank), global_ranks)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    with ThreadPoolExecutor(len(describe)) as threads:
        return list(threads.map(run, range(len(describe)))), exchange


def saying(parts: Mapping[str, Any]) -> Describe:
    return lambda: parts


def refusing(text: str) -> Describe:
    def describe() -> Mapping[str, Any]:
        raise TypeError(text)

    return describe


def test_ranks_with_the_same_exchange_one_hash() -> None:
    found, exchange = outcomes(*[saying({"a": 1, "b": {"c": [1.5, None], "d": (True,)}})] * 3)
    assert found == [""] * 3
    assert exchange.sent_bytes == [32] * 3


def test_the_order_of_names_is_no_difference() -> None:
    found, _ = outcomes(saying({"a": 1, "b": {"c": 2, "d": 3}}), saying({"b": {"d": 3, "c": 2}, "a": 1}))
    assert found == [""] * 2


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([{"seed": 0}, {"seed": 0}, {"seed": 1}], "seed (ranks 0, 1 have 0; rank 2 has 1)"),
        ([{"m": {"k": 0.1}}, {"m": {"k": 0.2}}], "m.k (rank 0 has 0.1; rank 1 has 0.2)"),
        ([{"a": 1, "b": 2}, {"a": 2, "b": 3}], "a (rank 0 has 1; rank 1 has 2), b (rank 0 has 2; rank 1 has 3)"),
        ([{"a": None}, {}], "a (rank 0 has None; rank 1 has nothing)"),
        ([{"a": 1}, {"a": True}], "a (rank 0 has 1; rank 1 has True)"),
        ([{"a": "1"}, {"a": 1}], "a (rank 0 has '1'; rank 1 has 1)"),
        ([{"a": [1, 2]}, {"a": [2, 1]}], "a (rank 0 has [1, 2]; rank 1 has [2, 1])"),
    ],
)
def test_an_error_at_all_ranks_names_what_differs_and_where(parts: list[dict[str, Any]], text: str) -> None:
    expected = f"ValueError: the arguments of f() must be the same at all ranks, and differ: {text}"
    assert outcomes(*map(saying, parts))[0] == [expected] * len(parts)


def test_an_error_names_a_few_differences_and_shows_a_part_of_long_values() -> None:
    found, _ = outcomes(*[saying({f"{i}": "x" * 10_000 + f"{rank}" for i in range(9)}) for rank in range(2)])
    assert found[0] == found[1]
    assert found[0].count("SHA-256") == 10 and found[0].endswith("), and 4 more")
    assert len(found[0]) < 3000


def test_what_is_too_long_for_an_error_still_differs() -> None:
    found, exchange = outcomes(*[saying({f"{i}{'x' * 1_000_000}": rank for i in range(20)}) for rank in range(2)])
    text = "the arguments of f() must be the same at all ranks, and differ: too much to name it"
    assert found == [f"ValueError: {text}"] * 2
    assert max(exchange.sent_bytes) < 1000


def test_what_one_rank_refuses_is_an_error_at_all() -> None:
    found, _ = outcomes(saying({"a": 1}), refusing("no a"), saying({"a": 2}))
    text = "the arguments of f() are refused at rank 1, and so at all ranks. rank 1 says: no a"
    assert found == [f"ValueError: {text}"] * 3


@pytest.mark.parametrize(
    ("describe", "said"),
    [
        (saying({"a": 1}), "differ: a (ranks 0, 1, global ranks 1, 3 have 2; rank 2, global rank 5 has 1)"),
        (refusing("no a"), "refused at rank 2, global rank 5, and so at all ranks. rank 2, global rank 5 says: no a"),
    ],
)
def test_where_global_ranks_differ_they_are_named_too(describe: Describe, said: str) -> None:
    two = saying({"a": 2})
    found, _ = outcomes(two, two, describe, global_ranks=[1, 3, 5])
    assert [text.endswith(said) for text in found] == [True] * 3


def test_what_all_ranks_refuse_is_the_own_error_of_each() -> None:
    assert outcomes(refusing("no a"), refusing("no a"))[0] == ["TypeError: no a"] * 2
    assert outcomes(refusing("no 0"), refusing("no 1"))[0] == ["TypeError: no 0", "TypeError: no 1"]


@pytest.mark.parametrize(
    "said", [b"\xff", b"[", b"[]", b"{}", b'{"parts": 1}', b'{"parts": {"a": {}}}', b"[" * 100_000, b"7", b""]
)
@pytest.mark.parametrize("length", [None, 0, 2**64 - 1])
def test_any_bytes_of_another_rank_are_a_difference(said: bytes, length: int | None) -> None:
    """Another rank may be of another version, or hostile."""
    messages: list[bytes] = []

    def gather(message: bytes) -> Sequence[bytes]:
        messages.append(message)
        theirs = [b"h" * 32, (len(said) if length is None else length).to_bytes(8, "big"), said][len(messages) - 1]
        return [message, theirs.ljust(len(message), b"\0")]

    with pytest.raises(ValueError, match="the arguments must be the same at all ranks, and differ"):
        require_agreement("the arguments", saying({"a": 1}), gather)
    assert len(messages) == 3 and len(messages[2]) <= 1 << 24
    assert json.loads(messages[2].rstrip(b"\0")) == {"parts": {"a": "1"}}
