from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import socket
import threading
from pathlib import Path
from typing import NamedTuple

import finsy as fy
import pytest
from finsy.proto import p4i, p4r

from wiresum.controller import DriverError
from wiresum.controller.driver import Versions
from wiresum.controller.p4runtime import STANDBY_ID, Client, Pipeline, deliver, own, versions
from wiresum.controller.p4runtime import client as client_module
from wiresum.controller.p4runtime.client import Times
from wiresum.controller.p4runtime.connection import ELECTION_ID_MAX, Runs, Standing
from wiresum.controller.security.authority import Authority, Holder
from wiresum.controller.security.names import CONTROLLER, SWITCH, Claims
from wiresum.switch.p4runtime import arbitration
from wiresum_lab.doubles.p4runtime_controller import Controller
from wiresum_lab.doubles.p4runtime_proxy import PATIENT, Proxy, programmed_switch
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import unused_port, wait_until

DEVICE = 64 * os.getpid() + 62
patient = functools.partial(Client, times=PATIENT)


class Changes(NamedTuple):
    """Records what a client with this election id reports of its trouble, each time that it changes."""

    client: Client
    troubles: list[str]


def follow(address: str, election_id: int) -> Changes:
    heard = threading.Semaphore(0)
    client = patient(address, DEVICE, election_id=election_id, on_change=heard.release)
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
        with contextlib.closing(patient(proxy.address, DEVICE, election_id=loads + 1)) as client:
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


@pytest.mark.parametrize("kind", ["software"], indirect=True)
def test_a_switch_that_refuses_a_program_keeps_all_that_it_has(
    client: Client, pipeline: Pipeline, schema: fy.P4Schema, own_entry: p4r.Entity
) -> None:
    """Its jobs go on: it sends their results to these groups."""
    group = deliver.group(3, [1, 2]).encode(schema)
    client.write("entries", "INSERT", [group, own_entry])
    other = p4i.P4Info()
    other.CopyFrom(pipeline.p4info)
    other.pkg_info.version = "0"
    with pytest.raises(DriverError, match="its P4Info is not the one given"):
        client.load(dataclasses.replace(pipeline, p4info=other))
    assert client.runs(pipeline) is Runs.OURS
    assert len(client.read("groups", [fy.P4MulticastGroupEntry().encode(schema)])) == 1
    assert own_entry in client.read("entries", [own_entry])


def test_a_switch_says_its_versions(client: Client, pipeline: Pipeline, kind: str) -> None:
    program = pipeline.p4info.pkg_info.version
    assert client.versions == (versions.ours() if kind == "software" else Versions(program=program))


def test_an_unreachable_switch_is_named(free_port: int) -> None:
    address = f"127.0.0.1:{free_port}"
    with contextlib.closing(patient(address, DEVICE, election_id=2)) as client:
        wait_until(lambda: "has been out of reach since" in client.trouble, "the client tried once")
        with pytest.raises(DriverError, match=rf"the P4 switch at {address} .*simple_switch_grpc"):
            client.wait_ready(0.0)


def test_a_server_that_accepts_connections_but_never_answers_is_reported() -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    at = f"127.0.0.1:{silent.getsockname()[1]}"
    client = Client(at, DEVICE, election_id=2, times=Times(handshake_s_max=0.1))
    with silent, contextlib.closing(client):
        wait_until(
            lambda: "as a P4Runtime server does. Is the switch running" in client.trouble, "its silence was noticed"
        )


def test_a_client_waits_for_a_switch_that_starts_later(server: str, free_port: int, pipeline: Pipeline) -> None:
    with contextlib.closing(patient(f"127.0.0.1:{free_port}", DEVICE, election_id=2)) as client:
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


def test_a_host_that_vanishes_without_closing_connections_is_noticed(proxy: Proxy) -> None:
    times = Times(probe_s=0.05, probe_answer_s_max=0.5)
    with contextlib.closing(Client(proxy.address, DEVICE, election_id=2, times=times)) as client:
        client.wait_ready()
        proxy.answering.clear()
        wait_until(lambda: "out of reach" in client.trouble, "the silence was noticed")
        proxy.answering.set()
        client.wait_ready()


def test_the_newer_of_two_controllers_becomes_primary(proxy: Proxy, pipeline: Pipeline, own_entry: p4r.Entity) -> None:
    older, newer = (patient(proxy.address, DEVICE, election_id=number) for number in (5, 6))
    with contextlib.closing(older), contextlib.closing(newer):
        newer.wait_ready()
        wait_until(lambda: "stop that one" in older.trouble, "the older one noticed")
        assert "election id 6, and ours is 5" in older.trouble
        with pytest.raises(DriverError, match="another controller programs"):
            older.load(pipeline)
        newer.load(pipeline)
        newer.write("an address", "INSERT", [own_entry])


def test_a_standby_becomes_primary_when_the_primary_leaves(proxy: Proxy) -> None:
    first, standby = (patient(proxy.address, DEVICE, election_id=number) for number in (5, STANDBY_ID))
    with contextlib.closing(first), contextlib.closing(standby):
        first.wait_ready()
        wait_until(lambda: "stands by" in standby.trouble, "the standby met the first one")
        assert first.trouble == ""
        first.close()
        standby.wait_ready()
    with contextlib.closing(patient(proxy.address, DEVICE, election_id=6)) as next_one:
        next_one.wait_ready()
        assert next_one.election_id == 6


def test_standbys_do_not_wait_for_each_other(proxy: Proxy) -> None:
    """With two switches, each would be primary of one, and all would wait for ever."""
    with contextlib.ExitStack() as cleanup:
        standbys = [
            cleanup.enter_context(contextlib.closing(patient(proxy.address, DEVICE, election_id=STANDBY_ID)))
            for _ in range(3)
        ]
        for standby in standbys:
            standby.wait_ready()
        with contextlib.closing(patient(proxy.address, DEVICE, election_id=5)) as active:
            active.wait_ready()
            wait_until(lambda: all(standby.outranked for standby in standbys), "they all stand by")
        for standby in standbys:
            standby.wait_ready()
            assert not standby.outranked


def test_a_controller_gets_past_its_own_dead_connection(proxy: Proxy) -> None:
    """After a partition the switch may still hold the old connection, with the same election id."""
    dead, alive = (patient(proxy.address, DEVICE, election_id=5) for _ in range(2))
    with contextlib.closing(dead), contextlib.closing(alive):
        wait_until(lambda: not dead.trouble or not alive.trouble, "one has the switch")
        wait_until(lambda: "another controller programs" in dead.trouble + alive.trouble, "the other one took it")
        wait_until(lambda: "" in (dead.trouble, alive.trouble), "and has it")


def test_a_controller_whose_election_id_is_too_low_bids_higher_if_no_other_is_connected(proxy: Proxy) -> None:
    """After the loss of its state it starts with low election ids again."""
    with contextlib.closing(patient(proxy.address, DEVICE, election_id=1000)) as before:
        before.wait_ready()
    with contextlib.closing(patient(proxy.address, DEVICE, election_id=2)) as client:
        client.wait_ready()
        assert client.election_id > 1000


HIGHEST_OF_ALL = (1 << 128) - 1


@pytest.fixture
def strange_server(kind: str, server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """One that takes every election id, as other switches than ours do."""
    monkeypatch.setattr(arbitration, "ELECTION_ID_MAX", HIGHEST_OF_ALL)
    return server


@pytest.mark.parametrize("kind", ["software", "bmv2"], indirect=True)
@pytest.mark.parametrize("first", ["foreign", "ours"])
@pytest.mark.parametrize("bid", [ELECTION_ID_MAX, ELECTION_ID_MAX + 1, HIGHEST_OF_ALL])
def test_a_foreign_election_id_keeps_the_switch_only_as_long_as_its_program_is_connected(
    strange_server: str, pipeline: Pipeline, own_entry: p4r.Entity, first: str, bid: int
) -> None:
    with contextlib.ExitStack() as cleanup:

        def connect_foreign() -> Controller:
            foreign = Controller(strange_server, DEVICE)
            cleanup.callback(foreign.close)
            assert foreign.bid(bid) == "OK"
            return foreign

        def connect() -> Client:
            return cleanup.enter_context(contextlib.closing(patient(strange_server, DEVICE, election_id=2)))

        foreign = connect_foreign() if first == "foreign" else None
        client = connect()
        if foreign is None:
            client.wait_ready()
            foreign = connect_foreign()
        is_ours = bid <= ELECTION_ID_MAX
        said = "another controller programs" if is_ours else "another program holds"
        wait_until(lambda: said in client.trouble, "it is said plainly")
        assert f"(election id {bid >> 64}, and ours is 2)" in client.trouble
        assert client.outranked is is_ours
        with pytest.raises(DriverError, match=said):
            client.load(pipeline)
        foreign.close()
        client.wait_ready()
        client.load(pipeline)
        client.write("an address", "INSERT", [own_entry])
        assert client.election_id < 1 << 63, "the next one is not outranked by a number that is not from the ledger"
        client.close()
        connect().wait_ready()


def test_two_controllers_that_the_same_foreign_one_kept_away_do_not_fight(strange_server: str) -> None:
    """Both bid the id that it had, and one of them gets the switch."""
    foreign = Controller(strange_server, DEVICE)
    assert foreign.bid(HIGHEST_OF_ALL) == "OK"
    clients = [patient(strange_server, DEVICE, election_id=number) for number in (5, 6)]
    with contextlib.closing(clients[0]), contextlib.closing(clients[1]):
        wait_until(lambda: all("another program holds" in client.trouble for client in clients), "both wait")
        foreign.close()
        wait_until(lambda: "" in [client.trouble for client in clients], "one has the switch")
        terms = [client.term for client in clients]
        wait_until(lambda: any("another program holds" in c.trouble for c in clients), "the other waits")
        assert sum(terms) == 1


def test_its_own_broken_connection_does_not_outrank_a_controller(client: Client) -> None:
    """Where its id is the highest, its next connection has no higher one, until the switch notices."""
    held = client._held
    client._stand(Standing(held, primary=False, vacant=False))
    assert "has not noticed that this controller's last connection broke" in client.trouble
    assert not client.outranked
    client._stand(Standing(held + 1, primary=False, vacant=False))
    assert client.outranked


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


def test_waiting_for_a_switch_that_does_not_answer_is_bounded(proxy: Proxy, own_entry: p4r.Entity) -> None:
    times = Times(probe_s=3600.0, call_s_max=0.1)  # no probe is first to notice
    with contextlib.closing(Client(proxy.address, DEVICE, election_id=2, times=times)) as client:
        client.wait_ready()
        proxy.answering.clear()
        with pytest.raises(DriverError, match="could not add an address: it did not answer within"):
            client.write("an address", "INSERT", [own_entry])


def test_a_call_in_flight_ends_with_the_connection(proxy: Proxy, own_entry: p4r.Entity) -> None:
    times = Times(probe_s=3600.0, call_s_max=3600.0)
    with contextlib.closing(Client(proxy.address, DEVICE, election_id=2, times=times)) as client:
        client.wait_ready()
        proxy.answering.clear()

        def break_connection() -> None:
            assert proxy.holds.wait(PATIENCE_S)
            proxy.stop()

        breaking = threading.Thread(target=break_connection)
        breaking.start()
        with pytest.raises(DriverError, match="could not add an address"):
            client.write("an address", "INSERT", [own_entry])
        breaking.join()


def test_closing_is_idempotent_and_leaves_the_entries_in_the_switch(
    client: Client, proxy: Proxy, own_entry: p4r.Entity
) -> None:
    client.write("an address", "INSERT", [own_entry])
    client.close()
    client.close()
    with pytest.raises(DriverError):
        client.read("entries", [own_entry])
    with contextlib.closing(patient(proxy.address, DEVICE, election_id=11)) as another:
        another.wait_ready()
        assert len(another.read("entries", [own_entry])) == 1


def test_tls_authenticates_both_sides(pipeline: Pipeline, tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", "test")
    for role in (SWITCH, CONTROLLER):
        authority.issue(Holder(role, Claims(frozenset({role})), ("127.0.0.1",)), tmp_path / role, days=1)
    stranger = Authority.create(tmp_path / "other", "other")
    stranger.issue(Holder("x", Claims(frozenset({CONTROLLER})), ("127.0.0.1",)), tmp_path / "stranger", days=1)
    with programmed_switch(DEVICE, tls=tmp_path / SWITCH, slots=64, lanes_max=64) as switch:
        for tls, trouble in (
            (None, "out of reach"),
            (tmp_path / "stranger", "out of reach"),
            (tmp_path / "nowhere", "out of reach since .*nowhere is no directory"),
            (tmp_path / CONTROLLER, ""),
        ):
            with contextlib.closing(patient(switch.p4runtime, DEVICE, election_id=2, tls=tls)) as client:
                wait_until(lambda client=client: "not answered" not in client.trouble, "it tried once")
                assert re.search(trouble, client.trouble)
                assert bool(client.trouble) == bool(trouble)
