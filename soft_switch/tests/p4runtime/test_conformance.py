"""The software switch and bmv2 answer P4Runtime requests alike: same codes, and same entities read back.

The expected results are those of the specification (version 1.4). Where bmv2 deviates, its result is given beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from finsy.proto import p4r

from wiresum_lab.doubles.p4runtime_controller import (
    DELETE,
    INSERT,
    MODIFY,
    PROGRAM,
    Controller,
    Server,
    SetConfig,
    counter,
    group,
    refused,
    table_entry,
)

MAC = b"\x02\x00\x00\x00\x00\x01"
ELSEWHERE = {"address": b"\x0b", "destination": MAC}
VERDICTS = 23
"""Number of constant entries in `verdict`."""
GetConfig = p4r.GetForwardingPipelineConfigRequest


def own(address: bytes = b"\x0a\x00\x00\x01", mac: bytes = MAC, **others: Any) -> p4r.Entity:
    return table_entry("own", {"address": address, "destination": MAC}, "own_address", {"mac": mac}, **others)


def admit(worker: int = 0, **params: bytes) -> p4r.Entity:
    """The entry of worker 0 or 1 of a job with two workers, one thread and 8 slots."""
    match = {"ingress_port": b"\x01", "source": b"\x7f\x00\x00\x01", "source_port": b"\x13\x88", "thread": b"\x00"}
    match |= {"job": b"\x05", "key": b"\x4d", "worker": bytes([worker])}
    values = {"row": b"\x06", "group": b"\x06", "bit_own": bytes([1 << worker]), "bit_others": bytes([2 >> worker])}
    values |= {"has_parent": b"\0", "cell_base": b"\x10", "lease_mask": b"\xff\xf0", "lease_prefix": b"\0"} | params
    return table_entry("admit", match, "admit_worker", values)


def verdict(value: bytes, mask: bytes, priority: int = 1) -> p4r.Entity:
    return table_entry("verdict", {"kind": (value, mask)}, priority=priority)


def forward_default(action: str = "", **params: bytes) -> p4r.Entity:
    return table_entry("forward", {}, action, params, is_default_action=True)


def changed(entity: p4r.Entity, change: str) -> p4r.Entity:
    """Makes a table entry wrong in one way."""
    message, params = entity.table_entry, entity.table_entry.action.action.params
    changes: dict[str, Callable[[], object]] = {
        "field twice": lambda: message.match.add().CopyFrom(message.match[0]),
        "unknown field": lambda: message.match.add(field_id=9, exact=p4r.FieldMatch.Exact(value=b"\x01")),
        "ternary for exact": lambda: message.match[0].ternary.CopyFrom(p4r.FieldMatch.Ternary(value=b"\1", mask=b"\1")),
        "unknown table": lambda: setattr(message, "table_id", 0x02000077),
        "no table": lambda: setattr(message, "table_id", 0),
        "unknown action": lambda: setattr(message.action.action, "action_id", 0x01000077),
        "parameter missing": params.pop,
        "parameter twice": lambda: params.add().CopyFrom(params[0]),
        "unknown parameter": lambda: setattr(params[0], "param_id", 9),
        "no action": lambda: message.ClearField("action"),
        "of an action profile": lambda: setattr(message.action, "action_profile_member_id", 5),
        "counter data": lambda: setattr(message.counter_data, "packet_count", 1),
    }
    changes[change]()
    return entity


@dataclass(frozen=True)
class Case:
    """One update of a switch that holds `BASE`, and the expected code."""

    name: str
    kind: int
    entity: p4r.Entity
    code: str = "OK"
    bmv2: str | None = None
    """The code of bmv2, if it differs."""
    reads: p4r.Entity | None = None
    """The entity that is read back after an OK, if it differs from the one written."""


BASE = (own(), group(3, (1, 0)), admit(0))
UNIMPLEMENTED_BY_US = [
    Case("a clone session", INSERT, p4r.Entity(), "UNIMPLEMENTED", "OK"),
    Case("a lease of three cells", INSERT, admit(1, lease_mask=b"\xff\xfd"), "UNIMPLEMENTED", "OK"),
    Case("a lease beyond the slots", INSERT, admit(1, cell_base=b"\x20\x00"), "OUT_OF_RANGE", "OK"),
    Case("another worker's bit", INSERT, admit(1, bit_own=b"\x04"), "UNIMPLEMENTED", "OK"),
]
UNIMPLEMENTED_BY_US[0].entity.packet_replication_engine_entry.clone_session_entry.session_id = 5
"""Updates that only this switch refuses. It supports less than the program, which a hardware switch runs as it is."""

TABLES = [
    Case("insert", INSERT, own(b"\x0b")),
    Case("insert what is there", INSERT, own(), "ALREADY_EXISTS"),
    Case("insert what is there, padded", INSERT, own(b"\x00\x0a\x00\x00\x01"), "ALREADY_EXISTS"),
    Case("insert padded", INSERT, own(b"\x00\x00\x0b", b"\x00\x05"), reads=own(b"\x0b", b"\x05")),
    Case("insert zeros", INSERT, own(b"\x00\x00\x00\x00", b"\x00\x00"), reads=own(b"\x00", b"\x00")),
    Case("admit", INSERT, admit(1)),
    Case("controller's metadata", INSERT, own(b"\x0b", controller_metadata=6)),
    Case("metadata", INSERT, own(b"\x0b", metadata=b"note")),
    Case("modify", MODIFY, own(mac=b"\x09")),
    Case("modify without an action", MODIFY, changed(own(), "no action"), "OK", "INVALID_ARGUMENT", reads=own()),
    Case("modify what is not there", MODIFY, own(b"\x0b"), "NOT_FOUND"),
    Case("delete what is not there", DELETE, own(b"\x0b"), "NOT_FOUND"),
    Case("value too large", INSERT, own(b"\x01\x00\x00\x00\x00"), "INVALID_ARGUMENT"),
    Case("value empty", INSERT, own(b""), "INVALID_ARGUMENT", "OK"),
    Case("field missing", INSERT, table_entry("own", {}, "own_address", {"mac": MAC}), "INVALID_ARGUMENT"),
    *(
        Case(change, INSERT, changed(own(b"\x0b"), change), "INVALID_ARGUMENT")
        for change in (
            "field twice",
            "unknown field",
            "ternary for exact",
            "unknown table",
            "no table",
            "unknown action",
            "parameter missing",
            "parameter twice",
            "unknown parameter",
            "no action",
            "of an action profile",
            "counter data",
        )
    ),
    Case("parameter too large", INSERT, own(b"\x0b", b"\x01" + MAC), "INVALID_ARGUMENT"),
    Case("parameter empty", INSERT, own(b"\x0b", b""), "INVALID_ARGUMENT", "OK"),
    Case("another table's action", INSERT, table_entry("own", ELSEWHERE, "flood"), "INVALID_ARGUMENT"),
    Case("a default's action", INSERT, table_entry("own", ELSEWHERE, "NoAction"), "PERMISSION_DENIED"),
    Case("priority among exact fields", INSERT, own(b"\x0b", priority=3), "INVALID_ARGUMENT"),
    Case("idle time-out", INSERT, own(b"\x0b", idle_timeout_ns=5), "INVALID_ARGUMENT"),
    Case("constant entry", INSERT, table_entry("verdict", {}, "hold", priority=1), "PERMISSION_DENIED", "UNKNOWN"),
    Case("constant entry goes", DELETE, table_entry("verdict", {}, priority=1), "PERMISSION_DENIED", "NOT_FOUND"),
    Case("insert a default", INSERT, forward_default("flood"), "INVALID_ARGUMENT"),
    Case("delete a default", DELETE, forward_default("flood"), "INVALID_ARGUMENT"),
    Case("modify a default", MODIFY, forward_default("forward_to", port=b"\x01")),
    Case("reset a default", MODIFY, forward_default(), reads=forward_default("flood")),
    Case(
        "modify a constant default",
        MODIFY,
        table_entry("own", {}, "NoAction", is_default_action=True),
        "PERMISSION_DENIED",
    ),
    Case(
        "default with a priority",
        MODIFY,
        table_entry("forward", {}, "flood", is_default_action=True, priority=1),
        "INVALID_ARGUMENT",
    ),
    Case(
        "default with a match",
        MODIFY,
        table_entry("forward", {"mac": b"\x01"}, "flood", is_default_action=True),
        "INVALID_ARGUMENT",
    ),
]

GROUPS = [
    Case("group", INSERT, group(4, (1, 0), (2, 1))),
    Case("group without copies", INSERT, group(4)),
    Case("group that is there", INSERT, group(3), "ALREADY_EXISTS"),
    Case("group changes", MODIFY, group(3, (5, 5))),
    Case("group that is not there", MODIFY, group(4), "NOT_FOUND"),
    Case("group that is not there goes", DELETE, group(4), "NOT_FOUND"),
    Case("group 0", INSERT, group(0), "INVALID_ARGUMENT"),
    Case("group with a large number", INSERT, group(70_000), "OUT_OF_RANGE"),
    Case("the same copy twice", INSERT, group(4, (1, 1), (1, 1)), "INVALID_ARGUMENT"),
]

COUNTERS = [
    Case("counter", MODIFY, counter("packets", 2047, 5)),
    Case("counter back to zero", MODIFY, counter("contributions", 8191, 0)),
    Case("counter without data", MODIFY, counter("packets", 3), reads=counter("packets", 3, 0)),
    Case("counter inserted", INSERT, counter("packets", 3, 5), "INVALID_ARGUMENT"),
    Case("counter deleted", DELETE, counter("packets", 3, 5), "INVALID_ARGUMENT", "OK"),
    Case("counter at a negative index", MODIFY, counter("packets", -1, 5), "INVALID_ARGUMENT"),
    Case("counter beyond its size", MODIFY, counter("results", 256, 5), "OUT_OF_RANGE", "UNKNOWN"),
]

OTHERS = [
    Case("no entity", INSERT, p4r.Entity(), "INVALID_ARGUMENT", "UNKNOWN"),
    Case("no kind of update", 0, own(b"\x0b"), "INVALID_ARGUMENT"),
    *(
        Case(place, MODIFY, p4r.Entity(**{place: message}), "UNIMPLEMENTED")
        for place, message in {
            "register_entry": p4r.RegisterEntry(register_id=PROGRAM.p4info.registers[0].preamble.id),
            "value_set_entry": p4r.ValueSetEntry(),
            "extern_entry": p4r.ExternEntry(),
        }.items()
    ),
    *(
        Case(place, INSERT, p4r.Entity(**{place: message}), "INVALID_ARGUMENT")
        for place, message in {
            "meter_entry": p4r.MeterEntry(meter_id=0x14000001),
            "action_profile_member": p4r.ActionProfileMember(action_profile_id=0x11000001),
            "action_profile_group": p4r.ActionProfileGroup(action_profile_id=0x11000001),
            "direct_counter_entry": p4r.DirectCounterEntry(),
            "direct_meter_entry": p4r.DirectMeterEntry(),
            "packet_replication_engine_entry": p4r.PacketReplicationEngineEntry(),
        }.items()
    ),
]


@pytest.fixture(scope="module")
def primary() -> Iterator[Callable[[Server], Controller]]:
    """One primary client of each server, with the pipeline loaded."""
    made: dict[str, Controller] = {}

    def of(server: Server) -> Controller:
        if server.kind not in made:
            controller = made[server.kind] = server.connect()
            assert controller.bid(1000) == "OK"
            controller.load(server.config)
        return made[server.kind]

    yield of
    for controller in made.values():
        controller.close()


@pytest.fixture
def controller(server: Server, primary: Callable[[Server], Controller]) -> Controller:
    """The client of a switch that holds `BASE`."""
    controller = primary(server)
    controller.clear()
    assert controller.write(INSERT, *BASE) == ["OK"] * len(BASE)
    return controller


def keyed(entity: p4r.Entity) -> p4r.Entity:
    """A request to read this entity alone."""
    asked = p4r.Entity()
    asked.CopyFrom(entity)
    for field in ("action", "controller_metadata", "metadata"):
        asked.table_entry.ClearField(field) if asked.HasField("table_entry") else None
    return asked


@pytest.mark.parametrize(
    "case", [*TABLES, *GROUPS, *COUNTERS, *OTHERS, *UNIMPLEMENTED_BY_US], ids=lambda c: str(c.name)
)
def test_an_update_is_answered_and_read_back(case: Case, server: Server, controller: Controller) -> None:
    before = controller.read(table_entry("own"), table_entry("admit"), group(0))
    (code,) = controller.write(case.kind, case.entity)
    assert code == server.expects(case.code, case.bmv2)
    if code == "OK" and case.bmv2 is None:
        expected = case.reads or case.entity
        assert controller.read(keyed(expected)) == [expected]
    if code != "OK":
        assert controller.read(table_entry("own"), table_entry("admit"), group(0)) == before


@pytest.mark.parametrize("entity", [own(), admit(0), group(3)], ids=["own", "admit", "group"])
def test_a_deleted_entity_is_gone(entity: p4r.Entity, controller: Controller) -> None:
    assert controller.write(DELETE, keyed(entity)) == ["OK"]
    rest = controller.read(table_entry("own"), table_entry("admit"), group(0))
    assert len(rest) == len(BASE) - 1
    assert controller.write(DELETE, keyed(entity)) == ["NOT_FOUND"]
    assert controller.write(INSERT, entity) == ["OK"]


def test_a_batch_reports_the_code_of_each_update(controller: Controller) -> None:
    assert controller.write(INSERT, own(), own(b"\x0b"), own(b"\x0b"), own(b"\x0c")) == [
        "ALREADY_EXISTS",
        "OK",
        "ALREADY_EXISTS",
        "OK",
    ]
    assert len(controller.read(table_entry("own"))) == 3


def test_a_full_table_refuses_another_entry(server: Server, controller: Controller) -> None:
    codes = controller.write(INSERT, *(own(bytes([11, number])) for number in range(16)))
    full = server.expects("RESOURCE_EXHAUSTED", "UNKNOWN")
    assert codes == ["OK"] * 15 + [full]


def test_both_servers_give_the_same_constant_entries_and_defaults(
    software_server: Server, bmv2_server: Server, primary: Callable[[Server], Controller]
) -> None:
    defaults = p4r.Entity(table_entry=p4r.TableEntry(is_default_action=True))
    for controller in (primary(software_server), primary(bmv2_server)):
        controller.write(MODIFY, forward_default())
    ours, theirs = (primary(server).read(table_entry("verdict"), defaults) for server in (software_server, bmv2_server))
    assert len(ours) == VERDICTS + 6
    assert ours == theirs


def test_a_read_selects_by_the_given_fields(server: Server, controller: Controller) -> None:
    controller.write(INSERT, own(b"\x0b", controller_metadata=6))
    everything = controller.read(p4r.Entity(table_entry=p4r.TableEntry()))
    assert len(everything) == 3 + VERDICTS
    assert len(controller.read(table_entry("own"))) == 2
    assert controller.read(table_entry("own", {"address": b"\x0c", "destination": MAC})) == []
    assert len(controller.read(table_entry("own", controller_metadata=6))) == server.expects(1, 2)
    assert len(controller.read(table_entry("own"), table_entry("own"))) == 4
    assert controller.read() == []


@pytest.mark.parametrize(
    ("wanted", "code", "bmv2"),
    [
        (changed(table_entry("own"), "unknown table"), "INVALID_ARGUMENT", None),
        (table_entry("admit", {"job": b"\x05"}), "INVALID_ARGUMENT", None),
        (verdict(b"\x01", b"\x01", priority=0), "INVALID_ARGUMENT", None),
        (verdict(b"\x00", b"\x00"), "INVALID_ARGUMENT", None),
        (verdict(b"\x01", b"\x02"), "INVALID_ARGUMENT", None),
        (group(77), "NOT_FOUND", None),
        (counter("packets", -1), "INVALID_ARGUMENT", None),
        (counter("packets", 2048), "OUT_OF_RANGE", "UNKNOWN"),
        (p4r.Entity(), "INVALID_ARGUMENT", "UNKNOWN"),
        (p4r.Entity(register_entry=p4r.RegisterEntry(register_id=1)), "UNIMPLEMENTED", None),
    ],
    ids=[
        "table",
        "match",
        "no priority",
        "mask of zeros",
        "outside the mask",
        "group",
        "negative index",
        "index",
        "entity",
        "register",
    ],
)
def test_an_invalid_read_is_refused(
    wanted: p4r.Entity, code: str, bmv2: str | None, server: Server, controller: Controller
) -> None:
    with refused(str(server.expects(code, bmv2))):
        controller.read(wanted)


@pytest.mark.parametrize("atomicity", [p4r.WriteRequest.ROLLBACK_ON_ERROR, p4r.WriteRequest.DATAPLANE_ATOMIC])
def test_atomic_batches_are_unimplemented(atomicity: int, controller: Controller) -> None:
    with refused("UNIMPLEMENTED"):
        controller.write(INSERT, own(b"\x0b"), atomicity=atomicity)


def test_loading_a_pipeline_empties_tables_and_resets_counters(server: Server, controller: Controller) -> None:
    controller.write(MODIFY, counter("packets", 9, 5))
    controller.load(server.config)
    assert controller.read(table_entry("own"), table_entry("admit"), group(0)) == []
    assert controller.read(counter("packets", 9)) == [counter("packets", 9, 0)]


def test_the_pipeline_is_read_back_in_parts(server: Server, controller: Controller) -> None:
    controller.load(server.config)
    parts = {
        GetConfig.ALL: {"p4info", "p4_device_config", "cookie"},
        GetConfig.COOKIE_ONLY: {"cookie"},
        GetConfig.P4INFO_AND_COOKIE: {"p4info", "cookie"},
        GetConfig.DEVICE_CONFIG_AND_COOKIE: {"p4_device_config", "cookie"},
    }
    for response_type, fields in parts.items():
        request = GetConfig(device_id=server.device, response_type=response_type)
        config = controller.stub.GetForwardingPipelineConfig(request).config
        assert {field.name for field, _ in config.ListFields()} == fields
        assert config.cookie.cookie == 0xC00C1E
        assert config.p4info == PROGRAM.p4info or "p4info" not in fields
        assert config.p4_device_config == server.config or "p4_device_config" not in fields


def test_a_pipeline_can_be_saved_and_committed_later(server: Server, controller: Controller) -> None:
    controller.load(server.config, SetConfig.VERIFY)
    controller.load(server.config, SetConfig.VERIFY_AND_SAVE)
    request = SetConfig(device_id=server.device, action=SetConfig.COMMIT)
    request.election_id.low = controller.election_id
    controller.stub.SetForwardingPipelineConfig(request)
    assert controller.read(table_entry("own")) == []


@pytest.mark.parametrize(("device", "bmv2"), [(0, None), (1, "FAILED_PRECONDITION")])
def test_another_device_id_is_not_found(device: int, bmv2: str | None, server: Server, controller: Controller) -> None:
    if device == 0:
        version = controller.stub.Capabilities(p4r.CapabilitiesRequest()).p4runtime_api_version
        assert version.startswith("1.")
        return
    with refused(str(server.expects("NOT_FOUND", bmv2))):
        request = GetConfig(device_id=server.device + 1)
        controller.stub.GetForwardingPipelineConfig(request)


def test_only_the_primary_controller_may_write(server: Server, controller: Controller) -> None:
    other = server.connect()
    try:
        assert other.bid(999) == "ALREADY_EXISTS"
        assert len(other.read(table_entry("own"))) == 1, "every client may read"
        with refused("PERMISSION_DENIED"):
            other.write(INSERT, own(b"\x0b"))
        with refused("PERMISSION_DENIED"):
            other.load(server.config)
        assert other.bid(controller.election_id + 1) == "OK"
        assert controller.standing() == "ALREADY_EXISTS", "the former primary is notified"
        assert other.write(INSERT, own(b"\x0b")) == ["OK"]
        with refused("PERMISSION_DENIED"):
            controller.write(INSERT, own(b"\x0c"))
    finally:
        other.close()
    assert controller.standing() == server.expects("NOT_FOUND", "OK"), "bmv2 makes the next highest bidder primary"
    assert controller.bid(controller.election_id + 2) == "OK"


def test_an_election_id_cannot_be_used_twice(server: Server, controller: Controller) -> None:
    other = server.connect()
    with refused("INVALID_ARGUMENT"):
        other.bid(controller.election_id)
    other.close()
    assert controller.write(INSERT, own(b"\x0b")) == ["OK"], "the first one is undisturbed"


def test_a_controller_without_an_election_id_is_never_primary(server: Server, controller: Controller) -> None:
    other = server.connect()
    assert other.bid(None) == "ALREADY_EXISTS"
    other.close()
    with pytest.raises(grpc.RpcError):
        other.hear()
