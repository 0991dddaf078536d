"""Decides which collectives are ready, and in which order. This module does no IO.

Ranks call collectives from hooks of a backward pass and from several threads, in orders that differ. The network needs
one order, which the ranks negotiate in *cycles*. A cycle is a small all-reduce of int32 words (`begin_cycle` writes
them, `read_words` reads their sum), and sometimes an all-gather of messages (`end_cycle` reads them):

    words     [status of rank 0] ... [status of rank n-1] [count of entry 0] [count of entry 1] ...
    status    bytes of the rank's message in this cycle, * 4; + 1 if it has joined; + 2 if it is leaving
    count     1 if the rank wants the collective that this entry of the cache describes, or has joined
    message   requests (request.py) that are not in the cache

There is no coordinating rank: all read the same sums and messages, and keep the same two tables by the same rules. The
*table* has requests that only some ranks have described; the *cache* has those that all ranks have described before. A
request is ready when all ranks want it, except those that have joined. When a rank describes a request again, all ranks
drop its entry of the cache. A rank describes a cached request again if the request has changed, or if it has waited so
long that users should hear which ranks are missing, which counts do not tell.

A name belongs to one kind of call at a time: if every rank has called something under a name, but no kind was called by
all ranks, no request under this name can become ready, and all of them fail. Entries of the cache that are part of such
a conflict are dropped first, so that the table says which rank called what.

After the first step, a tensor that each training step sums costs one word of one packet.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from wiresum.agent.agreement import ranks_text
from wiresum.horovod.torch.request import (
    JOINED_RANKS_MAY_BE_ABSENT,
    Op,
    Request,
    RequestType,
    decode,
    disagreement,
    disagreement_on_kind,
    encode,
)

_JOINED, _LEAVING = 1, 2
_FLAG_BITS = 2
MESSAGE_BYTES_MAX = (1 << (31 - _FLAG_BITS)) - 1
"""The largest message size, in bytes, that a status word can hold."""
CACHE_ENTRIES_MAX = 4096
"""Capacity of the cache, which is emptied when it is full. Each entry costs a word of each cycle."""


@dataclass(frozen=True, slots=True)
class Response:
    """A request that is ready at all ranks, or has failed at all of them (`error`)."""

    name: str
    kind: RequestType
    requests: Sequence[Request | None]
    """The request of each rank; None for a rank that has joined."""
    error: str | None = None
    number: int = 0
    """The id of a new process set, or the rank that was the last to join; else 0."""

    @property
    def request(self) -> Request:
        """The request of any rank, for the fields that are the same at all ranks."""
        return next(request for request in self.requests if request is not None)


@dataclass(slots=True)
class Cycle:
    """The decoded sum of a cycle's words."""

    message_bytes: list[int]
    joined: list[bool]
    leaving: list[int]
    ready: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    """Indices of cache entries that some ranks want and others do not."""


@dataclass(frozen=True, slots=True)
class Stall:
    name: str
    ready: list[int]
    missing: list[int]

    def __str__(self) -> str:
        return f"{self.name} [missing: {ranks_text(self.missing)}; ready: {ranks_text(self.ready)}]"


class DuplicateNameError(ValueError):
    pass


class Negotiation:
    """One rank's part in the negotiation. `rank` and `size` are counted within the process set."""

    def __init__(self, rank: int, size: int, *, cache_entries_max: int = CACHE_ENTRIES_MAX) -> None:
        self._rank = rank
        self._size = size
        self._pending: dict[str, Request] = {}
        """This rank's unfinished requests, by name."""
        self._wanted_since: dict[str, float] = {}
        self._fresh: list[str] = []
        self._undescribed: list[str] = []
        self._hits: dict[int, str] = {}
        self._table: dict[str, dict[int, Request]] = {}
        self._cache: list[tuple[Request, ...] | None] = []
        self._index: dict[str, int] = {}
        self._free: list[int] = []
        self._cache_entries_max = cache_entries_max
        self._joining = False
        self._joined_before: list[bool] = [False] * size
        self._leaving = False
        self._process_sets = 0

    # Calls of the rank's program.

    def submit(self, request: Request) -> None:
        if request.name in self._pending:
            raise DuplicateNameError(
                f"Requested to {request.kind.value} a tensor with the same name as another tensor that is currently "
                f"being processed: '{request.name}'. If you want to request another tensor, use a different tensor name"
            )
        self._pending[request.name] = request
        self._fresh.append(request.name)

    def join(self) -> None:
        """Makes this rank take part in all requests of the others as soon as its pending requests are done."""
        self._joining = True

    def leave(self) -> None:
        """Makes the next cycle this rank's last, and announces that to the other ranks."""
        self._leaving = True

    @property
    def has_joined(self) -> bool:
        return self._joining and not self._pending

    @property
    def is_waiting(self) -> bool:
        return bool(self._pending)

    # Cycles.

    def begin_cycle(self, now: float, describe_after_s: float) -> tuple[list[int], bytes]:
        """This rank's words and message, which describes new requests and requests older than `describe_after_s`."""
        for name in self._fresh:
            self._wanted_since[name] = now
            index = self._index.get(name)
            cached = self._cache[index] if index is not None else None
            if index is not None and cached is not None and cached[self._rank] == self._pending[name]:
                self._hits[index] = name
            else:
                self._undescribed.append(name)
        self._fresh = []
        for index, name in list(self._hits.items()):
            if now - self._wanted_since[name] >= describe_after_s:
                del self._hits[index]
                self._undescribed.append(name)
        message = encode([self._pending[name] for name in self._undescribed])
        assert len(message) <= MESSAGE_BYTES_MAX, "descriptions are smaller than the tensors that fit the memory"
        words = [0] * (self._size + len(self._cache))
        words[self._rank] = len(message) << _FLAG_BITS | _LEAVING * self._leaving | _JOINED * self.has_joined
        if self.has_joined:
            words[self._size :] = [1] * len(self._cache)
        for index in self._hits:
            words[self._size + index] = 1
        return words, message

    def read_words(self, words: Sequence[int]) -> Cycle:
        """Decodes `words`, the sums over all ranks."""
        statuses = words[: self._size]
        joined = [bool(status & _JOINED) for status in statuses]
        cycle = Cycle(
            [status >> _FLAG_BITS for status in statuses],
            joined,
            [rank for rank, status in enumerate(statuses) if status & _LEAVING],
        )
        if not all(joined):
            counts, least = words[self._size :], sum(joined)
            cycle.ready = [index for index, count in enumerate(counts) if count == self._size]
            cycle.waiting = [index for index, count in enumerate(counts) if least < count < self._size]
        return cycle

    def end_cycle(self, cycle: Cycle, messages: Sequence[bytes]) -> list[Response]:
        """The responses that are ready now, in the same order at all ranks. `messages` has one of each rank, or is
        empty if no rank has a message."""
        outcomes = [self._cached_outcome(index, cycle.joined) for index in cycle.ready]
        if messages:
            self._undescribed = []
        for rank, message in enumerate(messages):
            for request in decode(message):
                self._forget(request.name)
                self._table.setdefault(request.name, {})[rank] = request
        self._forget_conflicting(cycle.waiting)
        for name, described in list(self._table.items()):
            if all(rank in described or has_joined for rank, has_joined in enumerate(cycle.joined)):
                del self._table[name]
                outcomes.append(self._outcome(name, described))
        outcomes += self._conflicts(cycle.joined)
        for outcome in outcomes:
            self._pending.pop(outcome.name, None)
            self._wanted_since.pop(outcome.name, None)
        if all(cycle.joined):
            newly = [rank for rank in range(self._size) if not self._joined_before[rank]]
            outcomes.append(Response("", RequestType.JOIN, (), number=newly[-1]))
            self._joining, cycle.joined = False, [False] * self._size
        self._joined_before = cycle.joined
        return outcomes

    def stalled(self, now: float, after_s: float) -> list[Stall]:
        """Requests of this rank that have waited at least `after_s` for other ranks."""
        return [
            Stall(
                name,
                ready=sorted(self._table[name]),
                missing=[rank for rank in range(self._size) if rank not in self._table[name]],
            )
            for name, since in self._wanted_since.items()
            if now - since >= after_s and name in self._table
        ]

    # Tables.

    def _cached_outcome(self, index: int, joined: Sequence[bool]) -> Response:
        entry = self._cache[index]
        assert entry is not None, "all ranks have the same cache"
        self._hits.pop(index, None)
        wanted = {rank: request for rank, request in enumerate(entry) if not joined[rank]}
        return self._agreed(entry[0].name, wanted)

    def _outcome(self, name: str, described: dict[int, Request]) -> Response:
        error = disagreement(described)
        if error is not None:
            requests = tuple(described.get(rank) for rank in range(self._size))
            return Response(name, next(iter(described.values())).kind, requests, error)
        outcome = self._agreed(name, described)
        if outcome.error is None and len(described) == self._size and outcome.request.named:
            self._remember(name, tuple(described[rank] for rank in range(self._size)))
        return outcome

    def _agreed(self, name: str, wanted: dict[int, Request]) -> Response:
        requests = tuple(wanted.get(rank) for rank in range(self._size))
        request = next(iter(wanted.values()))
        number, error = 0, None
        if len(wanted) < self._size:
            error = _joined_error(request, [rank for rank in range(self._size) if rank not in wanted])
        if request.kind is RequestType.ADD_PROCESS_SET and error is None:
            self._process_sets += 1
            number = self._process_sets
        return Response(name, request.kind, requests, error, number)

    def _forget_conflicting(self, waiting: Sequence[int]) -> None:
        """Drops each entry in `waiting` (which some ranks want) under whose name another kind is wanted, too. Its ranks
        describe it in the next cycle."""
        entries = [entry[0] for index in waiting if (entry := self._cache[index]) is not None and entry[0].named]
        described = [next(iter(requests.values())) for requests in self._table.values()]
        kinds = Counter(request.chosen_name for request in (*entries, *described) if request.named)
        for request in entries:
            if kinds[request.chosen_name] > 1:
                self._forget(request.name)

    def _conflicts(self, joined: Sequence[bool]) -> list[Response]:
        """Failures of requests of different kinds under one name, if every rank has such a request."""
        by_name: dict[str, list[dict[int, Request]]] = {}
        for described in self._table.values():
            if (request := next(iter(described.values()))).named:
                by_name.setdefault(request.chosen_name, []).append(described)
        failed: list[Response] = []
        for name, kinds in by_name.items():
            who = set().union(*kinds)
            if len(kinds) > 1 and all(rank in who or has_joined for rank, has_joined in enumerate(joined)):
                error = disagreement_on_kind(name, kinds)
                for described in kinds:
                    request = next(iter(described.values()))
                    del self._table[request.name]
                    requests = tuple(described.get(rank) for rank in range(self._size))
                    failed.append(Response(request.name, request.kind, requests, error))
        return failed

    def _remember(self, name: str, requests: tuple[Request, ...]) -> None:
        if not self._free and len(self._cache) >= self._cache_entries_max:
            for known in list(self._index):
                self._forget(known)
        if self._free:
            index = heapq.heappop(self._free)
            self._cache[index] = requests
        else:
            index = len(self._cache)
            self._cache.append(requests)
        self._index[name] = index

    def _forget(self, name: str) -> None:
        index = self._index.pop(name, None)
        if index is None:
            return
        self._cache[index] = None
        heapq.heappush(self._free, index)
        if index in self._hits:
            self._undescribed.append(self._hits.pop(index))


def _joined_error(request: Request, absent: Sequence[int]) -> str | None:
    if request.kind not in JOINED_RANKS_MAY_BE_ABSENT:
        return (
            f"{request.kind.value} of '{request.name}' is not supported while {ranks_text(absent)} "
            f"{'has' if len(absent) == 1 else 'have'} joined: only all-reduce is"
        )
    if request.op not in (Op.SUM, Op.AVERAGE):
        return (
            f"allreduce of '{request.name}' with op={request.op.value} is not supported while {ranks_text(absent)} "
            f"{'has' if len(absent) == 1 else 'have'} joined, since zeros would change the result"
        )
    return None
