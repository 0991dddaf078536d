"""Stage `result`: the headers of the packet that carries a RESULT. The harness checks lengths and checksums of each."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from bmv2_tests.bmv2_harness import WORKER_PORT, Bmv2Harness
from wiresum.join.constants import SWITCH_PORT


def test_a_job_with_a_port_offset_uses_only_those_ports_of_the_switch(harness: Bmv2Harness) -> None:  # R2.4
    with harness.job(2, threads=2, port_offset=6) as job:
        for thread in range(2):
            packets = [job.packet(worker, slot=4 * thread) for worker in range(2)]
            assert job.send(packets[0], thread=thread).reason == "admitted"
            below = harness.own_frame(
                job.hosts[1],
                src_port=WORKER_PORT + thread,
                dst_port=SWITCH_PORT + thread,
                payload=packets[1].to_bytes(),
            )
            assert job.send_frame(job.hosts[1].port, below).reason == "unknown"
            for copy in job.send(packets[1], thread=thread).copies:
                frame = Ether(copy.frame)
                assert (frame[UDP].sport, frame[UDP].dport) == (SWITCH_PORT + 6 + thread, WORKER_PORT + thread)
                assert copy.packet.words == job.words(2)


@pytest.mark.parametrize("tos", [0, 1, 2, 3, 0x2E << 2, 0xFF])
def test_a_congestion_mark_reaches_the_workers(harness: Bmv2Harness, tos: int) -> None:  # R3.22
    with harness.job(2) as job:
        job.send(job.packet(0))
        frame = job.frame(job.packet(1))
        frame[IP].tos = tos
        for copy in job.send_frame(job.hosts[1].port, frame).copies:
            assert Ether(copy.frame)[IP].tos == tos


def test_header_fields_chosen_by_the_sender_are_replaced(harness: Bmv2Harness) -> None:
    with harness.job(1) as job:
        frame = job.frame(job.packet())
        frame[IP].ttl, frame[IP].id, frame[IP].flags, frame[UDP].chksum = 1, 777, 0, 0
        (copy,) = job.send_frame(0, frame).copies
        result = Ether(copy.frame)
        assert (result[IP].ttl, result[IP].id, str(result[IP].flags)) == (64, 0, "DF")
        assert result[UDP].sport == SWITCH_PORT
        assert result[UDP].chksum != 0
