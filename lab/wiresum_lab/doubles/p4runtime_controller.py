"""A controller for tests of a P4Runtime server: it sends the messages of the test, and waits for the answers."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from finsy.proto import U128, p4r, p4r_grpc, rpc_code, rpc_status

from wiresum.switch.p4runtime.pipeline import Program
from wiresum_lab.patience import PATIENCE_S

INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE
SetConfig = p4r.SetForwardingPipelineConfigRequest

PROGRAM = Program()
_TABLES = {table.preamble.alias: table for table in PROGRAM.p4info.tables}
_ACTIONS = {action.preamble.alias: action for action in PROGRAM.p4info.actions}
_COUNTERS = {counter.preamble.alias: counter for counter in PROGRAM.p4info.counters}

Value = bytes | tuple[bytes, bytes]
"""The value of an exact field, or value and mask of a ternary field."""


@dataclass(frozen=True)
class Server:
    kind: str
    address: str
    device: int
    config: bytes
    """The `p4_device_config` that the server accepts."""

    def expects(self, by_specification: object, by_bmv2: object = None) -> object:
        """The expected answer. `by_bmv2` is given where bmv2 follows an older version of the specification, or none."""
        return by_bmv2 if self.kind == "bmv2" and by_bmv2 is not None else by_specification

    def connect(self) -> Controller:
        return Controller(self.address, self.device)


class Controller:
    """A channel and a stream to a switch, from construction to `close`."""

    def __init__(self, address: str, device: int, *, channel: grpc.Channel | None = None) -> None:
        self.device = device
        self.election_id = 0
        self._channel = channel or grpc.insecure_channel(address)
        self.stub: Any = p4r_grpc.P4RuntimeStub(self._channel)
        self._said: queue.SimpleQueue[p4r.StreamMessageRequest | None] = queue.SimpleQueue()
        self._heard: queue.SimpleQueue[p4r.StreamMessageResponse | grpc.RpcError | None] = queue.SimpleQueue()
        self._stream = self.stub.StreamChannel(iter(self._said.get, None), wait_for_ready=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def close(self) -> None:
        self._said.put(None)
        self._stream.cancel()
        self._reader.join(PATIENCE_S)
        self._channel.close()

    # The stream.

    def say(self, message: p4r.StreamMessageRequest) -> None:
        self._said.put(message)

    def hear(self) -> p4r.StreamMessageResponse:
        """The next message of the switch. Raises the `grpc.RpcError` with which the stream ended."""
        message = self._heard.get(timeout=PATIENCE_S)
        assert message is not None, "the switch has closed the stream"
        if isinstance(message, grpc.RpcError):
            raise message
        return message

    def bid(self, election_id: int | None) -> str:
        """Sends an election id, which None leaves unset. Returns the name of the code in the switch's answer."""
        message = p4r.StreamMessageRequest()
        message.arbitration.device_id = self.device
        if election_id is not None:
            message.arbitration.election_id.CopyFrom(U128.encode(election_id))
            self.election_id = election_id
        self.say(message)
        return self.standing()

    def standing(self) -> str:
        return str(rpc_code.Code.Name(self.hear().arbitration.status.code))

    def _read(self) -> None:
        try:
            for message in self._stream:
                self._heard.put(message)
            self._heard.put(None)
        except grpc.RpcError as error:
            self._heard.put(error)

    # Requests.

    def load(self, device_config: bytes, action: Any = SetConfig.VERIFY_AND_COMMIT) -> None:
        request = SetConfig(device_id=self.device, action=action)
        request.election_id.low = self.election_id
        request.config.p4info.CopyFrom(PROGRAM.p4info)
        request.config.p4_device_config = device_config
        request.config.cookie.cookie = 0xC00C1E
        self.stub.SetForwardingPipelineConfig(request, timeout=PATIENCE_S)

    def write(self, kind: Any, *entities: p4r.Entity, **fields: Any) -> list[str]:
        """Writes entities, and returns the name of each update's code. `fields` are other fields of the request."""
        request = p4r.WriteRequest(device_id=self.device, **fields)
        request.election_id.low = self.election_id
        for entity in entities:
            request.updates.add(type=kind, entity=entity)
        try:
            self.stub.Write(request, timeout=PATIENCE_S)
        except grpc.RpcError as error:
            if codes := _codes_of(error):
                return codes
            raise
        return ["OK"] * len(entities)

    def read(self, *wanted: p4r.Entity) -> list[p4r.Entity]:
        """The entities that match, sorted with their replicas, since a switch may answer in any order."""
        request = p4r.ReadRequest(device_id=self.device, entities=wanted)
        answers = self.stub.Read(request, timeout=PATIENCE_S)
        found = [entity for answer in answers for entity in answer.entities]
        for entity in found:
            if entity.HasField("packet_replication_engine_entry"):
                replicas = entity.packet_replication_engine_entry.multicast_group_entry.replicas
                replicas.sort(key=lambda replica: (replica.egress_port, replica.instance))
        return sorted(found, key=lambda entity: str(entity.SerializeToString(deterministic=True)))

    def clear(self) -> None:
        """Removes all entries and groups."""
        constant = _TABLES["verdict"].preamble.id
        found = [e for e in self.read(p4r.Entity(table_entry=p4r.TableEntry())) if e.table_entry.table_id != constant]
        assert set(self.write(DELETE, *found, *self.read(group(0)))) <= {"OK"}


@contextlib.contextmanager
def refused(code: str) -> Iterator[None]:
    """Checks that the request in the block is refused as a whole, with this code."""
    try:
        yield
    except grpc.RpcError as error:
        assert error.code().name == code, f"{error.code().name}: {error.details()}"
    else:
        raise AssertionError(f"expected {code}")


def _codes_of(error: grpc.RpcError) -> list[str]:
    """The code of each update of a batch; empty if the batch was refused as a whole."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = rpc_status.Status.FromString(value)
            codes = []
            for detail in status.details:
                update = p4r.Error()
                assert detail.Unpack(update)
                codes.append(str(rpc_code.Code.Name(update.canonical_code)))
            return codes
    return []


# Entities, by the names of the program.


def table_entry(
    table: str,
    match: Mapping[str, Value] | None = None,
    action: str = "",
    params: Mapping[str, bytes] | None = None,
    **others: Any,
) -> p4r.Entity:
    """A table entry, by the names of the program. `others` are further fields of TableEntry."""
    info = _TABLES[table]
    entity = p4r.Entity(table_entry=p4r.TableEntry(table_id=info.preamble.id, **others))
    fields = {field.name: field.id for field in info.match_fields}
    for name, value in (match or {}).items():
        field = entity.table_entry.match.add(field_id=fields[name])
        if isinstance(value, tuple):
            field.ternary.value, field.ternary.mask = value
        else:
            field.exact.value = value
    if action:
        made = entity.table_entry.action.action
        made.action_id = _ACTIONS[action].preamble.id
        numbers = {param.name: param.id for param in _ACTIONS[action].params}
        for name, value in (params or {}).items():
            made.params.add(param_id=numbers[name], value=value)
    return entity


def group(number: int, *replicas: tuple[int, int]) -> p4r.Entity:
    """A multicast group; replicas are pairs of port and instance."""
    entity = p4r.Entity()
    made = entity.packet_replication_engine_entry.multicast_group_entry
    made.multicast_group_id = number
    for port, instance in replicas:
        made.replicas.add(egress_port=port, instance=instance)
    return entity


def counter(name: str, index: int | None = None, packets: int | None = None) -> p4r.Entity:
    entity = p4r.Entity()
    entity.counter_entry.counter_id = _COUNTERS[name].preamble.id
    if index is not None:
        entity.counter_entry.index.SetInParent()
        entity.counter_entry.index.index = index
    if packets is not None:
        entity.counter_entry.data.SetInParent()
        entity.counter_entry.data.packet_count = packets
    return entity
