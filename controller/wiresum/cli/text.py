"""How commands write: tables for people, objects for scripts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from wiresum import join


def table(rows: Iterable[Sequence[str]]) -> str:
    """Lines with their columns under each other; the first row is the heading."""
    lines = [[visible(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in lines
    )


def visible(text: str) -> str:
    """Replaces characters that could move the cursor or colour the terminal: another machine sent the text."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def counted(counts: Mapping[str, int]) -> str:
    """Counts in words, as "4 out of lease, 2 unknown"."""
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(counts.items()))


RESOURCES = {"slots": "slots", "jobs": "jobs", "multicast_groups": "multicast groups"}
"""Names of resources in words; all other resources are entries of tables."""


def most_taken(room: Mapping[str, int], taken: Mapping[str, int]) -> tuple[str, float]:
    """The resource of a switch whose smallest share is free, and this share. An empty name: the switch reports no
    resources."""
    shares = {name: (room[name] - taken.get(name, 0)) / room[name] for name in room if room[name]}
    name = min(shares, key=lambda name: (shares[name], name), default="")
    return name, shares.get(name, 1.0)


def scarcest(room: Mapping[str, int], taken: Mapping[str, int]) -> tuple[float, str]:
    """The free share of the resource that is `most_taken`, and in words how much is free, as "96 of 4096 entries of
    table admit"."""
    name, share = most_taken(room, taken)
    what = RESOURCES.get(name, f"entries of table {name}")
    return share, f"{max(0, room[name] - taken.get(name, 0))} of {room[name]} {what}" if name else ""


def switches_of(root: str, count: int) -> str:
    """A job's tree of `count` switches: the root, and how many are below it. Empty: the job has no switch."""
    return f"{root}+{count - 1}" if count > 1 else root


def workers_of(job: join.JobReport) -> str:
    """How many workers have joined, of how many, and how many streams they have to their switches if some share one."""
    shared = f" in {job.streams}" if 0 < job.streams < job.joined else ""
    return f"{job.joined}/{job.world_size}{shared}"


def duration(seconds: float) -> str:
    """A duration as 9s, 3m05s, 2h07m, or 3d04h."""
    minutes, whole = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{whole:02}s" if minutes else f"{whole}s"


COUNTED = ("packets", "results", "stray_packets")
"""Fields of a job, or a switch, that may be `uncounted`; the contributions of a job's parts may be, too."""


def as_dict(message: Message) -> dict[str, Any]:
    """Every field of a message under its own name; absent and `uncounted` fields are None.

    Protobuf's own JSON mapping turns 64-bit integers into strings and leaves zeros out, and scripts want to add them
    up.
    """
    found = {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}
    if found.get("uncounted"):
        found |= {name: None for name in COUNTED if name in found}
        for part in (*found.get("workers", ()), *found.get("switches", ())):
            part["contributions"] = None
    return found


def _value(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if isinstance(value, MutableMapping):
        return dict(value)
    is_message = field.message_type is not None
    if isinstance(value, MutableSequence):
        return [as_dict(item) if is_message else item for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return as_dict(value) if is_message else value
