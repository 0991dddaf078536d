"""Measures rate, loss, duplication and reordering of a path with numbered UDP datagrams.

    python probe.py receive ADDRESS PORT COUNT       in one namespace, until its input ends; prints a JSON report
    python probe.py send ADDRESS PORT COUNT BYTES TRAIN    in another; TRAIN datagrams go to the kernel as one buffer

The benchmark shows by this program that its links are no faster than they claim, and the tests of `star.py` that loss,
duplication and reordering happen to single packets.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from wiresum_lab.namespaces.star import Host

# The UDP payload of a full Ethernet frame.
DATAGRAM_BYTES = 1472
FRAME_OVERHEAD_BYTES = 14 + 20 + 8
PORT = 20_000
# This is long enough for the kernel to drain the deepest queue of a slow link.
SILENCE_S = 0.5
# The buffer has room for all datagrams of a test, so that none is lost while the receiver is not scheduled.
BUFFER_BYTES = 64 << 20
# setsockopt(2): the kernel cuts each buffer into datagrams of this size.
_UDP_SEGMENT = 103
# socket(7): the buffer may be larger than net.core.rmem_max. This option needs root, as a star does.
_SO_RCVBUFFORCE = 33
# ip(7): a datagram above the MTU is an error, instead of being cut into fragments.
_IP_MTU_DISCOVER, _IP_PMTUDISC_DO = 10, 2


@dataclass(frozen=True)
class ProbeReport:
    """The report of a receiver.

    `late` datagrams came after one with a higher number; `gaps` are runs of numbers that never came. `frame_mbit`
    counts Ethernet frames without the first one, at whose arrival the clock starts.
    """

    sent: int
    received: int
    lost: int
    duplicated: int
    late: int
    gaps: int
    frame_mbit: float


def measure(
    sender: Host, receiver: Host, *, count: int, datagram_bytes: int = DATAGRAM_BYTES, train: int = 1
) -> ProbeReport:
    """Sends `count` datagrams as fast as the path takes them. StarError if they are larger than the MTU."""
    program = [sys.executable, str(Path(__file__).resolve())]
    arguments = [receiver.address, str(PORT), str(count)]
    receive = [*program, "receive", *arguments]
    with receiver.popen(receive, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdout.readline()
            sender.run([*program, "send", *arguments, str(datagram_bytes), str(train)])
            process.stdin.close()
            line = process.stdout.readline()
        finally:
            process.kill()
    return ProbeReport(**json.loads(line))


def receive(address: str, port: int, count: int) -> ProbeReport:
    seen = bytearray(count)
    received = duplicated = late = frame_bytes = 0
    newest = -1
    first_s = last_s = 0.0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, BUFFER_BYTES)
        server.bind((address, port))
        print("listening", flush=True)
        for datagram in datagrams(server):
            (number,) = struct.unpack_from("!I", datagram)
            last_s = time.monotonic()
            first_s = first_s or last_s
            received += 1
            frame_bytes += (len(datagram) + FRAME_OVERHEAD_BYTES) if last_s > first_s else 0
            duplicated += seen[number]
            seen[number] = 1
            late += number < newest
            newest = max(newest, number)
    elapsed_s = last_s - first_s
    mbit = frame_bytes * 8 / elapsed_s / 1e6 if elapsed_s > 0 else 0.0
    gaps = sum(1 for number in range(count) if not seen[number] and (number == 0 or seen[number - 1]))
    return ProbeReport(count, received, count - sum(seen), duplicated, late, gaps, mbit)


def datagrams(server: socket.socket) -> Iterator[bytes]:
    """All datagrams until the sender has ended, and then until SILENCE_S have passed without any."""
    server.setblocking(False)
    has_ended = False
    while ready := select.select([server, *[sys.stdin] * (not has_ended)], [], [], SILENCE_S if has_ended else None)[0]:
        has_ended = has_ended or sys.stdin in ready
        with contextlib.suppress(BlockingIOError):
            while True:
                yield server.recv(65536)


def send(address: str, port: int, count: int, datagram_bytes: int, train: int) -> None:
    filler = bytes(datagram_bytes - 4)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
        client.connect((address, port))
        if train > 1:
            client.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, datagram_bytes)
        for first in range(0, count, train):
            numbers = range(first, min(first + train, count))
            client.send(b"".join(struct.pack("!I", number) + filler for number in numbers))


def main(arguments: list[str]) -> None:
    match arguments:
        case ["receive", address, port, count]:
            print(json.dumps(asdict(receive(address, int(port), int(count)))), flush=True)
        case ["send", address, port, count, datagram_bytes, train]:
            send(address, int(port), int(count), int(datagram_bytes), int(train))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
