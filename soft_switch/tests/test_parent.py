"""When a switch that a worker has started ends."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from wiresum.switch.parent import ORPHAN_S_MAX, Parent
from wiresum_lab.doubles.workers import DataplaneHarness

ENDED_AT = 1000.0


@pytest.fixture
def channel() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
        yield made


def test_it_goes_on_while_its_parent_lives(channel: socket.socket, harness: DataplaneHarness) -> None:
    parent, device = Parent(os.getppid(), channel, channel, []), harness.switch()
    assert not any(parent.is_over(device, now) for now in (0.0, ENDED_AT))


def test_without_a_parent_it_ends_when_no_job_is_left_or_some_time_later(
    channel: socket.socket, harness: DataplaneHarness
) -> None:
    """The other workers of its jobs hear from it who was lost."""
    parent, device = Parent(os.getpid(), channel, channel, []), harness.switch()
    harness.job(device, 1)
    assert not parent.is_over(device, ENDED_AT)
    assert not parent.is_over(device, ENDED_AT + ORPHAN_S_MAX - 0.001)
    assert parent.is_over(device, ENDED_AT + ORPHAN_S_MAX)
    device.evict(1)
    assert parent.is_over(device, ENDED_AT + 0.001)
