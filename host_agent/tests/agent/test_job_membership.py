"""What a session is told of moves, also of those that come before there is a session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from wiresum.agent.config import AgentConfig
from wiresum.agent.job_membership import JobMembership
from wiresum.join import Endpoint, JoinReply

SLOTS = 4
FIRST_POSITIONS = bytes([0, 0, 0, 1]) * SLOTS


class Session:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def halt(self, aggregator: int) -> str:
        self.told.append(("halt", aggregator))
        return "00000007" * SLOTS

    def move(self, to: Any) -> None:
        self.told.append(("move", int(to["aggregator"]), int(to["key"]), to["roles"], to["switch_address"]))


class Joined(list[Any]):
    """The aggregators."""

    ended = None


def grant(key: int) -> JoinReply:
    return JoinReply(
        job=1, key=key, workers=2, lanes=8, threads=1, slots=SLOTS, switch_endpoint=Endpoint(address="10.0.0.9", port=1)
    )


@pytest.fixture
def membership() -> JobMembership:
    """Of a worker that has joined at two aggregators."""
    made = JobMembership(AgentConfig(switch="a:1"), job_name="job", rank=0, world_size=2)
    made._aggregators = Joined(  # type: ignore[assignment]
        SimpleNamespace(switch="a:1", address="10.0.0.1", membership=SimpleNamespace(grant=grant(key)))
        for key in (5, 6)
    )
    return made


def attend(membership: JobMembership) -> Session:
    session = Session()
    membership.attend(dict, lambda error, tell_others: None, session.halt, session.move)
    return session


def test_a_session_halts_and_moves(membership: JobMembership) -> None:
    session = attend(membership)
    assert membership.halt(1, SLOTS) == bytes([0, 0, 0, 7]) * SLOTS
    membership.move(1, grant(99), bytes([0, 1, 2, 3]))
    assert session.told == [("halt", 1), ("move", 1, 99, "0123", "10.0.0.9")]


def test_what_is_halted_before_there_is_a_session_has_the_first_positions(membership: JobMembership) -> None:
    assert membership.halt(0, SLOTS) == FIRST_POSITIONS
    session = attend(membership)
    assert session.told == [("halt", 0)], "it must not send before the move"
    membership.move(0, grant(99), bytes(SLOTS))
    assert session.told[1:] == [("move", 0, 99, "0" * SLOTS, "10.0.0.9")]


def test_a_move_before_there_is_a_session_is_where_it_begins(membership: JobMembership) -> None:
    membership.halt(0, SLOTS)
    membership.move(0, grant(99), bytes(SLOTS))
    assert attend(membership).told == [("halt", 0), ("move", 0, 99, "0" * SLOTS, "10.0.0.9")]


def test_a_worker_that_has_sent_nothing_has_nothing_to_repeat(membership: JobMembership) -> None:
    membership.halt(0, SLOTS)
    with pytest.raises(ValueError, match="nothing to repeat"):
        membership.move(0, grant(99), bytes([1] * SLOTS))
