"""A switch's tables, groups and counters, as finsy's entities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import finsy as fy
from finsy.proto import p4r

from wiresum.controller.p4runtime.client import Client
from wiresum.controller.p4runtime.desired import Entity
from wiresum.controller.p4runtime.device_config import Pipeline
from wiresum.controller.p4runtime.difference import GROUP, STAGES, NormalEntry, normal

AnyEntity = TypeVar("AnyEntity", fy.P4TableEntry, fy.P4MulticastGroupEntry, fy.P4CounterEntry)


class Tables:
    def __init__(self, client: Client, pipeline: Pipeline) -> None:
        self._client = client
        self._schema = fy.P4Schema(pipeline.p4info)

    def normal(self, entities: Iterable[Entity]) -> list[NormalEntry]:
        return [normal(entity, self._schema) for entity in entities]

    def insert(self, what: str, entities: Iterable[Entity]) -> None:
        """Inserts entries, which the switch may apply in any order. `what`: names them in an error."""
        self._client.write(what, "INSERT", self._encoded(entities))

    def modify(self, what: str, entities: Iterable[Entity | fy.P4CounterEntry]) -> None:
        self._client.write(what, "MODIFY", self._encoded(entities))

    def delete(self, what: str, entities: Iterable[Entity]) -> None:
        """Deletes entries. No error for entries that are not there."""
        self._client.write(what, "DELETE", self._encoded(entities))

    def read(self, what: str, entities: Sequence[AnyEntity]) -> list[AnyEntity]:
        """Reads entities. Fields of `entities` that are left out match anything."""
        kind = type(entities[0])
        return [kind.decode(entity, self._schema) for entity in self._client.read(what, self._encoded(entities))]

    def held(self) -> list[NormalEntry]:
        """All entries of the controller's stages."""
        return decode_held(self._client.read("what it holds", encode_held(self._schema)), self._schema)

    def _encoded(self, entities: Iterable[Entity | fy.P4CounterEntry]) -> list[p4r.Entity]:
        return [entity.encode(self._schema) for entity in entities]


def encode_held(schema: fy.P4Schema) -> list[p4r.Entity]:
    """The entities to read in order to get all entries of the controller's stages."""
    tables = [fy.P4TableEntry(stage).encode(schema) for stage in STAGES if stage != GROUP]
    return [*tables, fy.P4MulticastGroupEntry().encode(schema)]


def decode_held(read: Iterable[p4r.Entity], schema: fy.P4Schema) -> list[NormalEntry]:
    return [normal(_decode(entity, schema), schema) for entity in read]


def _decode(entity: p4r.Entity, schema: fy.P4Schema) -> Entity:
    if entity.HasField("table_entry"):
        return fy.P4TableEntry.decode(entity, schema)
    return fy.P4MulticastGroupEntry.decode(entity, schema)
