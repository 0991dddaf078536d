"""What each worker has called, for the error when workers call different collectives.

The data path notices a mismatch, but knows only numbers. Then each worker publishes in the group's store what it has
called under that number, and all errors quote it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch._C._distributed_c10d import Store
from torch.distributed import DistError

KEPT = 4096
"""How many of the newest calls are kept. A worker that has made more since says so."""
ANSWERS_S_MAX = 2.0
POLL_S = 0.01
TENSORS_SHOWN = 4

Kinds: TypeAlias = Sequence[tuple[torch.dtype, Sequence[int]]]
"""Types and shapes of tensors."""


class Call(NamedTuple):
    """One collective of the network."""

    number: int
    """The same at all workers: 16 bits, as Operation.number."""
    name: str
    operator: Any
    """None if nothing is summed."""
    kinds: Kinds
    timeout_s: float

    def __str__(self) -> str:
        return described(self.name, self.operator, self.kinds)


class CallLog:
    """This worker's calls. `note` runs in every collective, so it makes no text. `more` returns the newest KEPT calls
    that are noted elsewhere (direct.hpp), oldest first."""

    def __init__(self, store: Store, rank: int, size: int, more: Callable[[], Sequence[Any]] = tuple) -> None:
        self._store, self._rank, self._size, self._more = store, rank, size, more
        self._calls: deque[tuple[Any, ...]] = deque(maxlen=KEPT)
        self._gloo: deque[str] = deque(maxlen=KEPT)
        self._differs_at: int | None = None
        self._compared: str | None = None
        self.gloo_calls = 0

    def note(
        self, number: int, name: str, operator: Any, tensors: Sequence[torch.Tensor], timeout_s: float = math.inf
    ) -> None:
        """As a Call has it."""
        self._calls.append((number, name, operator, [(tensor.dtype, tensor.shape) for tensor in tensors], timeout_s))

    def find(self, number: int) -> Call | None:
        """What this worker has called as number `number`, if it remembers that."""
        return next((call for calls in self._kept() for call in calls if call.number == number), None)

    def note_gloo(self, what: str) -> int:
        """Notes a collective of Gloo, in words. Returns its number there, which is the same at all workers."""
        self._gloo.append(what)
        self.gloo_calls += 1
        return self.gloo_calls - 1

    def differ_at(self, gloo: int) -> None:
        """Some workers have called this collective of Gloo where this worker called one of the network."""
        self._differs_at = gloo

    def compare(self, number: int | None) -> str:
        """What each worker called as number `number`, in words; if that is None, another worker must publish it. ""
        without an answer. Waits for the others for ANSWERS_S_MAX at most, once."""
        if self._compared is None:
            try:
                self._compared = self._compare(number)
            except DistError:  # the store's host has left
                self._compared = ""
        return self._compared

    def _compare(self, number: int | None) -> str:
        deadline = time.monotonic() + ANSWERS_S_MAX
        if number is not None:
            # Workers may notice at different numbers; all report the same one.
            place = f"{number}" if self._differs_at is None else f"{number} {self._differs_at}"
            self._store.compare_set("diverged", "", place)
        elif not self._is_there("diverged", deadline):
            return ""
        number, *gloo = map(int, self._store.get("diverged").split())
        self._store.set(f"calls/{self._rank}", self._called(number, *gloo))
        said = []
        for rank in range(self._size):
            if self._is_there(f"calls/{rank}", deadline):
                said.append(f"rank {rank} {self._store.get(f'calls/{rank}').decode()}")
            else:
                said.append(f"rank {rank} does not say")
        return f"As number {number} " + ", ".join(said)

    def _called(self, number: int, gloo: int | None = None) -> str:
        if gloo is not None and 0 < (back := self.gloo_calls - gloo) <= len(self._gloo):
            return f"called {self._gloo[-back]}, through Gloo"
        if (call := self.find(number)) is not None:
            return f"called {call}"
        for calls in self._kept():
            if len(calls) == KEPT and number < calls[0].number:
                return f"has called {calls[-1].number - number} more since, and remembers {KEPT}"
        return "called nothing"

    def _kept(self) -> tuple[list[Call], list[Call]]:
        """Copies, since other threads go on calling."""
        return [Call(*noted) for noted in list(self._calls)], [Call(*noted) for noted in self._more()]

    def _is_there(self, key: str, deadline: float) -> bool:
        while not self._store.check([key]):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True


def elements_in(kinds: Kinds) -> str:
    elements = sum(math.prod(shape) for _, shape in kinds)
    return f"{elements} element{'s' * (elements != 1)}"


def described(name: str, operator: Any, kinds: Kinds) -> str:
    """`all_reduce(SUM, float32[2, 6])`."""
    shown = [f"{str(dtype).removeprefix('torch.')}{list(shape)}" for dtype, shape in kinds[:TENSORS_SHOWN]]
    if len(kinds) > TENSORS_SHOWN:
        shown.append(f"... {len(kinds)} tensors")
    operators = [] if operator is None else [str(getattr(operator, "op", operator)).rpartition(".")[2]]
    return f"{name}({', '.join([*operators, *shown])})"
