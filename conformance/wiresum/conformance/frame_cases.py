"""Cases beyond scenarios: jobs in special places, single fields of a frame, and traffic outside the protocol."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from wiresum.conformance import frames, network
from wiresum.conformance.frames import PROTOCOL_ICMP, UdpFrame, arp_frame, icmp_frame, internet_checksum
from wiresum.conformance.network import Network
from wiresum.conformance.player import Failure, wrong_copies
from wiresum.conformance.scenarios import Job, Member
from wiresum.conformance.switch import Switch
from wiresum.join.constants import SWITCH_PORT, SWITCH_WORKERS_MAX, THREADS_MAX, Header, Kind

BROADCAST, UNKNOWN, MULTICAST = b"\xff" * 6, bytes.fromhex("020000009999"), bytes.fromhex("333300000001")
ROUND, TENSOR, CHUNK = 2, 0x01020304, 0x05060708
FRAME_BYTES_MIN = 60
"""Bytes of the least frame, without the check sequence."""
BATCH = 24
"""A switch has room for so many frames on the way to one port."""
OF_OTHERS = 4 + 4 + 1 + 13 + 8 + 32 + 12
"""Bits by which a packet becomes other traffic: IPv4's version, header length, fragment and protocol, the destination,
and the upper bits of its port."""


@dataclass(frozen=True)
class Case:
    name: str
    rules: tuple[str, ...]
    needs: frozenset[str]
    play: Callable[[Network], Iterator[str]]
    """Yields the differences from what is required; an empty text is none."""

    def failures(self, switch: Switch) -> Iterator[Failure]:
        for text in filter(None, self.play(Network(switch))):
            yield Failure(f"{self.name}\n    {text}", self.rules)


CASES: list[Case] = []


def case(*rules: str, needs: str = "") -> Callable[[Callable[[Network], Iterator[str]]], None]:
    """Adds the function below it to the cases."""

    def add(play: Callable[[Network], Iterator[str]]) -> None:
        CASES.append(Case(play.__name__, rules, frozenset(needs.split()), play))

    return add


def a_job(there: Network, workers: int = 2, **fields: int) -> Job:
    """Admits a job of two workers, or another."""
    values = {"threads": 1, "slot_base": 0, "slots": 4, "lanes": there.switch.lanes} | fields
    job = Job(number=1, key=0xFEED0001, workers=workers, **values)
    there.admit(job)
    return job


def contribution(job: Job, worker: int, words: tuple[int, ...] = (), *, cell: int = 0, kind: Kind = Kind.DATA) -> bytes:
    """Makes a packet of an even round; its words are ones unless given."""
    fields = {"worker": worker, "cell": cell, "round": ROUND, "tensor": TENSOR, "chunk": CHUNK}
    header = Header(kind=kind, job=job.number, key=job.key, **fields).pack()
    return header + (struct.pack(f"!{job.lanes}I", *(words or (1,) * job.lanes)) if kind == Kind.DATA else b"")


def result(packet: bytes, job: Job, word: int) -> bytes:
    """Makes the RESULT that a packet triggers, with equal words."""
    return replace(Header.unpack(packet), kind=Kind.RESULT).pack() + struct.pack("!I", word) * job.lanes


def send(there: Network, member: Member, packet: bytes, *, thread: int = 0) -> list[tuple[int, bytes]]:
    frame = there.own_frame(member, packet, thread=thread)
    offset = there.offset_of(member)
    return there.switch.exchange([(there.port(member), replace(frame, target_port=frame.target_port + offset).pack())])


def wrong_answer(
    came: list[tuple[int, bytes]], there: Network, thread: int, receivers: tuple[Member, ...], datagram: bytes
) -> str:
    return wrong_copies(came, there, thread, receivers, datagram).text


def passes(there: Network, port: int, content: bytes, at: set[int]) -> str:
    """Sends another's frame; returns what is wrong unless it comes out at exactly these ports."""
    came = [(out, padded(copy)) for out, copy in there.switch.exchange([(port, content)])]
    wanted = [(out, padded(content)) for out in at]
    return "" if sorted(came) == sorted(wanted) else f"{content.hex()} came out as {came}"


def padded(frame: bytes) -> bytes:
    """Pads the frame to Ethernet's least length."""
    return frame.ljust(FRAME_BYTES_MIN, b"\0")


# Admission and RESULTs.


@case("R3.1", "R3.27")
def two_workers_on_one_host_are_distinguished(there: Network) -> Iterator[str]:
    first, second = Member(1, 0), Member(1, 1)
    there.place(first)
    there.place(second, at=first)
    job = a_job(there)
    if came := send(there, first, contribution(job, 0)):
        yield f"the first contribution is answered: {came}"
    packet = contribution(job, 1)
    yield wrong_answer(send(there, second, packet), there, 0, job.members, result(packet, job, 2))


@case("R2.1", "R2.5", "R3.16")
def the_largest_job_is_summed_in_its_last_slot(there: Network) -> Iterator[str]:
    job = a_job(there, SWITCH_WORKERS_MAX, threads=THREADS_MAX, slots=THREADS_MAX)
    thread = THREADS_MAX - 1
    for member in job.members[:-1]:
        if came := send(there, member, contribution(job, member.worker, cell=2 * thread), thread=thread):
            yield f"{member} is answered: {came}"
    packet = contribution(job, SWITCH_WORKERS_MAX - 1, cell=2 * thread)
    came = send(there, job.members[-1], packet, thread=thread)
    yield wrong_answer(came, there, thread, job.members, result(packet, job, SWITCH_WORKERS_MAX))


@case("R2.3", "R2.4", "R3.1")
def a_job_with_a_port_offset_uses_those_ports_alone(there: Network) -> Iterator[str]:
    job = a_job(there, threads=2, port_offset=6)
    for thread in range(2):
        first, packet = (contribution(job, worker, cell=4 * thread) for worker in range(2))
        send(there, job.members[0], first, thread=thread)
        below = there.own_frame(job.members[1], packet, thread=thread).pack()
        if came := there.switch.exchange([(there.port(job.members[1]), below)]):
            yield f"a packet to the port below is answered: {came}"
        came = send(there, job.members[1], packet, thread=thread)
        yield wrong_answer(came, there, 6 + thread, job.members, result(packet, job, 2))


@case("R3.22", needs="frames")
def a_congestion_mark_reaches_the_workers(there: Network) -> Iterator[str]:
    job = a_job(there, 1)
    for dscp, ecn in ((0, 0), (0, 1), (0, 2), (0, 3), (0x2E, 0), (0x3F, 3)):
        frame = replace(there.own_frame(job.members[0], contribution(job, 0)), dscp=dscp, ecn=ecn)
        ((_, content),) = there.switch.exchange([(there.port(job.members[0]), frame.pack())])
        out = UdpFrame.split(content)[0]
        if (out.dscp, out.ecn) != (dscp, ecn):
            yield f"DSCP {dscp} and ECN {ecn} came out as {out.dscp} and {out.ecn}"


@case("R2.2", "R2.9", "R3.19")
def header_fields_chosen_by_the_sender_are_replaced(there: Network) -> Iterator[str]:
    job = a_job(there, 1)
    frame = replace(
        there.own_frame(job.members[0], contribution(job, 0)), ttl=1, identification=777, has_checksum=False
    )
    came = there.switch.exchange([(there.port(job.members[0]), frame.pack())])
    yield wrong_answer(came, there, 0, job.members, result(contribution(job, 0), job, 1))
    yield from (f"the TTL is {frame.ttl}" for _, content in came if (frame := UdpFrame.split(content)[0]).ttl < 32)


@case("R2.8", "R2.13", needs="udp_checksum")
def a_checksum_that_comes_out_as_zero_has_its_other_form(there: Network) -> Iterator[str]:
    job = a_job(there, 1)
    member = job.members[0]
    plain = there.own_frame(member, contribution(job, 0)).pack()
    taken = contribution(job, 0, _made_up(plain, job))
    content = there.own_frame(member, taken).pack()
    if content[40:42] != b"\xff\xff":
        yield "the suite itself is wrong: its checksum is not 0xFFFF"
    came = there.switch.exchange([(there.port(member), content)])
    if len(came) != 1:
        yield f"a packet with a checksum of 0xFFFF has {len(came)} answers"
        return
    # The same cell's next round, whose RESULT differs from the last one's by the round and the first word.
    words = _made_up(came[0][1], job, struct.unpack_from("!I", taken, 24)[0] - 2)
    again = contribution(job, 0, words)
    again = again[:12] + struct.pack("!I", ROUND + 2) + again[16:]
    yield from (
        f"a checksum that comes out as 0 is {content[40:42].hex()}"
        for _, content in send(there, member, again)
        if content[40:42] != b"\xff\xff"
    )


def _made_up(frame: bytes, job: Job, first: int = 1) -> tuple[int, ...]:
    """Makes words with which the sum over the frame is all ones: the first one includes the frame's checksum."""
    return (first + int.from_bytes(frame[40:42], "big"), *(1,) * (job.lanes - 1))


# Frames that are not the protocol's.


@case("R2.3", "R2.10", needs="frames")
def options_fragments_and_other_protocols_are_not_summed(there: Network) -> Iterator[str]:
    job = a_job(there, 1)
    right = there.own_frame(job.members[0], contribution(job, 0)).pack()
    for name, changed in _odd_headers(right).items():
        yield from _refused(there, job, name, changed)
    for port in (SWITCH_PORT - 1, SWITCH_PORT + THREADS_MAX, 53):
        frame = replace(there.own_frame(job.members[0], contribution(job, 0)), target_port=port)
        yield from _refused(there, job, f"UDP port {port}", frame.pack())


def _odd_headers(right: bytes) -> dict[str, bytes]:
    options = right[:14] + b"\x46" + right[15:34] + b"\x01" * 4 + right[34:]
    return {
        "options": with_ipv4_sum(options[:16] + struct.pack("!H", len(options) - 14) + options[18:], 24),
        "more fragments": with_ipv4_sum(right[:20] + b"\x20\x00" + right[22:]),
        "a later fragment": with_ipv4_sum(right[:20] + b"\x00\x01" + right[22:]),
        "protocol 6": with_ipv4_sum(right[:23] + b"\x06" + right[24:]),
        "a VLAN": right[:12] + b"\x81\x00\x00\x05" + right[12:],
    }


def with_ipv4_sum(frame: bytes, header_bytes: int = 20) -> bytes:
    """Returns the frame with a right IPv4 checksum."""
    header = frame[14:24] + b"\0\0" + frame[26 : 14 + header_bytes]
    return frame[:24] + struct.pack("!H", internet_checksum(header)) + frame[26:]


def _refused(there: Network, job: Job, name: str, content: bytes) -> Iterator[str]:
    before = there.switch.counted()
    came = [copy for copy in there.switch.exchange([(there.port(job.members[0]), content)]) if copy[1] != content]
    if came:
        yield f"{name}: it is answered, {came}"
    if before is not None and (more := (there.switch.counted() or Counter()) - before):
        yield f"{name}: it is counted as {dict(more)}"


@case("R2.7", "R2.8", "R2.12", needs="udp_checksum frames network")
def no_flipped_bit_of_a_frame_has_an_effect(there: Network) -> Iterator[str]:
    """A flipped bit voids a contribution that would complete the cell, and a question to a complete one. The Ethernet
    header is left out: its addresses and type say whether a frame comes to the switch at all."""
    job = a_job(there)
    send(there, job.members[0], contribution(job, 0, (3,) * job.lanes))
    for kind in (Kind.EMPTY, Kind.DATA, Kind.QUESTION):
        member, packet = job.members[1], contribution(job, 1, (4,) * job.lanes, kind=kind)
        port, right = there.port(member), there.own_frame(member, packet).pack()
        flipped = [_flipped(right, bit) for bit in range(8 * 14, 8 * len(right))]
        before = there.switch.counted()
        for first in range(0, len(flipped), BATCH):
            batch = flipped[first : first + BATCH]
            if effect := {content for _, content in there.switch.exchange([(port, one) for one in batch])} - set(batch):
                yield f"{kind.name}: {effect} came out for one of bits {8 * 14 + first} to {8 * 14 + first + BATCH}"
        counted = Counter() if before is None else (there.switch.counted() or Counter()) - before
        if before is not None and counted != {"malformed": len(flipped) - OF_OTHERS}:
            yield f"{kind.name}: counted as {dict(counted)}"
        if kind == Kind.DATA:
            yield wrong_answer(send(there, member, packet), there, 0, job.members, result(packet, job, 7))


def _flipped(frame: bytes, bit: int) -> bytes:
    changed = bytearray(frame)
    changed[bit // 8] ^= 0x80 >> bit % 8
    return bytes(changed)


# Other traffic.


def _traffic(a: frames.Host, b: frames.Host) -> dict[str, bytes]:
    """Returns what follows the Ethernet addresses of frames from a to b: type and content."""
    ends = UdpFrame(a, b, 40_000, 53, b"hello")
    ours = replace(ends, target_port=SWITCH_PORT)
    plain, udp = ends.pack()[12:], with_ipv4_sum
    return {
        "tcp": udp(ends.pack()[:23] + b"\x06" + ends.pack()[24:])[12:],
        "udp": plain,
        "udp of a full frame": replace(ends, payload=bytes(1472)).pack()[12:],
        "udp with a wrong checksum": plain[:28] + b"\x12\x34" + plain[30:],
        "ipv4 with a wrong checksum": plain[:12] + b"\x12\x34" + plain[14:],
        "ipv4 at its last hop": replace(ends, ttl=0).pack()[12:],
        "ipv4 with options": _odd_headers(ends.pack())["options"][12:],
        "a fragment": _odd_headers(ends.pack())["a later fragment"][12:],
        "a ping": icmp_frame(8, a, b, b"\0\x07\0\x01hello")[12:],
        "to another's port of ours, short": replace(ours, payload=b"").pack()[12:],
        "to another's port of ours, header": replace(ours, payload=b"\x10" + bytes(23)).pack()[12:],
        "to another's port of ours, full": replace(ours, payload=b"\x10" + bytes(279)).pack()[12:],
        "ipv6": b"\x86\xdd\x60" + bytes(5) + b"\x11\x40" + bytes(range(32)) + b"\x9c\x40\x00\x35\x00\x08\x00\x00",
        "a vlan": b"\x81\x00\x00\x05" + replace(ours, payload=bytes(280)).pack()[12:],
        "another ethertype": b"\x88\xb5" + bytes(range(46)),
        "an arp reply": arp_frame(2, a, b, to=b.mac)[12:],
        "arp of another kind": b"\x08\x06\x00\x06\x08\x00\x08\x04" + bytes(40),
    }


@case("R2.6", "forwarding", needs="network")
def a_frame_to_a_host_arrives_unchanged_at_its_port_alone(there: Network) -> Iterator[str]:
    sender, receiver = (_host(there, number) for number in (0, 2))
    for name, rest in _traffic(sender[1], receiver[1]).items():
        if wrong := passes(there, sender[0], receiver[1].mac + sender[1].mac + rest, {receiver[0]}):
            yield f"{name}: {wrong}"


@case("R2.6", "forwarding", needs="network")
def a_frame_that_ends_within_a_header_arrives_unchanged_or_not_at_all(there: Network) -> Iterator[str]:
    (port, sender), (at, receiver) = (_host(there, number) for number in (0, 2))
    udp = _traffic(sender, receiver)["udp"]
    for rest in (b"\x08\x00\x45" + bytes(9), b"\x08\x06" + bytes(9), udp[:25]):
        content = receiver.mac + sender.mac + rest
        if there.switch.exchange([(port, content)]) and (wrong := passes(there, port, content, {at})):
            yield wrong


@case("forwarding", needs="network")
def a_frame_never_leaves_by_the_port_at_which_it_came(there: Network) -> Iterator[str]:
    """A host behind the port of arrival has got the frame already."""
    port, sender = _host(there, 0)
    for number in range(1, network.HOSTS_MAX):
        at, receiver = _host(there, number)
        content = receiver.mac + sender.mac + _traffic(sender, receiver)["udp"]
        yield passes(there, port, content, {at} - {port})


@case("R2.6", "forwarding", needs="network")
def broadcasts_and_unknown_destinations_go_to_all_other_ports(there: Network) -> Iterator[str]:
    ports = set(there.switch.ports)
    for number in range(min(4, len(ports))):
        port, sender = _host(there, number)
        traffic = _traffic(sender, _host(there, number + 1)[1])
        for name in ("tcp", "ipv6", "an arp reply", "a fragment"):
            for mac in (BROADCAST, MULTICAST, UNKNOWN):
                yield passes(there, port, mac + sender.mac + traffic[name], ports - {port})


@case("R2.6", needs="network")
def other_traffic_is_not_counted(there: Network) -> Iterator[str]:
    job = a_job(there)
    (port, _), (at, receiver) = _host(there, 0), _host(there, 1)
    content = replace(there.own_frame(job.members[0], contribution(job, 0)), target=receiver).pack()
    before = there.switch.counted()
    yield passes(there, port, content, {at})
    if (after := there.switch.counted()) != before:
        yield f"the counters went from {before} to {after}"


def _host(there: Network, number: int) -> tuple[int, frames.Host]:
    """Returns the port of an imaginary host, and the host."""
    member = Member(0, number)
    for below in range(number + 1):
        there.place(Member(0, below))
    return there.port(member), there.host(member)


# The switch's own address.


@case("ARP", needs="network")
def an_arp_request_for_the_switch_is_answered(there: Network) -> Iterator[str]:
    own = there.switch.own
    for number in range(min(4, len(there.switch.ports))):
        port, asker = _host(there, number)
        asked = frames.Host(bytes(6), own.address)
        answer = arp_frame(2, own, asker, to=asker.mac)
        for to, padding in ((BROADCAST, 0), (own.mac, 0), (own.mac, 18), (own.mac, 400)):
            request = arp_frame(1, asker, asked, to=to) + bytes(padding)
            came = there.switch.exchange([(port, request)])
            if [(at, content[:42], content[42:].strip(b"\0")) for at, content in came] != [(port, answer, b"")]:
                yield f"port {port}: {request.hex()} is answered with {came}"


@case("ARP", needs="network")
def an_arp_request_for_others_is_passed_on(there: Network) -> Iterator[str]:
    own, (port, asker), (at, other) = there.switch.own, _host(there, 0), _host(there, 1)
    ports = set(there.switch.ports) - {port}
    yield passes(there, port, arp_frame(1, asker, frames.Host(bytes(6), own.address), to=other.mac), {at})
    yield passes(there, port, arp_frame(1, asker, frames.Host(bytes(6), other.address), to=BROADCAST), ports)
    for address in ("0.0.0.0", "0.0.0.1", "0.0.0.2", "255.255.255.255"):
        for to in (BROADCAST, own.mac, bytes(6)):
            request = arp_frame(1, asker, frames.Host(bytes(6), type(own.address)(address)), to=to)
            came = {content.rstrip(b"\0") for _, content in there.switch.exchange([(port, request)])}  # without padding
            if came - {request.rstrip(b"\0")}:
                yield f"an ARP request for {address} is answered"


@case("ARP", needs="network")
def an_arp_reply_to_the_switch_is_not_answered(there: Network) -> Iterator[str]:
    port, sender = _host(there, 0)
    yield passes(there, port, arp_frame(2, sender, there.switch.own, to=there.switch.own.mac), set())


@case("ping", needs="network")
def a_ping_is_answered_with_its_payload(there: Network) -> Iterator[str]:
    port, asker = _host(there, 2)
    own = there.switch.own
    bodies = [b"\0\x4d\0\x05" + payload for payload in (b"", b"odd", bytes(range(256)), b"\xff" * 8, b"\xf7\xff\0\0")]
    bodies += [
        bytes(2) + struct.pack("!H", sequence) for sequence in (0, 0x07FE, 0x07FF, 0x0800, 0xF7FF, 0xF800, 0xFFFF)
    ]
    for body in bodies:
        for trailer in (b"", bytes(range(200))):
            came = there.switch.exchange([(port, icmp_frame(8, asker, own, body, ttl=3) + trailer)])
            yield _wrong_pong(came, port, icmp_frame(0, own, asker, body), trailer, body)


def _wrong_pong(came: list[tuple[int, bytes]], port: int, pong: bytes, trailer: bytes, body: bytes) -> str:
    """An answer may have another IPv4 identification, and the trailer; both forms of a zero checksum are right."""
    if len(came) != 1 or came[0][0] != port:
        return f"a ping with {body.hex()} is answered with {came}"
    content = came[0][1]
    found = content[: len(pong)]
    ends = (found[:14], found[22:24], found[26:36], found[38:]) == (pong[:14], pong[22:24], pong[26:36], pong[38:])
    right = ends and internet_checksum(found[14:34]) == 0 == internet_checksum(found[34:])
    return (
        ""
        if right and content[len(pong) :].strip(b"\0") in (b"", trailer.strip(b"\0"))
        else f"the answer is {content.hex()}"
    )


@case("ping", needs="network")
def a_damaged_ping_is_not_answered(there: Network) -> Iterator[str]:
    port, asker = _host(there, 0)
    right = icmp_frame(8, asker, there.switch.own, b"\0\x4d\0\x05payload")
    damaged = [right[:24] + b"\x12\x34" + right[26:]]
    others = [icmp_frame(kind, asker, there.switch.own, b"\0\x4d\0\x05") for kind in (0, 3)]
    others.append(right[:35] + b"\x01" + right[36:])
    for content in damaged + others:
        yield passes(there, port, content, set())


@case("ping", needs="network")
def who_sent_a_ping_with_a_damaged_payload_notices(there: Network) -> Iterator[str]:
    """The switch adjusts the checksum by what it changes, so a wrong message stays wrong."""
    port, asker = _host(there, 0)
    content = icmp_frame(8, asker, there.switch.own, b"\0\x4d\0\x05payload")
    for _, answer in there.switch.exchange([(port, content[:-1] + bytes([content[-1] ^ 1]))]):
        if answer[23] == PROTOCOL_ICMP and internet_checksum(answer[34:]) == 0:
            yield "the answer to a damaged ping looks right"


@case("R2.6", "ping", needs="network")
def a_ping_to_another_mac_is_not_the_switchs(there: Network) -> Iterator[str]:
    port, asker = _host(there, 0)
    for mac in (BROADCAST, bytes.fromhex("01005e000001"), UNKNOWN):
        ping = mac + icmp_frame(8, asker, there.switch.own, b"\0\x4d\0\x05")[6:]
        yield passes(there, port, ping, set(there.switch.ports) - {port})
