"""The entries that a controller wrote, in tables and multicast groups: inserts, changes, removes and reads them."""

from __future__ import annotations

from collections.abc import Iterator

from finsy.proto import p4r

from wiresum.switch.p4runtime.pipeline import Program
from wiresum.switch.p4runtime.refusal import (
    already_exists,
    denied,
    exhausted,
    invalid,
    not_found,
    out_of_range,
    unimplemented,
)
from wiresum.switch.p4runtime.schema import METADATA_BYTES_MAX, Key, ParsedEntry, Table

INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE
GROUPS_MAX = 1024
GROUP_ID_MAX = INSTANCE_MAX = 0xFFFF
REPLICAS_MAX = 512
"""The most replicas of one group."""


class Store:
    """Entries and groups; empty at first, as after a pipeline was loaded."""

    def __init__(self, program: Program) -> None:
        self._schema = program.schema
        self._tables: dict[int, dict[Key, ParsedEntry]] = {number: {} for number in self._schema.tables}
        self._defaults = {table.id: table.initial_default() for table in self._schema.tables.values()}
        self._constant = program.constant_entries
        self._groups: dict[int, p4r.MulticastGroupEntry] = {}

    def group(self, number: int) -> p4r.MulticastGroupEntry | None:
        return self._groups.get(number)

    # Tables.

    def check_entry(self, kind: int, message: p4r.TableEntry) -> ParsedEntry | None:
        """The entry that an INSERT or MODIFY writes, or a DELETE removes, for `put_entry`. None: nothing is left to
        do."""
        table = self._schema.table(message.table_id)
        if message.is_default_action:
            self._write_default(table, kind, message)
            return None
        if table.constant:
            raise denied(f"the entries of table {table.name} are constant")
        entries = self._tables[table.id]
        key = table.key(message)
        if kind == DELETE:
            if key not in entries:
                raise not_found(f"table {table.name} has no such entry")
            return entries[key]
        if kind == MODIFY and key in entries and not message.HasField("action"):
            table.check_extras(message)
            return None
        entry = table.entry(message, key)
        if kind == INSERT and key in entries:
            raise already_exists(f"table {table.name} has this entry already: use MODIFY to change its action")
        if kind == INSERT and len(entries) >= table.size:
            raise exhausted(f"table {table.name} is full: it has room for {table.size} entries")
        if kind == MODIFY and key not in entries:
            raise not_found(f"table {table.name} has no such entry")
        return entry

    def put_entry(self, kind: int, entry: ParsedEntry) -> None:
        entries = self._tables[entry.key[0]]
        if kind == DELETE:
            del entries[entry.key]
        else:
            entries[entry.key] = entry

    def read_tables(self, wanted: p4r.TableEntry) -> Iterator[p4r.TableEntry]:
        """Yields all entries that match what the request names."""
        if wanted.table_id == 0:
            if wanted.match:
                raise invalid("a read of all tables can name no match fields")
            tables = list(self._schema.tables.values())
        else:
            tables = [self._schema.table(wanted.table_id)]
        for table in tables:
            if wanted.HasField("time_since_last_hit"):
                table.check_extras(wanted)
            if wanted.table_id and wanted.HasField("action"):
                table.check_action_id(wanted.action.action.action_id)
            yield from (entry for entry in self._candidates(table, wanted) if _selected(entry, wanted))

    def _write_default(self, table: Table, kind: int, message: p4r.TableEntry) -> None:
        if kind != MODIFY:
            raise invalid(f"the default entry of table {table.name} is always there: use MODIFY")
        self._defaults[table.id] = table.default(message)

    def _candidates(self, table: Table, wanted: p4r.TableEntry) -> Iterator[p4r.TableEntry]:
        if wanted.is_default_action:
            yield self._defaults[table.id]
        elif table.constant:
            keys = None if not wanted.match else table.key(wanted)
            yield from (entry for entry in self._constant if keys is None or table.key(entry) == keys)
        elif wanted.match:
            entry = self._tables[table.id].get(table.key(wanted))
            if entry is not None:
                yield entry.message
        else:
            yield from (entry.message for entry in self._tables[table.id].values())

    # Multicast groups.

    def write_group(self, kind: int, message: p4r.MulticastGroupEntry) -> None:
        number = message.multicast_group_id
        if number == 0:
            raise invalid("0 is no multicast group: groups are numbered from 1")
        if number > GROUP_ID_MAX:
            raise out_of_range(f"multicast groups are numbered from 1 to {GROUP_ID_MAX}")
        if kind == INSERT and number in self._groups:
            raise already_exists(f"there is a multicast group {number} already")
        if kind != INSERT and number not in self._groups:
            raise not_found(f"there is no multicast group {number}")
        if kind == DELETE:
            del self._groups[number]
            return
        _check_replicas(message)
        if kind == INSERT and len(self._groups) >= GROUPS_MAX:
            raise exhausted(f"this switch has room for {GROUPS_MAX} multicast groups")
        self._groups[number] = message

    def read_groups(self, number: int) -> Iterator[p4r.MulticastGroupEntry]:
        """Yields the group of a number; 0 stands for all groups."""
        if number == 0:
            yield from self._groups.values()
        elif number in self._groups:
            yield self._groups[number]
        else:
            raise not_found(f"there is no multicast group {number}")


def _selected(entry: p4r.TableEntry, wanted: p4r.TableEntry) -> bool:
    """True if the other fields of a request select the entry. An unset field selects everything."""
    return (
        wanted.priority in (0, entry.priority)
        and wanted.controller_metadata in (0, entry.controller_metadata)
        and wanted.metadata in (b"", entry.metadata)
        and (not wanted.HasField("action") or wanted.action.action.action_id == entry.action.action.action_id)
    )


def _check_replicas(message: p4r.MulticastGroupEntry) -> None:
    if len(message.replicas) > REPLICAS_MAX:
        raise exhausted(f"a multicast group has at most {REPLICAS_MAX} replicas")
    if len(message.metadata) > METADATA_BYTES_MAX:
        raise invalid(f"a group keeps {METADATA_BYTES_MAX} bytes of metadata, not {len(message.metadata)}")
    if any(replica.backup_replicas for replica in message.replicas):
        raise unimplemented("this switch has no backup replicas: it has no ports that could go down")
    if any(replica.instance > INSTANCE_MAX for replica in message.replicas):
        raise invalid(f"a replica's instance is at most {INSTANCE_MAX}")
    copies = {(replica.port or replica.egress_port, replica.instance) for replica in message.replicas}
    if len(copies) != len(message.replicas):
        raise invalid("two replicas of a multicast group have the same port and instance")
