"""Plays the test vectors to a Tofino, interpreted or modelled, frame by frame, and compares the answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from bmv2_tests.frames import Host, UdpFrame
from bmv2_tests.tofino_network import STRANGER, SWITCH, TofinoNetwork, TofinoSwitch
from bmv2_tests.vectors import MACS, End, Job, Member, Scenario, Step, Verdict
from wiresum.join.constants import SWITCH_PORT

UNAVAILABLE = frozenset({"udp_checksum"})
"""The program neither verifies nor computes it: docs/tofino.md, Checksums."""


def complaint(scenario: Scenario, switch: TofinoSwitch) -> str:
    """The first difference and its place, or an empty text."""
    network = TofinoNetwork(switch, scenario.slots)
    counted: Counter[str] = network.packets()
    for event in scenario.events:
        if isinstance(event, Job):
            network.admit(event)
            counted = network.packets()
        elif isinstance(event, End):
            network.evict(event.job)
        else:
            results = network.results(event.sender.job)
            wrong = _wrong_copies(event, network)
            before, counted = counted, network.packets()
            results = network.results(event.sender.job) - results
            if wrong := wrong or _wrong_counts(event, counted - before, results):
                return f"{' '.join(scenario.where(event).split())}\n    {wrong}"
    late = switch.late()
    return f"{scenario.name}: when all was done there came {late}" if late else ""


def _wrong_copies(step: Step, network: TofinoNetwork) -> str:
    """Sends the step's frame, and describes what is wrong with the answers."""
    expected = step.expectation
    sender = STRANGER if step.source is None else network.host(step.source)
    source_port = network.base_port(step.source or step.sender) + step.source_thread
    frame = network.frame(sender, source_port, step.datagram, thread=step.thread)
    if step.mac is not None:
        frame = replace(frame, target=Host(MACS[step.mac], SWITCH.address))
    content = frame.pack(step.changes)
    copies = network.send(network.port(step.port), content, len(expected.receivers))
    if expected.verdict is Verdict.PASS:
        return "" if all(copy.frame == content for copy in copies) else f"not only the frame came out: {copies}"
    received: set[Member] = set()
    for copy in copies:
        end = len(copy.frame) - step.changes.trailer
        if copy.frame[end:] != content[len(content) - step.changes.trailer :]:
            return f"at port {copy.port} a frame came out with another trailer: {copy.frame.hex()}"
        try:
            leaves = UdpFrame.unpack(copy.frame[:end])
        except ValueError as error:
            return f"at port {copy.port} a frame came out that is none: {error}"
        receivers = [member for member in expected.receivers if network.host(member) == leaves.target]
        if not receivers:
            return f"at port {copy.port} a frame came out for {leaves.target}: {leaves.payload.hex(' ', 4)}"
        receiver = receivers[0]
        if receiver in received:
            return f"{receiver} gets two copies"
        received.add(receiver)
        found = (copy.port, leaves.source, leaves.source_port, leaves.target_port, leaves.payload.hex(" ", 4))
        ports = (SWITCH_PORT + step.thread, network.base_port(receiver) + step.thread)
        wanted = (network.port(receiver), SWITCH, *ports, expected.datagram.hex(" ", 4))
        if found != wanted:
            return f"{receiver} gets {found}, and not {wanted}"
    lacking = [str(member) for member in expected.receivers if member not in received]
    return f"nothing comes to {', '.join(lacking)}" if lacking else ""


def _wrong_counts(step: Step, packets: Counter[str], results: int) -> str:
    expected = step.expectation
    if wrong := expected.miscounted(packets):
        return wrong
    completed = int(expected.verdict is Verdict.MULTICAST)
    return "" if results == completed else f"{results} results were counted, and not {completed}"
