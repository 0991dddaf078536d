"""What to change so that a switch holds what it should. Pure.

The order matters. A job is in effect while its entries in `admit` exist, and the entries that they rely on must exist
all that time. So entries are deleted in the order own, admit, admit_parent_entry, group, deliver, forward, and inserted
in the opposite order. `own` comes last because a switch without such entries has not been reconciled since its program
was loaded.

An entry with another action is modified in place, so that it is never absent. But an admission is deleted and inserted
anew, since the old one may give cells to a worker that a new one gives to another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import finsy as fy
from finsy.proto import p4r

from wiresum.controller.p4runtime import own
from wiresum.controller.p4runtime.desired import Entity, pipe_of
from wiresum.controller.p4runtime.target import Target

GROUP = "group"
KEYS = "keys"
"""Stands for the entry with the number of keys given to the switch. It is no stage: it depends on neither configuration
nor jobs."""
ADMISSIONS = ("admit_parent_entry", "admit")
STAGES = ("forward", "deliver", GROUP, *ADMISSIONS, "own")
"""The controller's tables and multicast groups, in order of insertion. Table `lose` is for tests."""


@dataclass(frozen=True)
class NormalEntry:
    """An entry in a form that can be compared, however the switch encodes it."""

    stage: str
    key: bytes
    """Identifies the entry: two entries with equal stages and keys are one."""
    value: bytes
    """What the entry does: action and parameters, or replicas."""
    entity: Entity = field(compare=False)
    text: str = field(compare=False)
    """The entry in words, for people."""


@dataclass(frozen=True)
class Batch:
    """Updates that may be made in any order among themselves."""

    kind: str
    """The type of update, in P4Runtime's words: "DELETE", "INSERT" or "MODIFY"."""
    stage: str
    entries: tuple[NormalEntry, ...]

    def lines(self) -> list[str]:
        sign = {"DELETE": "-", "INSERT": "+", "MODIFY": "~"}[self.kind]
        return [f"{sign} {entry.text}" for entry in self.entries]


def normal(entity: Entity, schema: fy.P4Schema) -> NormalEntry:
    if isinstance(entity, fy.P4MulticastGroupEntry):
        copies = sorted(
            entity.encode(schema).packet_replication_engine_entry.multicast_group_entry.replicas, key=_bytes
        )
        key, value = entity.multicast_group_id.to_bytes(4, "big"), b"".join(map(_bytes, copies))
        shown = ", ".join(f"port {copy.egress_port} (receiver {copy.instance})" for copy in copies)
        return NormalEntry(GROUP, key, value, entity, f"{GROUP} {entity.multicast_group_id}: {shown or 'no copies'}")
    entry = entity.encode_entry(schema)
    entry.match.sort(key=lambda field: field.field_id)
    entry.action.action.params.sort(key=lambda parameter: parameter.param_id)
    place = p4r.TableEntry(table_id=entry.table_id, match=entry.match, priority=entry.priority)
    text = _text(fy.P4TableEntry.decode_entry(entry, schema))
    stage = KEYS if own.is_keys_given(entity) else entity.table_id
    return NormalEntry(stage, _bytes(place), _bytes(entry.action), entity, text)


def concerning(target: Target, held: Iterable[NormalEntry]) -> list[NormalEntry]:
    """The held entries that concern the target: without the number of keys, and without the entries for jobs of its
    siblings."""
    return [entry for entry in held if entry.stage != KEYS and pipe_of(target, entry.entity) in (None, target.pipe)]


def difference(held: Iterable[NormalEntry], wanted: Iterable[NormalEntry]) -> list[Batch]:
    """The batches that turn `held` into `wanted`, in the order in which they must be applied."""
    have = {(entry.stage, entry.key): entry for entry in held}
    want = {(entry.stage, entry.key): entry for entry in wanted}
    stay = {place for place, entry in have.items() if place in want and want[place].value == entry.value}
    modify = {place for place in have.keys() & want.keys() - stay if place[0] not in ADMISSIONS}
    go = [entry for place, entry in have.items() if place not in stay | modify]
    come = [entry for place, entry in want.items() if place not in stay | modify]
    batches = [_batch("DELETE", stage, go) for stage in reversed(STAGES)]
    for stage in STAGES:
        batches += [_batch("MODIFY", stage, [want[place] for place in modify]), _batch("INSERT", stage, come)]
    return [batch for batch in batches if batch.entries]


def _batch(kind: str, stage: str, entries: Sequence[NormalEntry]) -> Batch:
    return Batch(kind, stage, tuple(sorted((e for e in entries if e.stage == stage), key=lambda entry: entry.key)))


def _bytes(message: p4r.TableEntry | p4r.TableAction | p4r.Replica) -> bytes:
    serialised: bytes = message.SerializeToString(deterministic=True)
    return serialised


def _text(entry: fy.P4TableEntry) -> str:
    action = entry.action
    does = f"{action.name}({_values(action.args)})" if isinstance(action, fy.P4TableAction) else "nothing"
    return f"{entry.table_id} {_values(entry.match or {})}: {does}"


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_value(name, value)}" for name, value in values.items())


def _value(name: str, value: Any) -> str:
    """A value for people, without secrets, which must not be in a log."""
    return "(secret)" if name == "key" else str(value)
