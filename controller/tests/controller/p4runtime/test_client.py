from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from pathlib import Path
from typing import NamedTuple

import finsy as fy
import pytest
from finsy.proto import p4r

from wiresum.controller import DriverError
from wiresum.controller.p4runtime import STANDBY_ID, Client, Pipeline, deliver, own
from wiresum.controller.p4runtime import client as client_module
from wiresum.controller.p4runtime.connection import Runs
from wiresum.controller.security.authority import Authority, Holder
from wiresum.controller.security.names import CONTROLLER, SWITCH, Claims
from wiresum.switch.p4runtime import P4RuntimeServer
from wiresum.switch.software_switch import SoftwareSwitch
from wiresum_lab.doubles.p4runtime_proxy import Proxy
from wiresum_lab.processes import unused_port, wait_until

DEVICE = 64 * os.getpid() + 62


class Changes(NamedTuple):
    """Records what a client with this election id reports of its trouble, each time that it changes."""

    client: Client
    troubles: list[str]


def follow(address: str, election_id: int) -> Changes:
    heard = threading.Semaphore(0)
    client = Client(address, DEVICE, election_id=election_id, on_change=heard.release)
    troubles: list[str] = []

    def listen() -> None:
        while True:
            heard.acquire()
            troubles.append(client.trouble)

    threading.Thread(target=listen, daemon=True).start()
    return Changes(client, troubles)


@pytest.fixture
def own_entry(schema: fy.P4Schema) -> p4r.Entity:
    return own.entries("10.0.0.1", "02:00:00:00:00:01")[0].encode(schema)


@pytest.fixture
def free_port() -> int:
    return unused_port()


def test_a_switch_without_a_program_is_loaded_once(proxy: Proxy, pipeline: Pipeline) -> None:
    for expected, loads in ((Runs.NOTHING, 1), (Runs.OURS, 2)):
        with contextlib.closing(Client(proxy.address, DEVICE, election_id=loads + 1)) as client:
            client.wait_ready()
            assert client.runs(pipeline) is expected
            client.load(pipeline)
            assert client.runs(pipeline) is Runs.OURS
            assert proxy.loads == loads


def test_loading_removes_the_groups_of_an_earlier_program(
    client: Client, pipeline: Pipeline, schema: fy.P4Schema
) -> None:
    """bmv2 would keep them, and send each flooded frame twice."""
    groups = [fy.P4MulticastGroupEntry().encode(schema)]
    client.write("a group", "INSERT", [deliver.group(3, [1, 2]).encode(schema)])
    assert len(client.read("groups", groups)) == 1
    client.load(pipeline)
    assert not client.read("groups", groups)
    client.write("a group", "INSERT", [deliver.group(3, [1, 2]).encode(schema)])


def test_an_unreachable_switch_is_named(free_port: int) -> None:
    address = f"127.0.0.1:{free_port}"
    with contextlib.closing(Client(address, DEVICE, election_id=2)) as client:
        wait_until(lambda: "has been out of reach since" in client.trouble, "the client tried once")
        with pytest.raises(DriverError, match=rf"the P4 switch at {address} .*simple_switch_grpc"):
            client.wait_ready(0.0)


def test_a_server_that_accepts_connections_but_never_answers_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "HANDSHAKE_S_MAX", 0.3)
    silent = socket.create_server(("127.0.0.1", 0))
    client = Client(f"127.0.0.1:{silent.getsockname()[1]}", DEVICE, election_id=2)
    with silent, contextlib.closing(client):
        wait_until(
            lambda: "as a P4Runtime server does. Is the switch running" in client.trouble, "its silence was noticed"
        )


def test_a_client_waits_for_a_switch_that_starts_later(server: str, free_port: int, pipeline: Pipeline) -> None:
    with contextlib.closing(Client(f"127.0.0.1:{free_port}", DEVICE, election_id=2)) as client:
        wait_until(lambda: "out of reach" in client.trouble, "the client tried once")
        proxy = Proxy(server, free_port)
        try:
            client.wait_ready()
            assert client.runs(pipeline) is Runs.NOTHING
        finally:
            proxy.stop()


def test_a_client_reconnects_and_finds_the_entries_of_the_switch(
    server: str, free_port: int, pipeline: Pipeline, own_entry: p4r.Entity
) -> None:
    proxy = Proxy(server, free_port)
    client, troubles = follow(proxy.address, 7)
    with contextlib.closing(client):
        client.wait_ready()
        client.load(pipeline)
        client.write("an address", "INSERT", [own_entry])
        assert client.term == 1
        proxy.stop()
        wait_until(lambda: client.trouble != "", "the loss was noticed")
        with pytest.raises(DriverError, match=r"has been out of reach since .* UTC"):
            client.read("entries", [own_entry])
        proxy = Proxy(server, free_port)
        try:
            client.wait_ready()
            assert client.term == 2
            assert client.runs(pipeline) is Runs.OURS
            assert len(client.read("entries", [own_entry])) == 1
        finally:
            proxy.stop()
    wait_until(lambda: len(troubles) >= 3, "every change was told")
    assert troubles[0] == ""
    assert "out of reach" in troubles[1]
    assert "" in troubles[2:]


def test_a_host_that_vanishes_without_closing_connections_is_noticed(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PROBE_S", 0.05)
    monkeypatch.setattr(client_module, "PROBE_ANSWER_S_MAX", 0.2)
    monkeypatch.setattr(client_module, "HANDSHAKE_S_MAX", 0.2)
    with contextlib.closing(Client(proxy.address, DEVICE, election_id=2)) as client:
        client.wait_ready()
        proxy.answering.clear()
        wait_until(lambda: "out of reach" in client.trouble, "the silence was noticed")
        proxy.answering.set()
        client.wait_ready()


def test_the_newer_of_two_controllers_becomes_primary(proxy: Proxy, pipeline: Pipeline, own_entry: p4r.Entity) -> None:
    older, newer = (Client(proxy.address, DEVICE, election_id=number) for number in (5, 6))
    with contextlib.closing(older), contextlib.closing(newer):
        newer.wait_ready()
        wait_until(lambda: "stop that one" in older.trouble, "the older one noticed")
        assert "election id 6, and ours is 5" in older.trouble
        with pytest.raises(DriverError, match="another controller programs"):
            older.load(pipeline)
        newer.load(pipeline)
        newer.write("an address", "INSERT", [own_entry])


def test_a_standby_becomes_primary_when_the_primary_leaves(proxy: Proxy) -> None:
    first, standby = (Client(proxy.address, DEVICE, election_id=number) for number in (5, STANDBY_ID))
    with contextlib.closing(first), contextlib.closing(standby):
        first.wait_ready()
        wait_until(lambda: "stands by" in standby.trouble, "the standby met the first one")
        assert first.trouble == ""
        first.close()
        standby.wait_ready()
    with contextlib.closing(Client(proxy.address, DEVICE, election_id=6)) as next_one:
        next_one.wait_ready()
        assert next_one.election_id == 6


def test_standbys_do_not_wait_for_each_other(proxy: Proxy) -> None:
    """With two switches, each would be primary of one, and all would wait for ever."""
    with contextlib.ExitStack() as cleanup:
        standbys = [
            cleanup.enter_context(contextlib.closing(Client(proxy.address, DEVICE, election_id=STANDBY_ID)))
            for _ in range(3)
        ]
        for standby in standbys:
            standby.wait_ready()
        with contextlib.closing(Client(proxy.address, DEVICE, election_id=5)) as active:
            active.wait_ready()
            wait_until(lambda: all(standby.outranked for standby in standbys), "they all stand by")
        for standby in standbys:
            standby.wait_ready()
            assert not standby.outranked


def test_a_controller_gets_past_its_own_dead_connection(proxy: Proxy) -> None:
    """After a partition the switch may still hold the old connection, with the same election id."""
    dead, alive = (Client(proxy.address, DEVICE, election_id=5) for _ in range(2))
    with contextlib.closing(dead), contextlib.closing(alive):
        wait_until(lambda: not dead.trouble or not alive.trouble, "one has the switch")
        wait_until(lambda: "another controller programs" in dead.trouble + alive.trouble, "the other one took it")
        wait_until(lambda: "" in (dead.trouble, alive.trouble), "and has it")


def test_a_controller_whose_election_id_is_too_low_bids_higher_if_no_other_is_connected(proxy: Proxy) -> None:
    """After the loss of its state it starts with low election ids again."""
    with contextlib.closing(Client(proxy.address, DEVICE, election_id=1000)) as before:
        before.wait_ready()
    with contextlib.closing(Client(proxy.address, DEVICE, election_id=2)) as client:
        client.wait_ready()
        assert client.election_id > 1000


def test_a_refused_entry_is_reported_in_the_switchs_words(client: Client, own_entry: p4r.Entity) -> None:
    client.write("an address", "INSERT", [own_entry])
    with pytest.raises(DriverError, match=r"could not add addresses: .+ \(ALREADY_EXISTS\), and 1 more failed"):
        client.write("addresses", "INSERT", [own_entry, own_entry])


def test_deleting_a_missing_entry_succeeds(client: Client, own_entry: p4r.Entity) -> None:
    client.write("an address", "DELETE", [own_entry])


def test_a_large_update_is_split_into_several_requests(
    client: Client, schema: fy.P4Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "UPDATES_MAX", 3)
    entities = [own.entries(f"10.0.0.{i}", "02:00:00:00:00:01")[0].encode(schema) for i in range(8)]
    client.write("addresses", "INSERT", entities)
    assert len(client.read("addresses", [fy.P4TableEntry("own").encode(schema)])) == 8


def test_waiting_for_a_switch_that_does_not_answer_is_bounded(
    client: Client, proxy: Proxy, own_entry: p4r.Entity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "CALL_S_MAX", 0.2)
    proxy.answering.clear()
    with pytest.raises(DriverError, match="could not add an address: it did not answer within"):
        client.write("an address", "INSERT", [own_entry])


def test_a_call_in_flight_ends_with_the_connection(client: Client, proxy: Proxy, own_entry: p4r.Entity) -> None:
    proxy.answering.clear()
    breaking = threading.Timer(0.2, proxy.stop)
    breaking.start()
    started = time.monotonic()
    with pytest.raises(DriverError, match="could not add an address"):
        client.write("an address", "INSERT", [own_entry])
    assert time.monotonic() - started < client_module.CALL_S_MAX
    breaking.join()


def test_closing_is_idempotent_and_leaves_the_entries_in_the_switch(
    client: Client, proxy: Proxy, own_entry: p4r.Entity
) -> None:
    client.write("an address", "INSERT", [own_entry])
    client.close()
    client.close()
    with pytest.raises(DriverError):
        client.read("entries", [own_entry])
    with contextlib.closing(Client(proxy.address, DEVICE, election_id=11)) as another:
        another.wait_ready()
        assert len(another.read("entries", [own_entry])) == 1


def test_tls_authenticates_both_sides(pipeline: Pipeline, tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", "test")
    for role in (SWITCH, CONTROLLER):
        authority.issue(Holder(role, Claims(frozenset({role})), ("127.0.0.1",)), tmp_path / role, days=1)
    stranger = Authority.create(tmp_path / "other", "other")
    stranger.issue(Holder("x", Claims(frozenset({CONTROLLER})), ("127.0.0.1",)), tmp_path / "stranger", days=1)
    with contextlib.closing(SoftwareSwitch(port=0, threads=1, slots=64, lanes_max=64)) as switch:
        server = P4RuntimeServer(switch, DEVICE)
        address = f"127.0.0.1:{server.start('127.0.0.1:0', tls=tmp_path / SWITCH)}"
        try:
            for tls, trouble in (
                (None, "out of reach"),
                (tmp_path / "stranger", "out of reach"),
                (tmp_path / "nowhere", "out of reach since .*nowhere is no directory"),
                (tmp_path / CONTROLLER, ""),
            ):
                with contextlib.closing(Client(address, DEVICE, election_id=2, tls=tls)) as client:
                    wait_until(lambda client=client: "not answered" not in client.trouble, "it tried once")
                    assert re.search(trouble, client.trouble)
                    assert bool(client.trouble) == bool(trouble)
        finally:
            server.stop()
