from __future__ import annotations

import socket
import threading
import time

import finsy as fy
import pytest

from wiresum.compiled import Program
from wiresum.controller import DriverError
from wiresum.controller.p4runtime import Client, Host, forward, own
from wiresum.controller.p4runtime import client as client_module
from wiresum.controller.p4runtime.testing import FakeSwitch
from wiresum.controller.testing import wait_until


def test_the_switch_gets_the_program(fake: FakeSwitch, client: Client, program: Program) -> None:
    assert fake.config is not None
    assert fake.config.p4_device_config == program.device_config
    assert [table.preamble.alias for table in fake.config.p4info.tables if table.preamble.alias == "admit"]


def test_the_program_is_loaded_anew_at_each_start(fake: FakeSwitch, program: Program) -> None:
    for _ in range(2):
        Client(fake.address, 0, program).close()
        wait_until(lambda: not fake._streams, "the stream was closed")
    assert fake.configs == 2


def test_copies_of_a_program_before_are_not_made_again(
    fake: FakeSwitch, hosts: tuple[Host, ...], program: Program
) -> None:
    """bmv2 would keep them, and send each flooded frame twice."""
    for _ in range(2):
        client = Client(fake.address, 0, program)
        client.insert("a group", [forward.flood_group(hosts)])
        client.close()
    assert fake.groups == {forward.FLOOD_GROUP: [(0, 0), (1, 0), (2, 0), (3, 0)]}


def test_a_switch_that_is_not_there_is_named(program: Program) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(DriverError, match=rf"cannot reach the P4 switch at {address}.*simple_switch_grpc"):
            Client(address, 0, program, connect_s_max=0.0)


def test_what_accepts_connections_and_says_nothing_is_not_waited_for_for_ever(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "ATTEMPT_S_MAX", 0.5)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(DriverError, match=r"did not get ready within .* is that a P4Runtime server"),
    ):
        Client(f"127.0.0.1:{silent.getsockname()[1]}", 0, program)


def test_a_switch_may_come_a_little_later(program: Program) -> None:
    started: list[FakeSwitch] = []
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]

    def start_late() -> None:
        time.sleep(0.5)
        started.append(FakeSwitch(port))

    starter = threading.Thread(target=start_late)
    starter.start()
    try:
        Client(f"127.0.0.1:{port}", 0, program).close()
    finally:
        starter.join()
        started[0].stop()


def test_a_second_controller_is_turned_away(fake: FakeSwitch, client: Client, program: Program) -> None:
    with pytest.raises(DriverError, match=r"another controller programs the P4 switch at .* stop that one first"):
        Client(fake.address, 0, program)
    client.insert("an address", [own.entry("10.0.0.1", "02:00:00:00:00:01")])  # the first one is undisturbed
    assert fake.configs == 1


def test_a_refused_entry_is_told_with_the_switchs_words(client: Client) -> None:
    client.insert("an address", [own.entry("10.0.0.1", "02:00:00:00:00:01")])
    twice = [own.entry(address, "02:00:00:00:00:01") for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1")]
    expected = r"could not add addresses: Match entry exists \(ALREADY_EXISTS\), and 1 more failed"
    with pytest.raises(DriverError, match=expected):
        client.insert("addresses", twice)


def test_what_is_not_there_may_be_removed(client: Client, fake: FakeSwitch) -> None:
    entries = [own.entry("10.0.0.1", "02:00:00:00:00:01"), own.entry("10.0.0.2", "02:00:00:00:00:01")]
    client.insert("an address", entries[:1])
    client.delete("addresses", entries)
    assert not fake.entries("own")


def test_a_switch_that_does_not_answer_is_not_waited_for_for_ever(
    client: Client, fake: FakeSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "CALL_S_MAX", 0.2)
    fake.answering.clear()
    with pytest.raises(DriverError, match="could not add an address: it did not answer within"):
        client.insert("an address", [own.entry("10.0.0.1", "02:00:00:00:00:01")])


def test_a_lost_switch_is_noticed_and_every_call_says_so(client: Client, fake: FakeSwitch) -> None:
    assert client.lost == ""
    fake.stop()
    wait_until(lambda: client.lost != "", "the loss was noticed")
    with pytest.raises(DriverError, match=r"the connection to the P4 switch at .* broke.*start the switch"):
        client.delete("a group", [fy.P4MulticastGroupEntry(1)])


def test_closing_is_idempotent_and_leaves_the_entries(client: Client, fake: FakeSwitch) -> None:
    client.insert("a group", [forward.flood_group([])])
    client.close()
    client.close()
    assert client.lost == ""
    assert list(fake.groups) == [forward.FLOOD_GROUP]
