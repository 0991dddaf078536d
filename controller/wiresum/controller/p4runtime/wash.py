"""Makes cells of a switch older than a round, whatever they hold. Registers cannot be written over P4Runtime, so it is
done with packets: through the same program that the workers' go through.

Theory of operation. A cell holds a round, and takes a packet's if that is newer by less than half the circle of serial
numbers (RFC 1982). Let f be the round that the cell is to end with. It is sent f - 1/2, f - 1/4 and f, in fractions of
the circle, and holds f at the end, whatever it held before:
- A round that the first packet neither equals nor moves lies up to half a circle ahead of f - 1/2.
- Of those, one that the second neither equals nor moves lies more than a quarter and up to half a circle ahead of it:
  less than a quarter behind f, or at f.
- A round that was moved is a quarter of the circle behind the next, and is moved again.

The packets are META, which leave words alone, of a job with two workers of which one never sends, so that nothing comes
out of the switch. They come in by the CPU port, by an entry in `admit` that exists only meanwhile. Its key is drawn at
random for each attempt: packets of another attempt that were delayed belong to no job, and are not counted here.

The proof is in the counters: every packet of a step has been counted before the next step begins, so none was lost and
none overtook; and in the last step none was stale, so each cell holds f now. Else all is done again.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator

import finsy as fy

from wiresum.controller.driver import JobCounters, JobEntry
from wiresum.controller.p4runtime import admit
from wiresum.controller.p4runtime.own import DATA_PORT

CIRCLE = 1 << 32
STEPS = (CIRCLE // 2, CIRCLE // 4, 0)
"""How far before the last round each step's round is."""
CELLS_AT_A_TIME = 256
"""Packets on their way: bmv2's queue from the CPU port holds 1024, and drops what it has no room for."""

_VERSION_META = 0x13
_HEADER = struct.Struct("!BBHIBBHIII")
_ETHERNET = struct.Struct("!6s6sH")
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_UDP = struct.Struct("!HHHH")
_ETHERTYPE_IPV4, _PROTOCOL_UDP, _TTL = 0x0800, 17, 64


def entry(job: JobEntry, row: int, key: int, address: str, cpu_port: int) -> fy.P4TableEntry:
    """Lets our packets in, to all cells of the job's lease and to no others."""
    cells = 2 * job.slots
    return fy.P4TableEntry(
        "admit",
        match=fy.Match(
            ingress_port=cpu_port, source=address, source_port=DATA_PORT, thread=0, job=job.job, key=key, worker=0
        ),
        action=fy.Action(
            "admit_worker",
            row=row,
            group=row,
            bit_own=1,
            bit_others=2,
            cell_base=2 * job.slot_base,
            lease_mask=admit.CELL_MASK & ~(cells - 1),
            lease_prefix=0,
        ),
    )


def last_round(job: JobEntry, cell: int) -> int:
    """The newest round of the cell's parity that is older than all that the job sends."""
    before = job.round_first - 1
    return (before if before % 2 == cell % 2 else before - 1) % CIRCLE


def batches(job: JobEntry, key: int, address: str) -> Iterator[tuple[int, list[bytes]]]:
    """The packets to send, by step, in batches: each batch when that before it has been counted."""
    for step, behind in enumerate(STEPS):
        for first in range(0, 2 * job.slots, CELLS_AT_A_TIME):
            cells = range(first, min(first + CELLS_AT_A_TIME, 2 * job.slots))
            yield (
                step,
                [frame(job.job, key, cell, (last_round(job, cell) - behind) % CIRCLE, address) for cell in cells],
            )


def counted(counters: JobCounters) -> int:
    return sum(counters.packets.values())


def frame(job: int, key: int, cell: int, number: int, address: str) -> bytes:
    """One META of worker 0, from the switch's own address to it."""
    packet = _HEADER.pack(_VERSION_META, 0, job, key, 0, 0, cell, number, 0, 0)
    own = ipaddress.IPv4Address(address).packed
    udp = _UDP.pack(DATA_PORT, DATA_PORT, _UDP.size + len(packet), 0) + packet
    length = _IPV4.size + len(udp)
    bare = _IPV4.pack(0x45, 0, length, 0, 0, _TTL, _PROTOCOL_UDP, 0, own, own)
    ip = _IPV4.pack(0x45, 0, length, 0, 0, _TTL, _PROTOCOL_UDP, _checksum(bare), own, own)
    return _ETHERNET.pack(bytes(6), bytes(6), _ETHERTYPE_IPV4) + ip + udp


def _checksum(header: bytes) -> int:
    """RFC 1071."""
    total: int = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
