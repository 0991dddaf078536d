"""The test vectors against the Tofino program, its P4 source interpreted: both passes, and each copy's bytes."""

from __future__ import annotations

import pytest

from frames import UdpFrame
from tna_interpreter.switch import Switch
from tofino_network import MAIN, STRANGER, SWITCH, SWITCH_PORT, TofinoNetwork
from vectors import End, Job, Member, Scenario, Step, Verdict, load_all


@pytest.fixture(scope="module", params=[1, 2], ids=["tofino1", "tofino2"])
def switch(request: pytest.FixtureRequest) -> Switch:
    return Switch(MAIN, generation=request.param)


def play(step: Step, network: TofinoNetwork, where: str) -> None:
    expected = step.expectation
    before = network.packets()
    results_before = network.results(step.sender.job)
    sender = STRANGER if step.source is None else network.host(step.source)
    source_port = network.base_port(step.source or step.sender) + step.source_thread
    frame = network.frame(sender, source_port, step.datagram, thread=step.thread)
    copies = network.send(network.port(step.port), frame.pack())
    assert network.packets() - before == {expected.reason: 1}, where
    completed = network.results(step.sender.job) - results_before
    assert completed == (expected.verdict is Verdict.MULTICAST), where
    received: dict[Member, bytes] = {}
    for copy in copies:
        frame = UdpFrame.unpack(copy.frame)
        (receiver,) = (member for member in expected.receivers if network.host(member) == frame.target)
        assert receiver not in received, f"{where}: {receiver} gets two copies"
        assert copy.port == network.port(receiver), f"{where}: to {receiver}"
        assert frame.source == SWITCH, f"{where}: to {receiver}"
        assert frame.source_port == SWITCH_PORT + step.thread, f"{where}: to {receiver}"
        assert frame.target_port == network.base_port(receiver) + step.thread, f"{where}: to {receiver}"
        received[receiver] = frame.payload
    for receiver in expected.receivers:
        assert received[receiver].hex(" ", 4) == expected.datagram.hex(" ", 4), f"{where}: to {receiver}"
    assert len(received) == len(expected.receivers), where


@pytest.mark.parametrize("scenario", load_all(), ids=lambda scenario: str(scenario.name))
def test_tofino_program_answers_as_the_protocol_says(scenario: Scenario, switch: Switch) -> None:
    network = TofinoNetwork(switch)
    for event in scenario.events:
        if isinstance(event, Job):
            network.admit(event)
        elif isinstance(event, End):
            network.evict(event.job)
        else:
            play(event, network, scenario.where(event))
