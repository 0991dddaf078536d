"""For tests of whatever drives a switch over P4Runtime: a switch that keeps entries and forwards nothing.

What a real switch makes of the entries is the matter of bmv2_tests; here it matters which requests come, in what
order, and what becomes of errors.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
from finsy.proto import p4r, p4r_grpc, rpc_code, rpc_status

THREADS = 8
STOP_S_MAX = 1.0


class FakeSwitch(p4r_grpc.P4RuntimeServicer):
    """Serves at a port of 127.0.0.1, a free one unless given, from construction to `stop`."""

    def __init__(self, port: int = 0) -> None:
        self.config: p4r.ForwardingPipelineConfig | None = None
        self.configs = 0
        """How often a program was loaded."""
        self.entities: dict[bytes, p4r.Entity] = {}
        """Table entries and multicast groups, by `_key`."""
        self.groups: dict[int, list[tuple[int, int]]] = {}
        """What the replication engine copies to: ports and instances. Loading a program leaves it, as in bmv2."""
        self.counters: dict[tuple[int, int], int] = {}
        """Packets, by counter and index."""
        self.log: list[tuple[str, str]] = []
        """Every update that was made: what was done, and to which table, "group" or "counter"."""
        self.capacities: dict[str, int] = {}
        """Entries that a table has room for, if that is tested."""
        self.refuses_deletions = False
        self.answering = threading.Event()
        """Cleared: no Write is answered until it is set."""
        self.answering.set()
        self._tables: dict[int, str] = {}
        self._primary = 0
        self._streams: dict[int, int] = {}
        self._streams_opened = 0
        self._server: Any = grpc.server(futures.ThreadPoolExecutor(THREADS))
        p4r_grpc.add_P4RuntimeServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"
        self._server.start()

    def stop(self) -> None:
        self.answering.set()
        self._server.stop(STOP_S_MAX / 2).wait(STOP_S_MAX)

    def entries(self, table: str) -> list[p4r.TableEntry]:
        assert self.config is not None
        found = [entity.table_entry for entity in self.entities.values() if self._place(entity) == table]
        return sorted(found, key=lambda entry: entry.SerializeToString(deterministic=True))

    # The service.

    def Capabilities(self, request: object, context: object) -> p4r.CapabilitiesResponse:  # noqa: N802
        return p4r.CapabilitiesResponse(p4runtime_api_version="1.3.0")

    def StreamChannel(  # noqa: N802
        self, requests: Iterator[p4r.StreamMessageRequest], context: Any
    ) -> Iterator[p4r.StreamMessageResponse]:
        self._streams_opened += 1
        stream = self._streams_opened
        try:
            for request in requests:
                election_id = request.arbitration.election_id.low
                if any(taken == election_id for other, taken in self._streams.items() if other != stream):
                    context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Election id already exists")
                self._streams[stream] = election_id
                self._primary = max(self._streams.values())
                code = rpc_code.OK if election_id == self._primary else rpc_code.ALREADY_EXISTS
                response = p4r.StreamMessageResponse()
                response.arbitration.device_id = request.arbitration.device_id
                response.arbitration.election_id.low = self._primary
                response.arbitration.status.code = code
                yield response
        finally:
            self._streams.pop(stream, None)
            self._primary = max(self._streams.values(), default=0)

    def SetForwardingPipelineConfig(  # noqa: N802
        self, request: p4r.SetForwardingPipelineConfigRequest, context: Any
    ) -> p4r.SetForwardingPipelineConfigResponse:
        self._check_primary(request.election_id.low, context)
        self.config = request.config
        self._tables = {table.preamble.id: table.preamble.alias for table in request.config.p4info.tables}
        self.configs += 1
        self.entities.clear()
        self.counters.clear()
        self.log.clear()
        return p4r.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(  # noqa: N802
        self, request: object, context: object
    ) -> p4r.GetForwardingPipelineConfigResponse:
        return p4r.GetForwardingPipelineConfigResponse(config=self.config)

    def Write(self, request: p4r.WriteRequest, context: Any) -> p4r.WriteResponse:  # noqa: N802
        self._check_primary(request.election_id.low, context)
        self.answering.wait()
        errors = [self._update(update) for update in request.updates]
        if any(error.canonical_code != rpc_code.OK for error in errors):
            status = rpc_status.Status(code=rpc_code.UNKNOWN)
            for error in errors:
                status.details.add().Pack(error)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.abort(grpc.StatusCode.UNKNOWN, "")
        return p4r.WriteResponse()

    def Read(self, request: p4r.ReadRequest, context: object) -> Iterator[p4r.ReadResponse]:  # noqa: N802
        response = p4r.ReadResponse()
        for asked in request.entities:
            if asked.HasField("packet_replication_engine_entry"):  # all of them
                response.entities.extend(entity for entity in self.entities.values() if self._place(entity) == "group")
            else:
                counter = response.entities.add().counter_entry
                counter.CopyFrom(asked.counter_entry)
                counter.data.packet_count = self.counters.get((counter.counter_id, counter.index.index), 0)
        yield response

    # What it keeps.

    def _check_primary(self, election_id: int, context: Any) -> None:
        if election_id != self._primary:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "Not primary")

    def _update(self, update: p4r.Update) -> p4r.Error:
        kind, place = p4r.Update.Type.Name(update.type), self._place(update.entity)
        key = self._key(update.entity)
        if place == "counter":
            entry = update.entity.counter_entry
            self.counters[entry.counter_id, entry.index.index] = entry.data.packet_count
        elif kind == "INSERT":
            if key in self.entities:
                return p4r.Error(canonical_code=rpc_code.ALREADY_EXISTS, message="Match entry exists")
            if place in self.capacities and len(self.entries(place)) >= self.capacities[place]:
                return p4r.Error(canonical_code=rpc_code.RESOURCE_EXHAUSTED, message="Table is full")
            self.entities[key] = update.entity
            self._replicate(update.entity)
        elif key not in self.entities:
            return p4r.Error(canonical_code=rpc_code.NOT_FOUND, message="Cannot find match entry")
        elif kind == "DELETE" and self.refuses_deletions:
            return p4r.Error(canonical_code=rpc_code.INTERNAL, message="Out of order")
        elif kind == "DELETE":
            del self.entities[key]
            self.groups.pop(
                update.entity.packet_replication_engine_entry.multicast_group_entry.multicast_group_id, None
            )
        else:
            self.entities[key] = update.entity
        self.log.append((kind, place))
        return p4r.Error(canonical_code=rpc_code.OK)

    def _replicate(self, entity: p4r.Entity) -> None:
        group = entity.packet_replication_engine_entry.multicast_group_entry
        if group.multicast_group_id:
            copies = self.groups.setdefault(group.multicast_group_id, [])
            copies += [(replica.egress_port, replica.instance) for replica in group.replicas]

    def _place(self, entity: p4r.Entity) -> str:
        if entity.HasField("table_entry"):
            return self._tables[entity.table_entry.table_id]
        return "group" if entity.HasField("packet_replication_engine_entry") else "counter"

    def _key(self, entity: p4r.Entity) -> bytes:
        """What makes two entities the same entry: all but action and replicas."""
        key = p4r.Entity()
        key.CopyFrom(entity)
        if key.HasField("table_entry"):
            key.table_entry.ClearField("action")
        elif key.HasField("packet_replication_engine_entry"):
            key.packet_replication_engine_entry.multicast_group_entry.ClearField("replicas")
        serialised: bytes = key.SerializeToString(deterministic=True)
        return serialised
