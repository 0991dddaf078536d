"""A rank's request, and its encoding for the other ranks.

Requests travel as JSON, which cannot make another process run code. If ranks request different things under one name,
`disagreement` says what differs, and at which ranks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import Enum
from typing import Any

from wiresum.agent.agreement import by_rank

DIMENSIONS_MAX = 64
"""PyTorch's limit on the dimensions of a tensor."""


class RequestType(str, Enum):
    ALLREDUCE = "allreduce"
    SPARSE_ALLREDUCE = "sparse allreduce"
    ALLGATHER = "allgather"
    BROADCAST = "broadcast"
    ALLTOALL = "alltoall"
    REDUCESCATTER = "reducescatter"
    BARRIER = "barrier"
    ADD_PROCESS_SET = "add_process_set"
    REMOVE_PROCESS_SET = "remove_process_set"
    JOIN = "join"


class Op(str, Enum):
    """The operators of reductions."""

    AVERAGE = "Average"
    SUM = "Sum"
    ADASUM = "Adasum"
    MIN = "Min"
    MAX = "Max"
    PRODUCT = "Product"


FIRST_DIMENSION_MAY_DIFFER = (RequestType.ALLGATHER, RequestType.ALLTOALL)
JOINED_RANKS_MAY_BE_ABSENT = (RequestType.ALLREDUCE,)
"""Collectives from which a rank that has joined may be absent, as if it added zeros. The others have no neutral element
of this kind."""


class MalformedMessageError(RuntimeError):
    """A message of another rank is not a list of requests."""


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a collective, with one tensor or with several that become ready together."""

    kind: RequestType
    name: str
    dtypes: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    op: Op = Op.SUM
    root: int = -1
    """The root of a broadcast, as a rank of the process set; or the id of the process set to remove; else -1."""
    prescale: float = 1.0
    postscale: float = 1.0
    splits: tuple[int, ...] = ()
    """How many rows an all-to-all sends to each rank."""
    members: tuple[int, ...] = ()
    """The global ranks of a new process set."""
    named: bool = True
    """True if the caller chose the name. Other names are used once, and are not cached."""

    @property
    def chosen_name(self) -> str:
        """The caller's name, without the kind that `name` begins with; empty if the caller chose none."""
        return self.name.removeprefix(f"{self.kind.value}.") if self.named else ""


def encode(requests: Sequence[Request]) -> bytes:
    if not requests:
        return b""
    return json.dumps([astuple(request) for request in requests], separators=(",", ":")).encode()


def decode(message: bytes) -> list[Request]:
    if not message:
        return []
    try:
        rows = json.loads(message)
        return [_decode_one(row) for row in rows]
    except (ValueError, TypeError, UnicodeDecodeError) as error:
        raise MalformedMessageError(
            f"another rank's requests cannot be read ({error}): run one version of wiresum at all ranks"
        ) from error


def _decode_one(row: Any) -> Request:
    kind, name, dtypes, shapes, op, root, prescale, postscale, splits, members, named = row
    if not isinstance(name, str) or not isinstance(named, bool) or len(dtypes) != len(shapes):
        raise ValueError("a malformed name or number of tensors")
    if not all(isinstance(dtype, str) for dtype in dtypes) or any(len(shape) > DIMENSIONS_MAX for shape in shapes):
        raise ValueError("a malformed tensor")
    return Request(
        RequestType(kind),
        name,
        tuple(dtypes),
        tuple(_counts(shape) for shape in shapes),
        Op(op),
        _whole(root, -1),
        float(prescale),
        float(postscale),
        _counts(splits),
        _counts(members),
        named,
    )


def _counts(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(_whole(value, 0) for value in values)


def _whole(value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{value!r} is not a whole number from {least}")
    return value


def disagreement(requests: Mapping[int, Request]) -> str | None:
    """A text on the first property that must be the same at all ranks but differs; None if all ranks agree."""
    first = next(iter(requests.values()))
    for what, value in _COMPARED:
        if len({value(request) for request in requests.values()}) > 1:
            return _mismatch(what, first.name, {rank: value(request) for rank, request in requests.items()})
    return None


def disagreement_on_kind(name: str, kinds: Sequence[Mapping[int, Request]]) -> str:
    """A text on which rank has called which collective under a name. `kinds` has the requests of each kind, by rank."""
    by_kind = [(rank, request.kind.value) for requests in kinds for rank, request in requests.items()]
    called = {rank: " and ".join(kind for who, kind in by_kind if who == rank) for rank, _ in by_kind}
    return _mismatch("collective operations", name, called)


def _mismatch(what: str, name: str, values: Mapping[int, object]) -> str:
    return f"Mismatched {what} for '{name}': {by_rank(values)}. All ranks must call the same"


def _shapes(request: Request) -> str:
    if request.kind in FIRST_DIMENSION_MAY_DIFFER:
        return ", ".join(str(["any", *shape[1:]]).replace("'", "") for shape in request.shapes)
    return ", ".join(str(list(shape)) for shape in request.shapes)


_COMPARED: tuple[tuple[str, Callable[[Request], object]], ...] = (
    ("collective operations", lambda request: request.kind.value),
    ("numbers of tensors", lambda request: len(request.shapes)),
    ("data types", lambda request: ", ".join(request.dtypes)),
    ("tensor shapes", _shapes),
    ("reduction operations", lambda request: request.op.value),
    ("prescale factors", lambda request: request.prescale),
    ("postscale factors", lambda request: request.postscale),
    ("root ranks", lambda request: request.root),
    ("process sets", lambda request: str(list(request.members))),
)
