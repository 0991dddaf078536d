"""Plays a scenario to a switch, step by step, and compares what comes out with what the protocol requires."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from wiresum.conformance import frames, network
from wiresum.conformance.network import Network
from wiresum.conformance.scenarios import MACS, End, Job, Member, Scenario, Step, Verdict
from wiresum.conformance.switch import RESULTS, Switch
from wiresum.join.constants import HEADER_BYTES, SWITCH_PORT, Header

OF_WORDS = frozenset({"R3.9", "R3.12", "R3.13", "R3.14", "R3.20", "R3.21", "R8.10"})
OF_EXPONENT = frozenset({"R3.15", "R8.10"})
OF_FLAGS = frozenset({"R2.16", "R3.11", "R3.19", "R8.10"})
"""Rules about these parts of an answer; all others say whether there is an answer, to whom, and what it echoes."""


class Wrong(NamedTuple):
    """A fault in the answer to a packet; an empty text: none."""

    text: str = ""
    rules: frozenset[str] | None = None
    """The rules about the wrong part; None: the rules of no single part."""

    def blames(self, rules: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the rules about the wrong part, or all if there are none."""
        parts = OF_WORDS | OF_EXPONENT | OF_FLAGS
        return tuple(r for r in rules if (r not in parts if self.rules is None else r in self.rules)) or rules


class Failure(NamedTuple):
    """A difference between what a switch does and what the protocol requires."""

    text: str
    rules: tuple[str, ...]
    """The rules that the switch breaks."""


def failures(scenario: Scenario, switch: Switch, *, counts_each: bool = True) -> Iterator[Failure]:
    """Yields the differences. `counts_each`: compares the counters after each step, and not at the end."""
    there = Network(switch, scenario.slots)
    steps = [step for step in scenario.steps if _is_visible(step, switch)]
    for member in scenario.members:
        there.place(member)
    before = switch.counted()
    expected: Counter[str] = Counter()
    for event in scenario.events:
        if isinstance(event, Job):
            there.admit(event)
        elif isinstance(event, End):
            there.evict(event.job)
        elif _is_visible(event, switch):
            rules = event.rules
            if (wrong := _wrong(event, there)).text:
                yield Failure(f"{scenario.where(event)}\n    {wrong.text}", wrong.blames(rules))
            expected += _counts(event, switch)
            if before is not None and (counts_each or event is steps[-1]):
                after = switch.counted() or Counter()
                if after - before != expected:
                    counted = f"counted as {dict(after - before)}, and not as {dict(expected)}"
                    yield Failure(f"{scenario.where(event)}\n    {counted}", Wrong().blames(rules))
                before, expected = after, Counter()
    if late := switch.exchange([]):
        yield Failure(f"{scenario.name}: when all was done there came {_shown(late)}", scenario.rules)


def _is_visible(step: Step, switch: Switch) -> bool:
    return len(switch.ports) > 1 or not step.hardware_only


def _counts(step: Step, switch: Switch) -> Counter[str]:
    """Returns how the counters must go up."""
    expected = step.expectation
    uncounted = step.refused_by_hosts and "frames" not in switch.profiles
    counts = Counter({expected.reason: 1} if expected.reason and not uncounted else {})
    return counts + Counter({RESULTS: 1} if expected.verdict is Verdict.MULTICAST else {})


def _wrong(step: Step, there: Network) -> Wrong:
    """Sends the step's frame; returns the first difference of what comes out."""
    switch, expected = there.switch, step.expectation
    sender = network.stranger(switch) if step.source is None else there.host(step.source)
    source_port = there.base_port(step.source or step.sender) + step.source_thread
    frame = there.frame(sender, source_port, step.datagram, thread=step.thread)
    if step.mac is not None:
        frame = replace(frame, target=frames.Host(MACS[step.mac], switch.own.address))
    content = frame.pack(step.changes)
    came = switch.exchange([(there.port(step.port), content)], len(expected.receivers))
    if expected.verdict is Verdict.PASS:
        others = [(port, copy) for port, copy in came if copy != content]
        return Wrong(f"not only the frame itself came out: {_shown(others)}" if others else "")
    return wrong_copies(came, there, step.thread, expected.receivers, expected.datagram, content)


def wrong_copies(
    came: list[tuple[int, bytes]],
    there: Network,
    thread: int,
    receivers: tuple[Member, ...],
    datagram: bytes,
    cause: bytes = b"",
) -> Wrong:
    """Returns the first difference between the frames that came out and a copy of the datagram for each receiver."""
    lacking = list(receivers)
    for port, content in came:
        try:
            frame, trailer = frames.UdpFrame.split(content)
        except ValueError as error:
            return Wrong(f"at port {port} a frame came out that is none: {error}")
        if trailer and not cause.endswith(trailer):
            return Wrong(f"at port {port} a frame came out with another trailer: {content.hex()}")
        if "udp_checksum" in there.switch.profiles and not frame.has_checksum:
            return Wrong(f"at port {port} a frame came out without a UDP checksum", frozenset({"R2.13"}))
        found = (port, frame.target, frame.target_port, frame.source, frame.source_port)
        own = (there.switch.own, SWITCH_PORT + thread)
        to = [m for m in lacking if found == (there.port(m), there.host(m), _port_of(there, m, thread), *own)]
        if not to:
            ends = f"{frame.target.address} port {frame.target_port}, {frame.payload.hex(' ', 4)}"
            return Wrong(f"at port {port} came what was not to come there: for {ends}")
        if frame.payload != datagram:
            text = f"{to[0]} gets {frame.payload.hex(' ', 4)}, and not {datagram.hex(' ', 4)}"
            return Wrong(text, _part(frame.payload, datagram))
        lacking.remove(to[0])
    return Wrong(f"nothing comes to {', '.join(map(str, lacking))}" if lacking else "")


def _part(found: bytes, wanted: bytes) -> frozenset[str] | None:
    """Returns the rules about the part of an answer that is wrong."""
    if len(found) < HEADER_BYTES or found[HEADER_BYTES:] != wanted[HEADER_BYTES:]:
        return OF_WORDS
    header, right = Header.unpack(found), Header.unpack(wanted)
    if replace(header, exponent=right.exponent) == right:
        return OF_EXPONENT
    return OF_FLAGS if replace(header, flags=right.flags) == right else None


def _port_of(there: Network, member: Member, thread: int) -> int:
    return there.base_port(member) + thread - there.offset_of(member)


def _shown(came: list[tuple[int, bytes]]) -> str:
    return ", ".join(f"port {port}: {content.hex()}" for port, content in came)
