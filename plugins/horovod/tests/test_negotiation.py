"""The negotiation, without a network: ranks call in any order and at any time, and all execute in one common order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiresum.horovod.torch.negotiation import DuplicateNameError, Negotiation, Response
from wiresum.horovod.torch.request import Op, Request, RequestType

NEVER_S = float("inf")
SETTLING_CYCLES = 2
"""Cycles after the last call: one in which forgotten requests are described again, and one to spare."""


def allreduce(name: str, *shape: int, **fields: object) -> Request:
    return Request(RequestType.ALLREDUCE, f"allreduce.{name}", ("float32",), (shape or (4,),), **fields)  # type: ignore[arg-type]


class Ranks:
    """Coordinators of several ranks, whose messages of each cycle are combined here."""

    def __init__(self, size: int, **options: int) -> None:
        self.ranks = [Negotiation(rank, size, **options) for rank in range(size)]
        self.message_bytes = 0
        """The messages' bytes in the last cycle."""

    def cycle(self, now: float = 0.0, describe_after_s: float = NEVER_S) -> list[Response]:
        """Runs one cycle, and returns the responses, which must be the same at all ranks."""
        begun = [rank.begin_cycle(now, describe_after_s) for rank in self.ranks]
        sums = [sum(words) for words in zip(*(words for words, _ in begun), strict=True)]
        messages = [message for _, message in begun]
        self.message_bytes = sum(map(len, messages))
        cycles = [rank.read_words(sums) for rank in self.ranks]
        assert all(cycle.message_bytes == list(map(len, messages)) for cycle in cycles)
        seen = [
            rank.end_cycle(cycle, messages if any(messages) else [])
            for rank, cycle in zip(self.ranks, cycles, strict=True)
        ]
        assert all(outcomes == seen[0] for outcomes in seen)
        return seen[0]

    def submit(self, request: Request, ranks: Sequence[int] | None = None) -> None:
        for rank in range(len(self.ranks)) if ranks is None else ranks:
            self.ranks[rank].submit(request)


@given(st.data())
def test_all_ranks_execute_every_call_once_and_in_one_order(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 4))
    names = [f"t{k}" for k in range(data.draw(st.integers(1, 6)))]
    ranks = Ranks(size, cache_entries_max=data.draw(st.integers(1, 8)))
    for _ in range(data.draw(st.integers(1, 4))):  # training steps
        shapes = {name: data.draw(st.integers(1, 2)) for name in names}  # a change must be noticed
        todo = [data.draw(st.permutations(names)) for _ in range(size)]
        turns = data.draw(st.lists(st.tuples(*[st.integers(0, len(names))] * size), max_size=3))
        seen: list[str] = []
        for counts in [*turns, (len(names),) * size, *[(0,) * size] * SETTLING_CYCLES]:
            for rank, count in enumerate(counts):
                for name in todo[rank][:count]:
                    ranks.submit(allreduce(name, shapes[name]), [rank])
                del todo[rank][:count]
            outcomes = ranks.cycle()
            assert all(outcome.error is None for outcome in outcomes)
            seen += [outcome.name for outcome in outcomes]
        assert sorted(seen) == sorted(f"allreduce.{name}" for name in names)


def test_a_cached_request_costs_one_word_and_no_message() -> None:
    ranks = Ranks(3)
    ranks.submit(allreduce("a"))
    assert len(ranks.cycle()) == 1 and ranks.message_bytes > 0
    ranks.submit(allreduce("a"))
    assert [outcome.name for outcome in ranks.cycle()] == ["allreduce.a"] and ranks.message_bytes == 0


def test_a_request_waits_until_all_ranks_have_made_it() -> None:
    ranks = Ranks(3)
    for _ in range(2):  # the second time from the cache
        ranks.submit(allreduce("a"), [0, 2])
        assert ranks.cycle() == ranks.cycle() == []
        ranks.submit(allreduce("a"), [1])
        assert len(ranks.cycle()) == 1


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (allreduce("a", 5), "tensor shapes"),
        (replace(allreduce("a"), dtypes=("int32",)), "data types"),
        (allreduce("a", op=Op.AVERAGE), "reduction operations"),
        (allreduce("a", prescale=2.0), "prescale factors"),
        (replace(allreduce("a"), kind=RequestType.ALLGATHER), "collective operations"),
    ],
)
def test_a_mismatch_tells_every_rank_what_each_called_and_other_calls_go_on(other: Request, what: str) -> None:
    ranks = Ranks(3)
    ranks.submit(allreduce("a"), [0, 2])
    ranks.submit(other, [1])
    (outcome,) = ranks.cycle()
    assert outcome.error is not None
    assert outcome.error.startswith(f"Mismatched {what} for 'allreduce.a': ranks 0, 2 have ")
    assert "; rank 1 has " in outcome.error
    ranks.submit(allreduce("a"))
    assert ranks.cycle()[0].error is None


def allgather(name: str) -> Request:
    return Request(RequestType.ALLGATHER, f"allgather.{name}", ("float32",), ((4,),))


@pytest.mark.parametrize("known", [(), (allreduce,), (allgather,), (allreduce, allgather)])
def test_two_kinds_under_one_name_fail_at_every_rank_and_other_calls_go_on(
    known: Sequence[Callable[[str], Request]],
) -> None:
    ranks = Ranks(4)
    for call in (*known, *known):
        ranks.submit(call("a"))
        assert [outcome.error for outcome in ranks.cycle()] == [None]
    ranks.submit(allreduce("a"), [0, 3])
    ranks.submit(allgather("a"), [2])
    ranks.submit(allreduce("b"))
    assert [outcome.name for outcome in ranks.cycle() + ranks.cycle()] == ["allreduce.b"]  # rank 1 has not called a
    ranks.submit(allgather("a"), [1])
    outcomes = ranks.cycle() + ranks.cycle()
    assert sorted(outcome.name for outcome in outcomes) == ["allgather.a", "allreduce.a"]
    assert {outcome.error for outcome in outcomes} == {
        "Mismatched collective operations for 'a': ranks 0, 3 have allreduce; ranks 1, 2 have allgather. "
        "All ranks must call the same"
    }
    for call in (allreduce, allgather):
        ranks.submit(call("a"))
        assert [outcome.error for outcome in ranks.cycle()] == [None]


def test_a_joined_rank_is_not_waited_for_when_two_kinds_meet_under_one_name() -> None:
    ranks = Ranks(3)
    ranks.ranks[1].join()
    ranks.submit(allreduce("a"), [0])
    ranks.submit(allgather("a"), [2])
    assert all("rank 0 has allreduce; rank 2 has allgather" in str(outcome.error) for outcome in ranks.cycle())


@given(st.data())
def test_kinds_called_in_one_order_under_one_name_never_fail(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 4))
    ranks = Ranks(size)
    for _ in range(3):  # later rounds come from the cache
        todo = [[allreduce("a"), allgather("a")] for _ in range(size)]
        seen: list[str] = []
        turns = data.draw(st.lists(st.tuples(*[st.integers(0, 2)] * size), max_size=4))
        for counts in [*turns, (2,) * size, *[(0,) * size] * SETTLING_CYCLES]:
            for rank, count in enumerate(counts):
                for request in todo[rank][:count]:
                    ranks.submit(request, [rank])
                del todo[rank][:count]
            outcomes = ranks.cycle()
            assert all(outcome.error is None for outcome in outcomes)
            seen += [outcome.name for outcome in outcomes]
        assert sorted(seen) == ["allgather.a", "allreduce.a"]


def test_gathers_may_differ_in_the_first_dimension_only() -> None:
    ranks = Ranks(2)
    gather = Request(RequestType.ALLGATHER, "allgather.a", ("float32",), ((2, 3),))
    ranks.submit(gather, [0])
    ranks.submit(replace(gather, shapes=((7, 3),)), [1])
    (outcome,) = ranks.cycle()
    assert outcome.error is None
    assert [request.shapes[0][0] for request in outcome.requests if request] == [2, 7]
    ranks.submit(gather, [0])
    ranks.submit(replace(gather, shapes=((7, 4),)), [1])
    assert "Mismatched tensor shapes" in str([outcome.error for outcome in ranks.cycle() + ranks.cycle()])


def test_a_name_that_is_in_use_is_refused() -> None:
    ranks = Ranks(2)
    ranks.submit(allreduce("a"), [0])
    with pytest.raises(DuplicateNameError, match=r"'allreduce\.a'.*use a different tensor name"):
        ranks.submit(allreduce("a"), [0])


def test_a_joined_rank_is_not_waited_for_and_all_learn_which_joined_last() -> None:
    ranks = Ranks(3)
    ranks.submit(allreduce("known"))
    ranks.cycle()
    ranks.ranks[1].join()
    ranks.submit(allreduce("known"), [0, 2])
    ranks.submit(allreduce("new"), [0, 2])
    outcomes = ranks.cycle()
    assert [outcome.name for outcome in outcomes] == ["allreduce.known", "allreduce.new"]
    assert all(outcome.requests[1] is None and outcome.error is None for outcome in outcomes)
    ranks.ranks[0].join()
    assert ranks.cycle() == []
    ranks.ranks[2].join()
    (joined,) = ranks.cycle()
    assert (joined.kind, joined.number) == (RequestType.JOIN, 2)
    ranks.submit(allreduce("known"), [0, 1])
    assert ranks.cycle() == []  # all ranks are waited for again


def test_a_join_waits_for_the_ranks_earlier_calls() -> None:
    ranks = Ranks(2)
    ranks.submit(allreduce("a"), [0])
    ranks.ranks[0].join()
    ranks.cycle()
    assert not ranks.ranks[0].has_joined
    ranks.ranks[1].join()
    (outcome,) = ranks.cycle()
    assert outcome.name == "allreduce.a" and outcome.requests[1] is None
    assert ranks.cycle()[0].kind is RequestType.JOIN


@pytest.mark.parametrize(
    "request_",
    [Request(RequestType.ALLGATHER, "g", ("float32",), ((2,),)), allreduce("m", op=Op.MAX)],
    ids=["gather", "max"],
)
def test_operations_without_a_neutral_zero_are_refused_while_a_rank_has_joined(request_: Request) -> None:
    ranks = Ranks(2)
    for _ in range(2):
        ranks.submit(request_)
        assert ranks.cycle()[0].error is None
    ranks.ranks[1].join()
    ranks.submit(request_, [0])
    (outcome,) = ranks.cycle()
    assert outcome.error is not None and "rank 1 has joined" in outcome.error


def test_a_long_wait_names_the_missing_ranks() -> None:
    ranks = Ranks(3)
    ranks.submit(allreduce("a"))
    ranks.cycle()
    ranks.submit(allreduce("a"), [1, 2])
    assert ranks.cycle(now=10.0, describe_after_s=5.0) == [] and ranks.message_bytes == 0
    assert ranks.cycle(now=15.0, describe_after_s=5.0) == [] and ranks.message_bytes > 0
    (stall,) = ranks.ranks[1].stalled(15.0, 5.0)
    assert str(stall) == "allreduce.a [missing: rank 0; ready: ranks 1, 2]"
    ranks.submit(allreduce("a"), [0])
    assert ranks.cycle(now=16.0, describe_after_s=5.0)[0].error is None
    assert ranks.ranks[1].stalled(99.0, 5.0) == []


def test_all_ranks_learn_which_rank_leaves() -> None:
    ranks = Ranks(3)
    ranks.ranks[2].leave()
    words = [rank.begin_cycle(0.0, NEVER_S)[0] for rank in ranks.ranks]
    assert ranks.ranks[0].read_words([sum(column) for column in zip(*words, strict=True)]).leaving == [2]
