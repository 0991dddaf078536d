"""A packet by which a switch shows that all packets before it have left.

The harness can wait until the chip has nothing to do, but not for packets that recirculate: those lie in a queue that
a thread looks after every millisecond. Behind them a packet is sent that recirculates too, and comes back: the sum of a
job of one worker in a cell of its own, again and again. On a Tofino 2, where nothing recirculates, it comes straight
back.
"""

from __future__ import annotations

from ipaddress import IPv4Address

from bmv2_tests.frames import Host, UdpFrame
from bmv2_tests.installed import entities_of
from bmv2_tests.tofino_network import SWITCH, TofinoSwitch, write
from wiresum.controller import Endpoint, JobEntry, switches
from wiresum.join.constants import SWITCH_PORT, Header

PORT = 63
"""It leads outside on either generation (on Tofino 2 the first eight of a pipe do not), and to no worker."""
ROW = 255
"""Of the counters, and its multicast group."""
LANES = 64

_WORKER = Host(bytes.fromhex("02000000fffc"), IPv4Address("10.9.9.8"))
_UDP_PORT = 30000
_JOB, _KEY = 0xFFFE, 0x7E57AB1E


def admit_in(switch: TofinoSwitch, slot: int) -> None:
    """Writes the job's entries; the slot is its own from now on."""
    endpoint = Endpoint(str(_WORKER.address), _UDP_PORT)
    host = switches.Host(name="tracer", address=endpoint.address, mac=_WORKER.mac.hex(":"), port=PORT)
    job = JobEntry(_JOB, _KEY, workers=1, threads=1, lanes=LANES, slot_base=slot, slots=1, endpoints=(endpoint,))
    for entity in entities_of(job, ROW, [host]):
        write(switch, entity)


def frame() -> bytes:
    datagram = Header(job=_JOB, key=_KEY, cell=1, round=1).pack() + bytes(range(256))
    return UdpFrame(_WORKER, SWITCH, _UDP_PORT, SWITCH_PORT, datagram).pack()
