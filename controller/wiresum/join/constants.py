"""The numbers that all parts agree on, and the header of a packet.

Written by p4src/generate_constants.py. Do not edit: change p4src/constants.toml, then `make constants`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

WIRE_VERSION = 1
"""Of the header, in its first four bits."""
SIDECAR_VERSION = 12
"""Of the lines between a program in C and its sidecar."""

CONTROL_PORT = 43487
"""TCP: the join service."""
SWITCH_PORT = 43488
"""UDP, 0xA9E0: a switch's thread 0; thread t listens at this port + t."""
P4RUNTIME_PORT = 9559
"""TCP: a switch's P4Runtime server; the number that IANA has assigned to P4Runtime."""

WORD_BYTES = 4
"""Bytes of a word, of which a payload consists."""
IPV4_BYTES = 20
"""Bytes of an IPv4 header without options."""
UDP_BYTES = 8
"""Bytes of a UDP header."""
UDP_PAYLOAD_BYTES_MAX = 65507
"""Bytes of the largest UDP datagram over IPv4."""
LANES_MAX = 16370
"""Words of a payload, after the header, in the largest UDP datagram over IPv4."""
LANES_UNIT = 8
"""Words: what workers and software switches offer is a multiple, so that vectors divide it evenly."""


class Kind(IntEnum):
    DATA = 0
    """A contribution with payload."""
    EMPTY = 1
    """A contribution whose words are all zero; no payload."""
    RESULT = 2
    """From the switch: the sum."""
    META = 3
    """A contribution of header fields alone (exponents, barrier); no payload."""
    QUESTION = 4
    """Has my contribution to this cell come? Changes nothing; no payload."""
    MISSING = 5
    """From the switch: it has not; no payload."""


FLAG_RETRANSMISSION = 1
"""Sent again: for statistics only."""
FLAG_DIVERGED = 2
"""RESULT, or sent to a parent: the contributions name different tensors."""


class Reason(IntEnum):
    ADMITTED = 0
    """Counted into its cell, or the parent's RESULT for it."""
    RESENT = 1
    """Answered to its sender alone, or passed on to the parent; or the parent's MISSING."""
    DUPLICATE = 2
    """A duplicate in an incomplete cell, a question about a contribution that is in, or a second RESULT."""
    STALE = 3
    """Neither the cell's round nor the one that follows it; of the parent's, not the cell's."""
    OUT_OF_LEASE = 4
    """Cell outside the lease, or another's of the job's threads."""
    UNKNOWN = 5
    """No such job, key, worker, thread, source address or port."""
    MALFORMED = 6
    """Does not parse, wrong length, or a kind that its sender may not send."""
    OTHER = 7
    """At a hardware switch, sent to it and nothing to do with Wiresum."""


THREADS_MAX = 16
"""Threads of a worker, and UDP ports of a switch, one for each."""
SWITCH_WORKERS_MAX = 32
"""Workers of a job at one switch, and switches right below it, together: the bits of a bitmap."""
BELOW_ROOT_WORKERS_MAX = 31
"""Likewise of a switch with a parent, which has a bit of the bitmap."""
JOB_WORKERS_MAX = 4096
"""Workers of a job, at all its switches together."""
AGGREGATORS_MAX = 8
"""Switches that a job may use side by side, each with a join service of its own; more would have threads wait."""
JOB_NUMBERS = 1024
"""Job numbers of a software switch, from 0 on, and so multicast groups that it may send to."""
LEASE_SLOTS_MAX = 32768
"""Slots of a lease: a packet names its cell with 16 bits, and a slot has two cells."""
SOCKET_BUFFER_BYTES = 8_388_608
"""Asked of the kernel for each UDP socket, to receive and to send."""
SWITCH_SLOTS_MAX = 1_048_576
"""Slots of a switch, for all its jobs."""

EVERYONE = 0xFE
"""All workers of the job at once, at a multicast address; a software switch can."""
PARENT = 0xFF
"""The switch above."""

PARENT_BIT = 0x80000000
"""The switch above, in bitmaps of workers."""

STRAY_ROW = 0
"""Of the counters: packets that belong to no job; a job's are from 1 on."""
FLOOD_GROUP = 256
"""Multicast group of what is flooded; those below are jobs', by their row."""
UPLINK_GROUPS = 512
"""A job's row + this is the multicast group of what goes to the switch above."""

STATE_SCHEMA = 4
"""Of the controller's database; a release that knows another one cannot read it."""

PROTOCOL_VERSION = 6
"""Of the join service; changes when workers and services of different versions would misunderstand each other."""
JOB_NAME_BYTES_MAX = 128
"""Bytes of a job's name."""
TENANT_BYTES_MAX = 64
"""Bytes of a tenant's name."""
JOB_TOKEN_BYTES_MAX = 256
"""Bytes of a job's token."""
PRIORITY_MAX = 1_000_000
"""Of a job; the least is the negative."""
REASON_CHARACTERS_MAX = 1000
"""Characters of why a job was ended that are kept."""

SIDECAR_LINE_BYTES_MAX = 524_288
"""Bytes of a line between a program in C and its sidecar: the positions of all slots fit."""
SIDECAR_FIELDS_MAX = 256
"""Fields of a line."""

HEADER_BYTES = 24
"""Bytes of the header."""
_LAYOUT = struct.Struct("!BBHIBBHIII")


@dataclass(frozen=True)
class Header:
    """What a packet begins with: docs/protocol.md, section 2."""

    version: int = WIRE_VERSION
    """WIRE_VERSION, unless somebody speaks another."""
    kind: int = 0
    """What the packet is."""
    flags: int = 0
    """One bit each."""
    job: int = 0
    """Job number."""
    key: int = 0
    """Of the job's, from the service at join; never 0."""
    worker: int = 0
    """Index at the switch."""
    exponent: int = 0
    """Of the chunk's elements; 0 where unused."""
    cell: int = 0
    """Local to the lease: 2 * slot + (round & 1)."""
    round: int = 0
    """How often the slot has been used in this lease, from 1 on."""
    tensor: int = 0
    """The collective: signature of the call (upper 16 bits), sequence number (lower 16)."""
    chunk: int = 0
    """Number of the chunk within the collective."""

    def pack(self) -> bytes:
        return _LAYOUT.pack(
            self.version << 4 | self.kind,
            self.flags,
            self.job,
            self.key,
            self.worker,
            self.exponent,
            self.cell,
            self.round,
            self.tensor,
            self.chunk,
        )

    @classmethod
    def unpack(cls, datagram: bytes) -> Header:
        first, *others = _LAYOUT.unpack_from(datagram)
        return cls(first >> 4, first & 15, *others)
