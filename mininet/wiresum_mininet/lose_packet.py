"""Loses selected packets of a worker, with a classic BPF program that reads Ethernet, IPv4, UDP and our header."""

from __future__ import annotations

from wiresum.join.constants import SWITCH_PORT, THREADS_MAX
from wiresum_lab.namespaces.links import BPF_DROP, BPF_UNSPECIFIED

PREFERENCE = 1
"""Preference of the filter: before the random loss of a link."""
DATA_PORTS = range(SWITCH_PORT, SWITCH_PORT + THREADS_MAX)

_ETHERTYPE, _PROTOCOL, _UDP_TARGET = 12, 14 + 9, 14 + 20 + 2
_HEADER = 14 + 20 + 8
_KIND, _FLAGS, _SEQUENCE = _HEADER, _HEADER + 1, _HEADER + 18
_VERSION_AND_DATA = 0x10
_RETRANSMISSION = 0x01

_LOAD_HALF, _LOAD_BYTE = 0x28, 0x30
_JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_SET, _RETURN = 0x15, 0x35, 0x45, 0x06


def first_data_of(number: int) -> str:
    """A program that drops the first transmission of a collective's DATA, and no retransmission."""
    # Each test: load, compare, and the result of the comparison for a packet that is dropped.
    tests = [
        (_LOAD_HALF, _ETHERTYPE, _JUMP_EQUAL, 0x0800, True),
        (_LOAD_BYTE, _PROTOCOL, _JUMP_EQUAL, 17, True),
        (_LOAD_HALF, _UDP_TARGET, _JUMP_GREATER_EQUAL, DATA_PORTS.start, True),
        (_LOAD_HALF, _UDP_TARGET, _JUMP_GREATER_EQUAL, DATA_PORTS.stop, False),
        (_LOAD_BYTE, _KIND, _JUMP_EQUAL, _VERSION_AND_DATA, True),
        (_LOAD_BYTE, _FLAGS, _JUMP_SET, _RETRANSMISSION, False),
        (_LOAD_HALF, _SEQUENCE, _JUMP_EQUAL, number, True),
    ]
    program: list[tuple[int, int, int, int]] = []
    let_through = 2 * len(tests) + 1
    for load, offset, jump, value, wanted in tests:
        program.append((load, 0, 0, offset))
        away = let_through - len(program) - 1
        program.append((jump, 0 if wanted else away, away if wanted else 0, value))
    program += [(_RETURN, 0, 0, BPF_DROP), (_RETURN, 0, 0, BPF_UNSPECIFIED)]
    return f"{len(program)}," + ",".join(" ".join(map(str, instruction)) for instruction in program)
