"""A packet that shows that all packets before it have left a switch.

The harness can wait until the chip is idle, but not for recirculating packets: they are in a queue that a thread checks
every millisecond. So the tracer is sent behind them, and recirculates too before it comes back. It is the contribution
of a job with one worker, in a cell of its own. On a Tofino 2, where nothing recirculates, it comes back at once.
"""

from __future__ import annotations

from ipaddress import IPv4Address

from bmv2_tests.tofino_network import SWITCH, TofinoSwitch, write
from wiresum.conformance.frames import Host, UdpFrame
from wiresum.conformance.p4runtime import entities_of
from wiresum.conformance.switch import PlacedJob
from wiresum.controller import Endpoint, JobEntry, switches
from wiresum.join.constants import SWITCH_PORT, Header

PORT = 63
"""An external port on either generation (on Tofino 2 the first eight of a pipe are not), which no worker uses."""
ROW = 255
"""The row of the counters and the multicast group of the tracer's job."""
LANES = 64

_WORKER = Host(bytes.fromhex("02000000fffc"), IPv4Address("10.9.9.8"))
_UDP_PORT = 30000
_JOB, _KEY = 0xFFFE, 0x7E57AB1E


def admit_in(switch: TofinoSwitch, slot: int) -> None:
    """Writes the entries of the tracer's job, which uses this slot from now on."""
    endpoint = Endpoint(str(_WORKER.address), _UDP_PORT)
    host = switches.Host(name="tracer", address=endpoint.address, mac=_WORKER.mac.hex(":"), port=PORT)
    job = JobEntry(_JOB, _KEY, workers=1, threads=1, lanes=LANES, slot_base=slot, slots=1, endpoints=(endpoint,))
    for entity in entities_of(PlacedJob(job, (host,)), ROW):
        write(switch, entity)


def frame() -> bytes:
    datagram = Header(job=_JOB, key=_KEY, cell=1, round=1).pack() + bytes(range(256))
    return UdpFrame(_WORKER, SWITCH, _UDP_PORT, SWITCH_PORT, datagram).pack()
