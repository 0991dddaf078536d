"""Where a worker that has lost its lease asks next, and what."""

from __future__ import annotations

import pytest

from wiresum import join as messages
from wiresum.agent.errors import SwitchUnreachableError
from wiresum.agent.search import NOT_READY, TURN_S, TURN_S_MIN, Search, Services, resumed

GRANT = messages.JoinReply(threads=2, lanes=8, slots=16, members_secret=b"secret")
FIRST = messages.JoinRequest(job_name="a-job", rank=1, threads_max=4, lanes_max=100, slots=4096, attempt="the first")
ORDER = messages.JobEnded(cause=messages.JobEnded.WORKER_LEFT)


def search(*own: str, fallback: str = "") -> tuple[Services, Search]:
    services = Services(own, fallback, own[0])
    lost = SwitchUnreachableError("it is gone")
    return services, Search(services, lost, resumed(GRANT, b"positions", "its\nswitch is lost"), 100.0, 30.0)


def test_what_is_asked_is_the_old_lease_again_by_one_number_for_all_questions() -> None:  # R7.26
    _, made = search("a:1")
    asked, within_s = made.question(FIRST, GRANT, None, 101.0)
    assert (asked.job_name, asked.rank, asked.threads_max, asked.lanes_max, asked.slots) == ("a-job", 1, 2, 8, 16)
    assert (asked.resumed.slots, asked.resumed.threads, asked.resumed.lanes) == (16, 2, 8)
    assert asked.resumed.positions == b"positions" and asked.resumed.reason == "its switch is lost"
    assert len(asked.resumed.job_id) == 16 and not asked.resumed.HasField("ended")
    assert within_s == 29.0, "there is nobody else"
    told, _ = made.question(FIRST, GRANT, ORDER, 102.0)
    assert told.resumed.ended == ORDER and told.attempt == asked.attempt != FIRST.attempt
    assert FIRST.slots == 4096, "the request is left as it is"


def test_a_turn_is_short_where_there_are_others_and_ends_with_the_search() -> None:  # R7.27
    for services, made in (search("a:1", "b:1"), search("a:1", fallback="f:1")):
        assert services.are_several
        assert [made.question(FIRST, GRANT, None, now)[1] for now in (100.0, 129.0, 130.0)] == [
            TURN_S,
            1.0,
            TURN_S_MIN,
        ]


def ask(services: Services, made: Search, code: str) -> str:
    """The service that is talked to refuses; returns the next one."""
    made.refused(code, "why not")
    services.at = made.next()
    return services.at


def test_services_that_have_had_their_turns_are_left_out_until_all_have() -> None:  # R7.27
    services, made = search("a:1", "b:1", "c:1")
    told = [ask(services, made, "DEADLINE_EXCEEDED") for _ in range(12)]
    assert told == ["a:1", "b:1", "b:1", "c:1", "c:1", "a:1", "a:1", "a:1", "b:1", "b:1", "b:1", "c:1"]


def test_with_a_fallback_each_turn_begins_at_the_first_service() -> None:
    services, made = search("a:1", "b:1", fallback="f:1")
    services.at = "b:1"
    assert ask(services, made, "UNAVAILABLE") == "a:1"
    assert ask(services, made, "UNAVAILABLE") == "a:1"
    assert made.question(FIRST, GRANT, None, 101.0)[1] == TURN_S_MIN, "it is the fallback's turn"
    assert ask(services, made, "DEADLINE_EXCEEDED") == "b:1", "which is not put off by that"
    services.at = "f:1"
    assert made.question(FIRST, GRANT, None, 101.0)[1] == 2 * TURN_S


@pytest.mark.parametrize("code", [NOT_READY, "PERMISSION_DENIED"])
def test_a_service_that_cannot_or_never_will_is_followed_by_the_next(code: str) -> None:
    services, made = search("a:1", "b:1")
    assert [ask(services, made, code) for _ in range(3)] == ["b:1", "a:1", "b:1"]
    assert made.over(101.0) is None


def test_an_endpoint_that_is_none_of_the_jobs_is_followed_by_the_first() -> None:
    services, made = search("a:1", "b:1")
    services.at = "gone:1"
    assert made.next() == "a:1"


def test_the_error_says_how_long_it_has_looked_and_what_came_last() -> None:
    services, made = search("a:1", "b:1")
    made.note("connection refused")
    made.note("said later, and worse")
    assert made.over(129.9) is None
    error = made.over(130.0)
    assert str(error) == (
        "it is gone. For 30 s this worker has looked for another lease, and got none: connection refused. "
        'A job with a fallback goes on without any switch: "Without any switch" in docs/operations.md'
    )
    services, made = search("a:1", fallback="f:1")
    made.doubt("who listens at f:1 is not believed")
    ask(services, made, NOT_READY)
    assert str(made.over(130.0)).endswith("and got none: why not; who listens at f:1 is not believed")
    made.doubt("")
    assert str(made.over(130.0)).endswith("and got none: why not")
    services, made = search("a:1")
    ask(services, made, "PERMISSION_DENIED")
    assert str(made.over(101.0)).endswith("For 1 s this worker has looked for another lease, and got none: why not")
