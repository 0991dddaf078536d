"""A hostile host of a star, as a program: sends Ethernet frames as fast as it can, until it is ended.

    python -m wiresum_lab.namespaces.attacker star0 10.111.0.12 10.111.0.1 10.111.0.10 10.111.0.11

The arguments are the device, the program's own address, the switch's address, and addresses of workers. The attacker
knows all addresses and guesses the rest. It sends packets in the name of a worker or of the switch, with guessed keys;
malformed headers, datagrams and frames; fragments; ARP in others' names. Each second it prints how many frames it has
sent.
"""

from __future__ import annotations

import ipaddress
import random
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence

from wiresum.join.constants import SWITCH_PORT, THREADS_MAX, Header, Kind
from wiresum_lab.namespaces.star import mac_of

ETHERTYPE_IPV4, ETHERTYPE_ARP, ETHERTYPE_VLAN = 0x0800, 0x0806, 0x8100
UDP = 17
BURST = 64
PAUSE_S = 0.002
"""Pause after each burst: the machine is shared, and a real link would be slower than memory."""


class Attacker:
    def __init__(self, own: str, switch: str, workers: Sequence[str], chance: random.Random) -> None:
        self._own, self._switch, self._workers, self._chance = own, switch, workers, chance
        self._kinds: list[Callable[[], bytes]] = [
            self._forged_packet, self._noise, self._false_lengths, self._fragment, self._strange_frame, self._arp,
        ]  # fmt: skip

    def frame(self) -> bytes:
        return self._chance.choice(self._kinds)()

    def _ends(self) -> tuple[str, str, int]:
        """Source, destination and port of a packet: to the switch in any host's name, or to a worker in the switch's
        name."""
        if self._chance.random() < 0.2:
            return self._switch, self._chance.choice(self._workers), self._chance.randrange(1024, 65536)
        source = self._chance.choice([self._own, *self._workers])
        return source, self._switch, SWITCH_PORT + self._chance.randrange(THREADS_MAX)

    def _packet(self) -> bytes:
        """A packet in the form of a worker's or of a switch's, with a guessed key."""
        kind = self._chance.choice((*Kind, self._chance.randrange(16)))
        header = Header(
            kind=kind, flags=self._chance.randrange(256), job=self._chance.randrange(4),
            key=self._chance.getrandbits(32), worker=self._chance.randrange(4), exponent=self._chance.randrange(256),
            cell=self._chance.randrange(1 << 9), round=self._chance.randrange(1, 1 << 20),
            tensor=self._chance.randrange(1 << 10), chunk=0,
        )  # fmt: skip
        words = self._chance.choice((0, 1, 64, 359, 360)) if kind in (Kind.DATA, Kind.RESULT) else 0
        return header.pack() + self._chance.randbytes(4 * words)

    def _forged_packet(self) -> bytes:
        return self._datagram(self._packet())

    def _noise(self) -> bytes:
        return self._datagram(self._chance.randbytes(self._chance.randrange(1400)))

    def _false_lengths(self) -> bytes:
        """A frame with a false length of UDP, of IP, or of both; some end too soon."""
        frame = bytearray(self._datagram(self._packet()))
        for at in self._chance.sample((16, 38), self._chance.randrange(1, 3)):
            struct.pack_into("!H", frame, at, self._chance.choice((0, 1, 7, 8, 27, 28, 65535, len(frame) + 1)))
        frame[14] = self._chance.choice((0x45, 0x45, 0x40, 0x4F, 0x65))
        return bytes(frame[: self._chance.choice((len(frame), len(frame), self._chance.randrange(14, 60)))])

    def _fragment(self) -> bytes:
        frame = bytearray(self._datagram(self._packet()))
        struct.pack_into("!H", frame, 20, self._chance.choice((0x2000, 0x2001, 0x00B9, 0x1FFF)))
        return bytes(frame)

    def _strange_frame(self) -> bytes:
        frame = bytearray(self._datagram(self._packet()))
        struct.pack_into("!H", frame, 12, self._chance.choice((ETHERTYPE_VLAN, 0x86DD, 0x05FF, 0)))
        return bytes(frame)

    def _arp(self) -> bytes:
        """An ARP request or answer in the name of another host, with a MAC address that no host has."""
        asked, victim = self._chance.choice([self._switch, *self._workers]), self._chance.choice(self._workers)
        body = struct.pack("!HHBBH", 1, ETHERTYPE_IPV4, 6, 4, self._chance.choice((1, 2, 9)))
        body += self._chance.randbytes(6) + _packed(asked) + mac_of(victim) + _packed(victim)
        return mac_of(self._chance.choice((victim, self._switch))) + mac_of(self._own) + b"\x08\x06" + body

    def _datagram(self, payload: bytes) -> bytes:
        source, target, port = self._ends()
        sum_of_udp = self._chance.choice((0, 0, self._chance.randrange(1, 65536)))
        udp = struct.pack("!HHHH", self._chance.randrange(1024, 65536), port, 8 + len(payload), sum_of_udp)
        fields = struct.pack("!BBHHHBBH", 0x45, 0, 28 + len(payload), 0, 0x4000, 64, UDP, 0) + _packed(source)
        header = bytearray(fields + _packed(target))
        if self._chance.random() < 0.95:
            struct.pack_into("!H", header, 10, _checksum(bytes(header)))
        return mac_of(target) + mac_of(self._own) + struct.pack("!H", ETHERTYPE_IPV4) + header + udp + payload


def _packed(address: str) -> bytes:
    return ipaddress.IPv4Address(address).packed


def _checksum(header: bytes) -> int:
    total: int = sum(struct.unpack("!10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def main() -> None:
    device, own, switch, *workers = sys.argv[1:]
    attacker = Attacker(own, switch, workers, random.Random(1))
    sent, said_at = 0, time.monotonic()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
        out.bind((device, 0))
        while True:
            for _ in range(BURST):
                out.send(attacker.frame())
            sent += BURST
            if time.monotonic() > said_at + 1:
                said_at = time.monotonic()
                print(sent, flush=True)
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
