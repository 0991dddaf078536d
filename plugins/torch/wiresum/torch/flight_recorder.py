"""The newest collectives of this process's groups, in the format of PyTorch's flight recorder, version 2.10.

`python -m torch.distributed.flight_recorder.fr_trace FOLDER` compares the files of all ranks, and says which rank is
missing in which collective. Nothing is recorded for it: the calls are noted anyway (calls.py). It takes the names that
PyTorch's own backends use, with the prefix `gloo:`, since it knows no others.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import threading
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from wiresum.join import ranks_text

if TYPE_CHECKING:
    from wiresum.torch.calls import Call

log = logging.getLogger("wiresum")

VERSION = "2.10"
SIZE_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
FILE_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
FILE_PREFIX = "comm_lib_trace_rank_"
NAMES = {
    "all_reduce_coalesced": "allreduce_coalesced",
    "all_gather_single": "_all_gather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
}
"""Collectives to which the flight recorder gives other names."""

networks: weakref.WeakSet[Recorded] = weakref.WeakSet()
"""The networks of this process's groups."""
_writing = threading.Lock()


class Group(NamedTuple):
    """A group of `torch.distributed`."""

    name: str
    description: str
    ranks: list[int]
    """The members' ranks in the default group."""

    def named(self, *ranks: int) -> str:
        """Names members for people: by their ranks here, and by their global ranks where those differ."""
        return ranks_text(ranks, [self.ranks[rank] for rank in ranks])


class Record(NamedTuple):
    """One group's calls."""

    group: Group
    rank: int
    """This worker's rank in the group."""
    calls: Sequence[Call]
    """The newest calls, oldest first."""
    submitted: int
    """How many operations the session has had, with its own first one, which precedes all calls."""

    def sequence(self, call: Call) -> int:
        """The call's number without wrap-around, counted from 1."""
        return self.submitted - ((self.submitted - call.number) & 0xFFFF) - 1

    def forgotten(self) -> int:
        return self.sequence(self.calls[0]) - 1 if self.calls else 0


class Recorded(Protocol):
    """The part of a Network that a dump needs."""

    def record(self) -> Record: ...


def entries_max() -> int:
    """How many collectives to dump. With 0, the default here, no file is written, and a dump has all known ones."""
    return int(next(filter(None, map(os.environ.get, SIZE_VARIABLES)), "0"))


def dump(records: Iterable[Record]) -> bytes:
    """Pickles a dict like the one that `torch._C._distributed_c10d` makes of NCCL's collectives."""
    records = list(records)
    found = [(call.created_ns, index, call) for index, record in enumerate(records) for call in record.calls]
    found.sort(key=lambda one: one[:2])
    first = sum(record.forgotten() for record in records)
    entries = [_entry(first + k, index, records[index], call) for k, (_, index, call) in enumerate(found)]
    newest = entries[-entries_max() :] if entries_max() else entries
    groups = {record.group.name: record.group for record in records}
    return pickle.dumps(
        {
            "version": VERSION,
            "entries": newest,
            "pg_config": {
                name: {"name": name, "desc": group.description, "ranks": str(group.ranks)}
                for name, group in groups.items()
            },
            "pg_status": {
                str(index): {"last_enqueued_collective": record.submitted} for index, record in enumerate(records)
            },
        }
    )


def write(rank: int, content: bytes) -> None:
    """Writes the file of this rank of the default group. Does not raise."""
    prefix = next(filter(None, map(os.environ.get, FILE_VARIABLES)), "") or str(_cache() / FILE_PREFIX)
    path = Path(f"{prefix}{rank}")
    with _writing:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_name(f".{path.name}.{os.getpid()}")
            unfinished.write_bytes(content)
            unfinished.rename(path)
        except OSError as error:
            log.warning("wiresum: the flight record could not be written to %s: %s", path, error)
            return
    log.warning("wiresum: the newest collectives of this process are in %s", path)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch"


def _entry(record_id: int, group_id: int, record: Record, call: Call) -> dict[str, Any]:
    sequence = record.sequence(call)
    inputs, outputs = _sides(call, record.rank, len(record.group.ranks))
    return {
        "record_id": record_id,
        "pg_id": group_id,
        "process_group": (record.group.name, record.group.description),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": f"gloo:{NAMES.get(call.name, call.name)}",
        "time_created_ns": call.created_ns,
        "input_sizes": [shape for _, shape in inputs],
        "input_dtypes": [dtype for dtype, _ in inputs],
        "output_sizes": [shape for _, shape in outputs],
        "output_dtypes": [dtype for dtype, _ in outputs],
        "state": "completed" if call.ended_well else "started",
        "time_discovered_started_ns": call.created_ns,
        "time_discovered_completed_ns": None,
        "retired": call.ended_well,
        "timeout_ms": int(1000 * call.timeout_s) if math.isfinite(call.timeout_s) else 0,
        "is_p2p": False,
        "frames": [],
    }


_Side = list[tuple[str, list[int]]]


def _sides(call: Call, rank: int, size: int) -> tuple[_Side, _Side]:
    """Types and shapes of inputs and outputs. A Call has one side only; lists of parts count as one tensor."""
    side: _Side = [(str(dtype).removeprefix("torch."), list(shape)) for dtype, shape, _ in call.kinds]
    if not side:
        return [("", [])], [("", [])]
    elements = sum(math.prod(shape) for _, shape in side)
    dtype = side[0][0]
    whole: _Side = [(dtype, [elements])]
    match call.name:
        case "all_gather" | "all_gather_single":
            return [(dtype, [elements // size])], whole
        case "reduce_scatter" | "reduce_scatter_single":
            return whole, [(dtype, [elements // size])]
        case "gather":  # the root's outputs come first
            return side[-1:], side[:-1] or side[-1:]
        case "scatter":
            return side[1:] or side[:1], side[:1]
        case "all_to_all" | "all_to_all_single":
            return side[len(side) // 2 :], side[: len(side) // 2]
    return side, side


def dump_all() -> bytes:
    return dump([network.record() for network in list(networks)])


def write_if_wanted(rank: int) -> None:
    """Writes a flight record after a failure, if PyTorch's setting asks for one. Does not raise."""
    try:
        if entries_max():
            write(rank, dump_all())
    except Exception:  # a failed record is no reason for another error
        log.exception("wiresum: unexpected error while writing the flight record")
