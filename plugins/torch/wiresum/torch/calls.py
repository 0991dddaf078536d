"""What each worker has called, for the error when workers call different collectives.

The data path notices a mismatch, but knows only numbers. Then each worker publishes in the group's store what it has
called under that number, and all errors quote it.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch._C._distributed_c10d import Store
from torch.distributed import DistError

from wiresum.agent.polling import sleep_until
from wiresum.torch import waits
from wiresum.torch.plan import operator_name

if TYPE_CHECKING:
    from wiresum.agent.session import Operation

KEPT = 4096
"""How many of the newest calls are kept. A worker that no longer has a call says how many it has made since."""
NOTE_S_MAX = 0.2
"""How long to look for a call: it is noted just after its submission, maybe by a thread that is preempted meanwhile."""
POLL_S = 0.01
_DENSE = torch.strided
PARTS_SHOWN = 5

Kinds: TypeAlias = Sequence[tuple[torch.dtype, Sequence[int], int]]
"""The type, shape, and number of sparse dimensions (0: dense) of each tensor."""


class Call(NamedTuple):
    """One collective of the network, or of Gloo."""

    number: int
    """The call's number, 16 bits, as Operation.number: the same at all workers."""
    name: str
    operator: Any
    """The reduction; None if nothing is summed."""
    kinds: Kinds
    timeout_s: float
    root: int = -1
    through_gloo: bool = False
    created_ns: int = 0
    """Nanoseconds since the epoch."""
    ended_well: bool = False

    def parts(self, settings: Sequence[str] = ()) -> list[str]:
        """The text between the parentheses. `settings` are those of sums in the network."""
        about_sums = () if self.through_gloo else settings
        summed = [] if self.operator is None else [operator_name(self.operator), *about_sums]
        roots = [f"root {self.root}"] if self.root >= 0 else []
        return [*summed, *roots, *map(_in_words, self.kinds)]

    def elements(self) -> str:
        elements = sum(math.prod(shape) for _, shape, _ in self.kinds)
        return f"{elements} element{'s' * (elements != 1)}"

    def where(self) -> str:
        return ", through Gloo" if self.through_gloo else ""

    def __str__(self) -> str:
        """Shows the call as `all_reduce(SUM, float32[2, 6])`."""
        return f"{self.name}({', '.join(shown(self.parts()))})"


class CallLog:
    """This worker's calls. `note` runs in every collective and makes no text. `more` returns the newest KEPT calls that
    are noted elsewhere (direct.hpp), oldest first. `settings`: as in Call.parts."""

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        more: Callable[[], Sequence[Any]] = tuple,
        settings: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
        named: Callable[[int], str] = "rank {}".format,
    ) -> None:
        self._store, self._rank, self._size, self._more, self._settings = store, rank, size, more, settings
        self._calls: deque[tuple[Operation, int, tuple[Any, ...]]] = deque(maxlen=KEPT)
        self._compared: str | None = None
        self._clock, self._named = clock, named

    def note(self, operation: Operation, *fields: Any) -> None:
        """Notes a call. `fields` are those of a Call from `name` to `through_gloo`."""
        self._calls.append((operation, time.time_ns(), fields))

    def find(self, number: int) -> Call | None:
        """This worker's call with this number, if the log still has the call."""
        return next((call for calls in self._kept() for call in calls if call.number == number), None)

    def newest(self) -> list[Call]:
        """The calls, oldest first."""
        return sorted((call for calls in self._kept() for call in calls), key=attrgetter("created_ns"))

    def compare(self, number: int | None) -> str:
        """Says in words what each worker called as this number; for None, another worker must publish the number.
        Returns "" without an answer. Waits for the others for waits.CALLS_S at most, once."""
        if self._compared is None:
            try:
                self._compared = self._compare(number)
            except DistError:  # the store's host has left
                self._compared = ""
        return self._compared

    def _compare(self, number: int | None) -> str:
        deadline = self._clock() + waits.CALLS_S
        if number is not None:
            # Workers may notice at different numbers; all report the same one.
            self._store.compare_set("diverged", "", f"{number}")
        elif not self._is_there("diverged", deadline):
            return ""
        number = int(self._store.get("diverged"))
        self._store.set(f"calls/{self._rank}", json.dumps(self._called(number)))
        said: list[_Said] = []
        for rank in range(self._size):
            there = self._is_there(f"calls/{rank}", deadline)
            said.append(_Said(*json.loads(self._store.get(f"calls/{rank}"))) if there else _Said("does not say"))
        called = [one.parts for one in said if one.parts is not None]
        at = _first_difference(called)
        return f"As number {number} " + ", ".join(
            f"{self._named(rank)} {one.in_words(at)}" for rank, one in enumerate(said)
        )

    def _called(self, number: int) -> _Said:
        sleep_until(lambda: self.find(number) is not None, time.monotonic() + NOTE_S_MAX)
        if (call := self.find(number)) is not None:
            return _Said(f"called {call.name}", call.parts(self._settings), call.where())
        for calls in self._kept():
            if len(calls) == KEPT and number < calls[0].number:
                return _Said(f"has called {calls[-1].number - number} more since, and remembers {KEPT}")
        return _Said("called nothing")

    def _kept(self) -> tuple[list[Call], list[Call]]:
        """Copies of the calls, since other threads go on calling."""
        here = [
            Call(operation.number, *fields)._replace(
                created_ns=created_ns, ended_well=operation.done() and operation.error is None
            )
            for operation, created_ns, fields in list(self._calls)
        ]
        return here, [Call(*noted) for noted in self._more()]

    def _is_there(self, key: str, deadline: float) -> bool:
        while not self._store.check([key]):
            if self._clock() > deadline:
                return False
            time.sleep(POLL_S)
        return True


class _Said(NamedTuple):
    """What a worker publishes about its call."""

    begin: str
    parts: list[str] | None = None
    """All parts of the call; None if there was no call."""
    end: str = ""

    def in_words(self, at: int) -> str:
        return self.begin if self.parts is None else f"{self.begin}({', '.join(shown(self.parts, at))}){self.end}"


def _first_difference(called: Sequence[Sequence[str]]) -> int:
    """Index of the first part that is not the same in all calls; 0 if there is none."""
    longest = max(map(len, called), default=0)
    return next((i for i in range(longest) if len({tuple(parts[i : i + 1]) for parts in called}) > 1), 0)


def shown(parts: Sequence[str], at: int = 0) -> list[str]:
    """PARTS_SHOWN of the parts, with the one at `at`."""
    begin = max(0, at + 1 - PARTS_SHOWN)
    window = parts[begin : begin + PARTS_SHOWN]
    if len(window) == len(parts):
        return list(parts)
    return [*["..."] * (begin > 0), *window, f"... {len(parts)} in all"]


def kinds_of(tensors: Sequence[torch.Tensor]) -> Kinds:
    return [(tensor.dtype, tensor.shape, 0 if tensor.layout is _DENSE else tensor.sparse_dim()) for tensor in tensors]


def _in_words(kind: tuple[torch.dtype, Sequence[int], int]) -> str:
    dtype, shape, sparse = kind
    text = f"{str(dtype).removeprefix('torch.')}{list(shape)}"
    return f"{text} sparse in {sparse} dimension{'s' * (sparse != 1)}" if sparse else text
