from __future__ import annotations

import dataclasses
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from wiresum.controller import JobEntry
from wiresum.controller.jobs.leases import round_is_newer
from wiresum.controller.p4runtime import wash
from wiresum.controller.p4runtime.own import DATA_PORT
from wiresum.switch.testing import META, Packet

ROUNDS = st.integers(0, wash.CIRCLE - 1)
EDGES = sorted(
    {(base + step) % wash.CIRCLE for base in (0, 1 << 29, 1 << 30, 1 << 31, 3 << 30) for step in range(-3, 4)}
)


def end_of(cell: int, last: int) -> int:
    """What a cell holds after the steps that are to end at `last`."""
    for behind in wash.STEPS:
        number = (last - behind) % wash.CIRCLE
        cell = number if round_is_newer(number, cell) else cell
    return cell


@pytest.mark.parametrize("ahead", EDGES)
def test_a_cell_ends_with_the_last_round_at_every_edge_of_the_circle(ahead: int) -> None:
    for last in (0, 1, (1 << 31) - 1, 1 << 31, wash.CIRCLE - 1):
        assert end_of((last + ahead) % wash.CIRCLE, last) == last


@given(ROUNDS, ROUNDS)
def test_a_cell_ends_with_the_last_round_whatever_it_held(held: int, last: int) -> None:
    assert end_of(held, last) == last


@given(ROUNDS, st.integers(0, 1))
def test_the_last_round_is_older_than_all_that_the_job_sends_and_has_the_cells_parity(first: int, cell: int) -> None:
    entry = JobEntry(1, 2, 1, 1, 64, 0, 1, first, ())
    last = wash.last_round(entry, cell)
    assert last % 2 == cell
    assert (first - last) % wash.CIRCLE in (1, 2)


def test_every_cell_of_the_lease_gets_every_step_in_order(job: JobEntry) -> None:
    entry = dataclasses.replace(job, slots=256)
    rounds: dict[int, list[int]] = {}
    steps = []
    for step, frames in wash.batches(entry, 77, "10.0.0.1"):
        assert 0 < len(frames) <= wash.CELLS_AT_A_TIME
        steps.append(step)
        for frame in frames:
            packet = Packet.from_bytes(frame[42:])
            assert (packet.kind, packet.job, packet.key, packet.worker) == (META, entry.job, 77, 0)
            rounds.setdefault(packet.cell, []).append(packet.round)
    assert steps == [0, 0, 1, 1, 2, 2]
    assert sorted(rounds) == list(range(512))
    for cell, numbers in rounds.items():
        last = wash.last_round(entry, cell)
        assert numbers == [(last - behind) % wash.CIRCLE for behind in wash.STEPS]


def test_a_frame_is_a_sound_packet_to_the_switch_from_itself() -> None:
    frame = Ether(wash.frame(7, 5, 3, 9, "10.0.0.1"))
    assert (frame[IP].src, frame[IP].dst) == ("10.0.0.1", "10.0.0.1")
    assert frame[UDP].sport == frame[UDP].dport == DATA_PORT
    header = bytes(frame)[14:34]
    assert sum(struct.unpack("!10H", header)) % 0xFFFF == 0
    assert frame[IP].len == 20 + frame[UDP].len == len(frame) - 14
