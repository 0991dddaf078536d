"""Decodes table entries by P4Info, or raises the error of the specification (P4Runtime 1.4, sections 8.4 and 9.1).

finsy's codec is for clients: it does not say what is wrong with an invalid request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from finsy.proto import p4i, p4r

from wiresum.switch.p4runtime.refusal import denied, invalid

METADATA_BYTES_MAX = 1024
"""Bytes of an entry that the switch keeps for the controller."""

TERNARY, EXACT = p4i.MatchField.TERNARY, p4i.MatchField.EXACT

Key = tuple[int, tuple[tuple[int, int, int], ...], int]
"""Identity of an entry: the table; number, value and mask of each field in order; the priority."""


@dataclass(frozen=True)
class ParsedEntry:
    """A valid table entry, decoded."""

    table: str
    key: Key
    match: Mapping[str, int]
    """Values of the exact fields, by name; ternary ones are in the key only."""
    action: str
    params: Mapping[str, int]
    message: p4r.TableEntry
    """The entry as it is read back, in canonical form."""


class Table:
    """One of the program's tables."""

    def __init__(self, info: p4i.Table, actions: Mapping[int, p4i.Action]) -> None:
        self.id: int = info.preamble.id
        self.name: str = info.preamble.alias
        self.size: int = info.size
        self.constant: bool = info.is_const_table
        self._fields = {field.id: field for field in info.match_fields}
        self._has_priority = any(field.match_type == TERNARY for field in info.match_fields)
        self._actions = actions
        self._scopes = {reference.id: reference.scope for reference in info.action_refs}
        self._default_is_constant = info.const_default_action_id != 0
        self._initial_default: p4r.Action = p4r.Action(action_id=info.initial_default_action.action_id)

    def initial_default(self) -> p4r.TableEntry:
        entry = p4r.TableEntry(table_id=self.id, is_default_action=True)
        entry.action.action.CopyFrom(self._initial_default)
        return entry

    def entry(self, message: p4r.TableEntry, key: Key) -> ParsedEntry:
        """Decodes the entry for an INSERT, or for a MODIFY with an action."""
        self.check_extras(message)
        if not message.HasField("action"):
            raise invalid(f"an entry of table {self.name} needs an action")
        action, params = self._action(message.action, default=False)
        canonical = self.canonical_key(key)
        canonical.action.action.CopyFrom(action)
        canonical.controller_metadata = message.controller_metadata
        canonical.metadata = message.metadata
        match = {self._fields[number].name: value for number, value, _ in key[1] if not self._has_priority}
        return ParsedEntry(self.name, key, match, self._actions[action.action_id].preamble.alias, params, canonical)

    def default(self, message: p4r.TableEntry) -> p4r.TableEntry:
        """The default entry that a MODIFY asks for."""
        if message.match or message.priority:
            raise invalid(f"the default entry of table {self.name} has neither match fields nor a priority")
        if self._default_is_constant:
            raise denied(f"the default action of table {self.name} is constant")
        self.check_extras(message)
        if not message.HasField("action"):
            return self.initial_default()
        action, _ = self._action(message.action, default=True)
        canonical = p4r.TableEntry(table_id=self.id, is_default_action=True, metadata=message.metadata)
        canonical.action.action.CopyFrom(action)
        canonical.controller_metadata = message.controller_metadata
        return canonical

    def key(self, message: p4r.TableEntry) -> Key:
        if self._has_priority and message.priority <= 0:
            raise invalid(f"an entry of table {self.name} needs a priority above 0, since it has ternary fields")
        if not self._has_priority and message.priority != 0:
            raise invalid(f"an entry of table {self.name} has no priority, since all its fields are exact")
        found: dict[int, tuple[int, int]] = {}
        for match in message.match:
            field = self._fields.get(match.field_id)
            if field is None:
                raise invalid(f"table {self.name} has no field {match.field_id}")
            if field.id in found:
                raise invalid(f"field {field.name} of table {self.name} is given twice")
            found[field.id] = self._value_and_mask(field, match)
        missing = [field.name for field in self._fields.values() if field.match_type == EXACT and field.id not in found]
        if missing:
            raise invalid(f"an entry of table {self.name} needs the field {missing[0]}")
        return self.id, tuple((number, *found[number]) for number in sorted(found)), message.priority

    def canonical_key(self, key: Key) -> p4r.TableEntry:
        message = p4r.TableEntry(table_id=self.id, priority=key[2])
        for number, value, mask in key[1]:
            match = message.match.add(field_id=number)
            if self._fields[number].match_type == TERNARY:
                match.ternary.value, match.ternary.mask = shortest(value), shortest(mask)
            else:
                match.exact.value = shortest(value)
        return message

    def check_extras(self, message: p4r.TableEntry) -> None:
        """Refuses features that no table of the program has."""
        if message.idle_timeout_ns or message.HasField("time_since_last_hit"):
            raise invalid(f"table {self.name} has no idle time-outs")
        for resource in ("meter_config", "counter_data", "meter_counter_data"):
            if message.HasField(resource):
                raise invalid(f"table {self.name} has no direct counter or meter")
        if len(message.metadata) > METADATA_BYTES_MAX:
            raise invalid(f"an entry keeps {METADATA_BYTES_MAX} bytes of metadata, not {len(message.metadata)}")

    def check_action_id(self, number: int) -> None:
        if number not in self._scopes:
            raise invalid(f"table {self.name} has no action {number:#010x}")

    def _value_and_mask(self, field: p4i.MatchField, match: p4r.FieldMatch) -> tuple[int, int]:
        kind = match.WhichOneof("field_match_type")
        try:
            if field.match_type == EXACT and kind == "exact":
                return _integer(match.exact.value, field.bitwidth), (1 << field.bitwidth) - 1
            if field.match_type == TERNARY and kind == "ternary":
                value = _integer(match.ternary.value, field.bitwidth)
                mask = _integer(match.ternary.mask, field.bitwidth)
                if mask == 0:
                    raise ValueError("has a mask of zeros: leave the field out")
                if value & ~mask:
                    raise ValueError("has bits outside its mask")
                return value, mask
            wanted = p4i.MatchField.MatchType.Name(field.match_type).lower()
            raise ValueError(f"is {wanted}, not {kind or 'without a value'}")
        except ValueError as error:
            raise invalid(f"field {field.name} of table {self.name} {error}") from None

    def _action(self, given: p4r.TableAction, *, default: bool) -> tuple[p4r.Action, dict[str, int]]:
        """The action in canonical form, and its parameters by name."""
        if given.WhichOneof("type") != "action":
            raise invalid(f"table {self.name} has no action profile: its entries name actions directly")
        self.check_action_id(given.action.action_id)
        info, scope = self._actions[given.action.action_id], self._scopes[given.action.action_id]
        name = info.preamble.alias
        if scope == (p4i.ActionRef.TABLE_ONLY if default else p4i.ActionRef.DEFAULT_ONLY):
            raise denied(f"action {name} is for {'entries' if default else 'the default entry'} of {self.name} alone")
        values = {param.param_id: param.value for param in given.action.params}
        if len(values) != len(given.action.params) or values.keys() != {param.id for param in info.params}:
            raise invalid(f"action {name} has {len(info.params)} parameters, each of which must be given once")
        canonical = p4r.Action(action_id=given.action.action_id)
        params: dict[str, int] = {}
        for param in info.params:
            try:
                value = _integer(values[param.id], param.bitwidth)
            except ValueError as error:
                raise invalid(f"parameter {param.name} of action {name} {error}") from None
            params[param.name] = value
            canonical.params.add(param_id=param.id, value=shortest(value))
        return canonical, params


class Schema:
    """The program's tables and counters."""

    def __init__(self, info: p4i.P4Info) -> None:
        actions = {action.preamble.id: action for action in info.actions}
        self.tables = {table.preamble.id: Table(table, actions) for table in info.tables}
        self.counters: dict[int, tuple[str, int]] = {
            counter.preamble.id: (counter.preamble.alias, counter.size) for counter in info.counters
        }
        """Name and size of each counter, by id."""

    def table(self, number: int) -> Table:
        if number not in self.tables:
            raise invalid(f"the program has no table {number:#010x}")
        return self.tables[number]

    def counter(self, number: int) -> tuple[str, int]:
        if number not in self.counters:
            raise invalid(f"the program has no counter {number:#010x}")
        return self.counters[number]


def shortest(value: int) -> bytes:
    """A value in canonical form, without leading zero bytes."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def _integer(value: bytes, bits: int) -> int:
    """Decodes a value. The text of the `ValueError` completes a sentence."""
    if not value:
        raise ValueError("is empty: a value has at least one byte")
    number = int.from_bytes(value, "big")
    if number.bit_length() > bits:
        raise ValueError(f"has {bits} bits, and the value is larger")
    return number
