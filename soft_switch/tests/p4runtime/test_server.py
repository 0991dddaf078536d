"""The server around the switch: its bounds, access by role, and hostile requests."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4r, p4r_grpc, rpc_code
from google.protobuf import any_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wiresum.controller.security import ROLES, Shares, interceptor
from wiresum.controller.security.authority import Authority, Holder
from wiresum.controller.security.names import Claims
from wiresum.join.credentials import CredentialsError, load, open_channel
from wiresum.switch import SoftwareSwitch
from wiresum.switch.p4runtime import P4RuntimeServer
from wiresum.switch.p4runtime import server as server_module
from wiresum_lab.doubles.p4runtime_controller import (
    DELETE,
    INSERT,
    MODIFY,
    PROGRAM,
    Controller,
    SetConfig,
    counter,
    group,
    refused,
    table_entry,
)
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

DEVICE = 3
CONFIG = b'{"lanes": 4, "slots": 64}'
OWN = table_entry("own", {"address": b"\x0a\x00\x00\x01", "destination": b"\x01"}, "own_address", {"mac": b"\x01"})


class Served:
    """A switch with a server, and its controllers."""

    def __init__(self, cleanup: ExitStack) -> None:
        self._cleanup = cleanup
        self.switch = cleanup.enter_context(closing(SoftwareSwitch(port=0, threads=1, slots=64, lanes_max=4)))
        self.server = P4RuntimeServer(self.switch, DEVICE)
        cleanup.callback(self.server.stop)
        self.address = f"127.0.0.1:{self.server.start(port=0)}"

    def connect(self, channel: grpc.Channel | None = None) -> Controller:
        return self._cleanup.enter_context(closing(Controller(self.address, DEVICE, channel=channel)))

    def programmed(self) -> Controller:
        controller = self.connect()
        assert controller.bid(1) == "OK"
        controller.load(CONFIG)
        return controller


@pytest.fixture
def served() -> Iterator[Served]:
    with ExitStack() as cleanup:
        yield Served(cleanup)


@pytest.fixture(scope="module")
def programmed() -> Iterator[Controller]:
    with ExitStack() as cleanup:
        yield Served(cleanup).programmed()


# Without a pipeline or a primary controller.


def test_without_a_pipeline_reads_and_writes_are_refused(served: Served) -> None:
    controller = served.connect()
    assert not controller.stub.GetForwardingPipelineConfig(
        p4r.GetForwardingPipelineConfigRequest(device_id=DEVICE)
    ).HasField("config")
    with refused("PERMISSION_DENIED"):
        controller.write(INSERT, OWN)
    assert controller.bid(1) == "OK"
    with refused("FAILED_PRECONDITION"):
        controller.write(INSERT, OWN)
    with refused("FAILED_PRECONDITION"):
        controller.read(OWN)
    with refused("NOT_FOUND"):
        request = SetConfig(device_id=DEVICE, action=SetConfig.COMMIT)
        request.election_id.low = 1
        controller.stub.SetForwardingPipelineConfig(request)
    with refused("INVALID_ARGUMENT"):
        controller.load(b"another target's")


def test_a_refused_pipeline_leaves_the_earlier_one(served: Served) -> None:
    controller = served.programmed()
    assert controller.write(INSERT, OWN) == ["OK"]
    with refused("INVALID_ARGUMENT"):
        controller.load(b'{"lanes": 5, "slots": 64}')
    with refused("UNIMPLEMENTED"):
        controller.load(CONFIG, SetConfig.RECONCILE_AND_COMMIT)
    assert controller.read(table_entry("own")) == [OWN]


@pytest.mark.parametrize("field", ["role", "device_id"])
def test_unknown_roles_and_devices_are_not_found(served: Served, field: str) -> None:
    controller = served.programmed()
    other = {"role": "reader"} if field == "role" else {"device_id": DEVICE + 1}
    with refused("NOT_FOUND"):
        controller.stub.Read(p4r.ReadRequest(**{"device_id": DEVICE, **other})).next()
    request = p4r.WriteRequest(**{"device_id": DEVICE, **other})
    request.election_id.low = 1
    with refused("NOT_FOUND"):
        controller.stub.Write(request)


# Streams.


NOT_FOR_THIS_SWITCH = {
    "nothing": (p4r.StreamMessageRequest(), "INVALID_ARGUMENT", "other"),
    "acknowledgement": (
        p4r.StreamMessageRequest(digest_ack=p4r.DigestListAck(digest_id=1)),
        "UNIMPLEMENTED",
        "digest_list_ack",
    ),
    "packet": (p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=b"frame")), "UNIMPLEMENTED", "packet_out"),
    "other": (p4r.StreamMessageRequest(other=any_pb2.Any()), "UNIMPLEMENTED", "other"),
}


@pytest.mark.parametrize(("message", "code", "details"), NOT_FOR_THIS_SWITCH.values(), ids=NOT_FOR_THIS_SWITCH.keys())
def test_unsupported_stream_messages_are_answered_with_an_error(
    served: Served, message: p4r.StreamMessageRequest, code: str, details: str
) -> None:
    def answer() -> tuple[str, str | None]:
        controller.say(message)
        error = controller.hear().error
        return rpc_code.Code.Name(error.canonical_code), error.WhichOneof("details")

    controller = served.connect()
    assert answer() == (code, details)
    assert controller.bid(1) == "OK", "the stream stays open"
    assert answer() == (code, details), "also for the primary controller"


def test_stopping_ends_streams_and_frees_the_port(served: Served) -> None:
    controller = served.programmed()
    served.server.stop()
    served.server.stop()
    with pytest.raises(grpc.RpcError):
        controller.hear()
    with socket.create_server(("127.0.0.1", int(served.address.rpartition(":")[2]))):
        pass


def test_silent_calls_do_not_block_a_controller_and_end(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interceptor, "FIRST_MESSAGE_S_MAX", 0.1)
    with grpc.insecure_channel(served.address) as channel:
        hold = threading.Event()
        silent = [p4r_grpc.P4RuntimeStub(channel).StreamChannel(iter(hold.wait, True)) for _ in range(80)]
        controller = served.programmed()
        assert controller.write(INSERT, OWN) == ["OK"]
        for stream in silent:
            with refused("DEADLINE_EXCEEDED"):
                next(stream)
        hold.set()


# Bounds on requests.


def test_a_request_larger_than_the_bound_is_refused(served: Served) -> None:
    controller = served.programmed()
    big = table_entry(
        "own",
        {"address": bytes(server_module.REQUEST_BYTES_MAX), "destination": b"\x01"},
        "own_address",
        {"mac": b"\x01"},
    )
    with refused("RESOURCE_EXHAUSTED"):
        controller.write(INSERT, big)
    with refused("RESOURCE_EXHAUSTED"):
        controller.write(INSERT, *[p4r.Entity()] * (server_module.UPDATES_MAX + 1))
    assert controller.write(INSERT, OWN) == ["OK"]


def test_the_size_of_a_read_is_bounded(programmed: Controller) -> None:
    everything = p4r.Entity(counter_entry=p4r.CounterEntry())
    assert len(programmed.read(everything)) == 2048 + 8192 + 256
    with refused("RESOURCE_EXHAUSTED"):
        programmed.read(*[everything] * 7)


def test_the_codes_of_a_batch_are_reported_up_to_a_bound(programmed: Controller) -> None:
    assert programmed.write(DELETE, *(group(number) for number in range(1, 301))) == ["NOT_FOUND"] * 300
    with refused("UNKNOWN"):
        programmed.write(DELETE, *(group(number) for number in range(1, 1001)))


def test_groups_and_metadata_are_bounded(programmed: Controller) -> None:
    assert set(programmed.write(INSERT, *(group(number) for number in range(1, 1025)))) == {"OK"}
    assert programmed.write(INSERT, group(1025)) == ["RESOURCE_EXHAUSTED"]
    programmed.clear()
    assert programmed.write(INSERT, group(1, *((1, instance) for instance in range(513)))) == ["RESOURCE_EXHAUSTED"]
    noted = table_entry(
        "own", {"address": b"\x01", "destination": b"\x01"}, "own_address", {"mac": b"\x01"}, metadata=bytes(1025)
    )
    assert programmed.write(INSERT, noted) == ["INVALID_ARGUMENT"]


def test_a_port_in_use_is_an_error_that_says_so(served: Served) -> None:
    other = P4RuntimeServer(served.switch, DEVICE)
    with pytest.raises(OSError, match=f"cannot listen at {served.address}"):
        other.start(port=int(served.address.rpartition(":")[2]))
    other.stop()


# Access.


def test_plaintext_beyond_loopback_must_be_enabled_explicitly(served: Served) -> None:
    with pytest.raises(CredentialsError, match="insecure"):
        P4RuntimeServer(served.switch, DEVICE).start("0.0.0.0", 0)
    asked_for = P4RuntimeServer(served.switch, DEVICE, insecure=True)
    assert asked_for.start("0.0.0.0", 0)
    asked_for.stop()


MAY = {
    "Write": {"controller"},
    "SetForwardingPipelineConfig": {"controller"},
    "StreamChannel": {"controller"},
    "Read": {"controller", "operator"},
    "GetForwardingPipelineConfig": {"controller", "operator"},
    "Capabilities": {"controller", "operator", "switch", "worker"},
}
"""The roles that may call each method."""


def role_is_refused(address: str, tls: Path, method: str) -> bool:
    """Calls without a message; with the right role, there is no error, or another one."""
    with open_channel(address, tls=tls, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.stream_stream(f"/p4.v1.P4Runtime/{method}")(iter(()), timeout=PATIENCE_S)
        with suppress(grpc.RpcError):
            list(call)
        code, text = call.code().name, call.details()
        assert (code == "PERMISSION_DENIED") == ("does not have the role" in text), (code, text)
        assert (code == "UNAUTHENTICATED") == ("was revoked" in text), (code, text)
        return code in ("PERMISSION_DENIED", "UNAUTHENTICATED")


def test_each_method_can_only_be_called_by_its_roles(served: Served, tmp_path: Path) -> None:
    service = p4r.DESCRIPTOR.services_by_name["P4Runtime"]
    assert set(MAY) == {method.name for method in service.methods}
    authority, foreign = (Authority.create(tmp_path / name, "test") for name in ("ca", "foreign-ca"))
    for role in ROLES:
        holder = Holder(role, Claims(frozenset({role})), addresses=("127.0.0.1",))
        authority.issue(holder, tmp_path / role, days=1)
    revoked = Holder("lost", Claims(frozenset({"controller"})))
    authority.issue(revoked, tmp_path / "revoked", days=1)
    foreign.issue(revoked, tmp_path / "foreign", days=1)
    authority.revoke(authority.issued("lost"))
    shutil.copy(tmp_path / "ca" / "ca.crl", tmp_path / "switch")
    secured = P4RuntimeServer(served.switch, DEVICE, tls=tmp_path / "switch")
    served.address = f"127.0.0.1:{secured.start(port=0)}"
    try:
        for method, roles in MAY.items():
            for role in ROLES:
                assert role_is_refused(served.address, tmp_path / role, method) == (role not in roles), (method, role)
            assert role_is_refused(served.address, tmp_path / "revoked", method)
        trusted = load(tmp_path / "controller").authority
        strange = load(tmp_path / "foreign")
        for credentials in (
            grpc.ssl_channel_credentials(trusted),
            grpc.ssl_channel_credentials(trusted, strange.key, strange.certificate),
            None,
        ):
            made = grpc.secure_channel(served.address, credentials) if credentials else None
            with made or grpc.insecure_channel(served.address) as channel, refused("UNAVAILABLE"):
                p4r_grpc.P4RuntimeStub(channel).Capabilities(p4r.CapabilitiesRequest())
        connected = {role: served.connect(open_channel(served.address, tls=tmp_path / role)) for role in ROLES}
        assert connected["controller"].bid(1) == "OK"
        connected["controller"].load(CONFIG)
        assert connected["controller"].write(INSERT, OWN) == ["OK"]
        assert connected["operator"].read(table_entry("own")) == [OWN]
    finally:
        secured.stop()


Secured = tuple[Authority, P4RuntimeServer]


@pytest.fixture
def secured(served: Served, tmp_path: Path) -> Iterator[Secured]:
    """At `served.address`, with a certificate for each role in a folder of its name."""
    authority = Authority.create(tmp_path / "ca", "test")
    for role in ROLES:
        authority.issue(Holder(role, Claims(frozenset({role})), addresses=("127.0.0.1",)), tmp_path / role, days=1)
    server = P4RuntimeServer(served.switch, DEVICE, tls=tmp_path / "switch")
    served.address = f"127.0.0.1:{server.start(port=0)}"
    yield authority, server
    server.stop()


def test_one_certificate_keeps_no_other_out_by_calls_or_connections(
    served: Served, secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, server = secured
    monkeypatch.setattr(interceptor, "FIRST_MESSAGE_S_MAX", PATIENCE_S)
    calls_shared, server.security.front._shares = Shares(8), Shares(8)
    server.security.interceptor._shares = calls_shared
    over, workers = threading.Event(), [open_channel(served.address, tls=tmp_path / "worker") for _ in range(6)]

    def silence() -> Iterator[bytes]:
        over.wait(PATIENCE_S)
        yield from ()

    with ExitStack() as cleanup:
        calls = []
        for channel in map(cleanup.enter_context, workers):
            calls.append(channel.stream_stream("/p4.v1.P4Runtime/Capabilities")(silence(), timeout=PATIENCE_S))
            wait_until(lambda: calls_shared.taken == min(4, len(calls)), "the call is there")
        for call in calls[4:]:
            with refused("RESOURCE_EXHAUSTED"):
                next(call)
        controller = served.connect(open_channel(served.address, tls=tmp_path / "controller"))
        assert controller.bid(1) == "OK"
        controller.load(CONFIG)
        over.set()


def test_a_revoked_controllers_stream_ends_and_others_go_on(served: Served, secured: Secured, tmp_path: Path) -> None:
    authority, _ = secured
    authority.issue(Holder("lost", Claims(frozenset({"controller"}))), tmp_path / "lost", days=1)
    lost, kept = (served.connect(open_channel(served.address, tls=tmp_path / name)) for name in ("lost", "controller"))
    assert (lost.bid(2), kept.bid(1)) == ("OK", "ALREADY_EXISTS")
    authority.revoke(authority.issued("lost"))
    shutil.copy(tmp_path / "ca" / "ca.crl", tmp_path / "switch" / "fresh.crl")
    (tmp_path / "switch" / "fresh.crl").rename(tmp_path / "switch" / "ca.crl")
    with refused("UNAUTHENTICATED"):
        lost.hear()
    assert kept.standing() == "NOT_FOUND", "there is no primary"
    assert kept.bid(3) == "OK"


# Hostile requests.

TABLE_IDS = [table.preamble.id for table in PROGRAM.p4info.tables]
ACTION_IDS = [action.preamble.id for action in PROGRAM.p4info.actions]
COUNTER_IDS = [counter.preamble.id for counter in PROGRAM.p4info.counters]

small = st.integers(0, 9)
value = st.binary(max_size=9) | st.sampled_from([b"\0", b"\1", b"\xff\xf0", b"\xff" * 4])
any_number = st.integers(-(1 << 31), (1 << 31) - 1)
unsigned = small | st.integers(0, (1 << 32) - 1)


def one_of(*known: int) -> st.SearchStrategy[int]:
    return st.sampled_from(known) | unsigned


matches = st.builds(p4r.FieldMatch, field_id=small, exact=st.builds(p4r.FieldMatch.Exact, value=value)) | st.builds(
    p4r.FieldMatch, field_id=small, ternary=st.builds(p4r.FieldMatch.Ternary, value=value, mask=value)
)
params = st.builds(p4r.Action.Param, param_id=small, value=value)
actions = st.builds(
    p4r.TableAction,
    action=st.builds(p4r.Action, action_id=one_of(*ACTION_IDS), params=st.lists(params, max_size=8)),
) | st.builds(p4r.TableAction, action_profile_member_id=unsigned)
table_entries = st.builds(
    p4r.TableEntry,
    table_id=one_of(*TABLE_IDS),
    match=st.lists(matches, max_size=7),
    action=st.none() | actions,
    priority=st.just(0) | any_number,
    is_default_action=st.booleans(),
    metadata=value,
)
counter_entries = st.builds(
    p4r.CounterEntry,
    counter_id=one_of(*COUNTER_IDS),
    index=st.none() | st.builds(p4r.Index, index=st.integers(-(1 << 63), (1 << 63) - 1) | small),
    data=st.none() | st.builds(p4r.CounterData, packet_count=st.integers(-(1 << 63), (1 << 63) - 1)),
)
groups = st.builds(
    p4r.MulticastGroupEntry,
    multicast_group_id=unsigned,
    replicas=st.lists(st.builds(p4r.Replica, egress_port=unsigned, instance=unsigned), max_size=4),
)
entities = (
    st.builds(p4r.Entity, table_entry=table_entries)
    | st.builds(p4r.Entity, counter_entry=counter_entries)
    | st.builds(
        p4r.Entity,
        packet_replication_engine_entry=st.builds(p4r.PacketReplicationEngineEntry, multicast_group_entry=groups),
    )
    | st.builds(p4r.Entity, register_entry=st.builds(p4r.RegisterEntry, register_id=unsigned))
    | st.just(p4r.Entity())
)
CODES = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "UNIMPLEMENTED"}
CODES |= {"OUT_OF_RANGE", "RESOURCE_EXHAUSTED"}
FUZZ = settings(max_examples=100, derandomize=True, suppress_health_check=list(HealthCheck))


@FUZZ
@given(st.lists(st.tuples(st.sampled_from([INSERT, MODIFY, DELETE]), entities), min_size=1, max_size=6))
def test_any_write_is_answered_update_by_update(programmed: Controller, updates: list[tuple[int, p4r.Entity]]) -> None:
    for kind in (INSERT, MODIFY, DELETE):
        batch = [entity for of, entity in updates if of == kind]
        assert len(programmed.write(kind, *batch)) == len(batch)
        assert set(programmed.write(kind, *batch)) <= CODES


@settings(FUZZ, max_examples=40)
@given(entities)
def test_any_read_is_answered_or_refused(programmed: Controller, entity: p4r.Entity) -> None:
    try:
        programmed.read(entity)
    except grpc.RpcError as error:
        assert error.code().name in CODES


@settings(FUZZ, max_examples=40)
@given(st.binary(max_size=60))
def test_invalid_bytes_disturb_nobody(programmed: Controller, noise: bytes) -> None:
    channel = programmed._channel
    for method in ("Write", "Read", "SetForwardingPipelineConfig", "StreamChannel"):
        call = channel.stream_stream(f"/p4.v1.P4Runtime/{method}")
        try:
            for _ in call(iter([noise]), timeout=PATIENCE_S):
                pass
        except grpc.RpcError as error:
            assert error.code().name in CODES
    assert programmed.read(counter("results", 0))
