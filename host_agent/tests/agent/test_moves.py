"""What a worker does with each Halt and Move, in any order, and when it halts by itself."""

from __future__ import annotations

import pytest

from wiresum import join as messages
from wiresum.agent.moves import Moves

SLOTS = 4
POSITIONS = bytes([1, 2, 3, 4])


class DataPath:
    def __init__(self) -> None:
        self.halts = 0
        self.keys: list[int] = []

    def halt(self) -> bytes:
        self.halts += 1
        return POSITIONS

    def move(self, grant: messages.JoinReply, roles: bytes) -> None:
        assert roles == bytes(SLOTS)
        self.keys.append(grant.key)


@pytest.fixture
def data_path() -> DataPath:
    return DataPath()


@pytest.fixture
def moves(data_path: DataPath) -> Moves:
    made = Moves("a job", lambda: 7.0)
    made.set_data_path(data_path.halt, data_path.move)
    return made


def lease(key: int, **changed: int) -> messages.JoinReply:
    return messages.JoinReply(
        **{"slots": SLOTS, "threads": 1, "lanes": 8, "workers": 2, "rank": 1, "key": key, **changed}
    )


def halt(number: int) -> messages.Halt:
    return messages.Halt(move_number=number, reason="a switch is drained")


def move(number: int) -> messages.Move:
    return messages.Move(move_number=number)


def test_a_move_from_its_halt_to_its_end(moves: Moves, data_path: DataPath) -> None:
    assert moves.halted is None and moves.newest is None
    assert moves.halt_for(halt(1))
    assert moves.halted == messages.Halted(move_number=1, positions=POSITIONS) and moves.halted_at == 7.0
    assert moves.is_expected(move(1))
    moves.go_on(lease(5), bytes(SLOTS), lease(4), 1)
    assert moves.halted is None and data_path.keys == [5]
    assert moves.newest is not None and moves.newest.why == "a switch is drained"


def test_what_is_told_twice_is_done_once(moves: Moves, data_path: DataPath) -> None:
    assert moves.halt_for(halt(3)) and not moves.halt_for(halt(3))
    moves.go_on(lease(5), bytes(SLOTS), lease(4), 3)
    assert not moves.is_expected(move(3))
    assert not moves.halt_for(halt(3)) and moves.halted is None and data_path.halts == 1


def test_a_service_that_gives_a_move_up_halts_for_another_one(moves: Moves) -> None:
    assert moves.halt_for(halt(1)) and moves.halt_for(halt(2))
    assert not moves.halt_for(halt(1))
    assert not moves.is_expected(move(1)) and moves.is_expected(move(2))


def test_one_that_halted_by_itself_is_moved_after_a_halt_alone(moves: Moves, data_path: DataPath) -> None:
    assert moves.halt_for(halt(1))
    moves.go_on(lease(5), bytes(SLOTS), lease(4), 1)
    moves.halt_unasked("its switch is silent")
    assert moves.halted == messages.Halted(move_number=1, positions=POSITIONS, unasked=True)
    assert not moves.is_expected(move(1)), "the one before, told again"
    assert not moves.halt_for(halt(1))
    assert moves.halt_for(halt(2)) and moves.is_expected(move(2))
    moves.go_on(lease(6), bytes(SLOTS), lease(5), 2)
    assert moves.newest is not None and moves.newest.why == "its switch is silent"
    assert data_path.keys == [5, 6]


def test_a_lease_that_was_asked_for_begins_the_numbers_anew(moves: Moves) -> None:
    assert moves.halt_for(halt(9)) and not moves.halt_for(halt(1))
    moves.go_on(lease(5), bytes(SLOTS), lease(4), 0)
    assert moves.halt_for(halt(1))


@pytest.mark.parametrize("what", ["slots", "threads", "lanes", "workers", "rank"])
def test_a_lease_of_another_kind_is_refused(moves: Moves, data_path: DataPath, what: str) -> None:
    assert moves.halt_for(halt(1))
    with pytest.raises(ValueError, match=f"{what} would be 16, and must be"):
        moves.go_on(lease(5, **{what: 16}), bytes(SLOTS), lease(4), 1)
    assert data_path.keys == [] and moves.halted is not None


def test_a_data_path_that_goes_on_is_not_moved(moves: Moves, data_path: DataPath) -> None:
    with pytest.raises(AssertionError, match="it has halted"):
        moves.go_on(lease(5), bytes(SLOTS), lease(4), 1)
    assert data_path.keys == []


def test_roles_are_one_for_each_slot(moves: Moves, data_path: DataPath) -> None:
    assert moves.halt_for(halt(1))
    with pytest.raises(ValueError, match="3 roles were given for 4 slots"):
        moves.go_on(lease(5), bytes(3), lease(4), 1)
    assert data_path.keys == []


def test_without_a_data_path_that_halts_there_are_no_moves(moves: Moves) -> None:
    moves.set_data_path(None, None)
    assert not moves.can_halt
    with pytest.raises(RuntimeError, match="did not say it can"):
        moves.halt_for(halt(1))
    with pytest.raises(RuntimeError, match="did not say it can"):
        moves.halt_unasked("its switch is silent")
    assert moves.halted is None
