"""The rules of a worker's life: orders, moves, and where a worker looks for another lease."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from wiresum import join as messages
from wiresum.agent import life_table as module
from wiresum.agent.absence import FALLBACK_S
from wiresum.agent.errors import JobAbortedError, SessionClosedError, WiresumError
from wiresum.agent.life_table import Do, Event, Phase
from wiresum.agent.search import NOT_READY

from .scene import ABORTED, FALLBACK, FIRST, LEFT, POSITIONS, REASON, SECOND, SLOTS, Scene, at, lease

LEAVING = (Phase.TELLING, Phase.CONVEYING, Phase.UNTOLD)


@pytest.mark.parametrize("phase", LEAVING, ids=lambda each: each.name)
def test_one_that_leaves_after_its_abort_looks_for_a_service_for_so_long_but_says_nothing_more(phase: Phase) -> None:
    scene = at(phase)
    scene.now += 10.0
    scene.let(Event.LEAVE)
    until = 100.0 + module.ABORT_S_MAX
    assert scene.life._timers[Event.GIVE_UP] == until
    scene.now += 1.0
    assert scene.let(Event.LEAVE).life._timers[Event.GIVE_UP] == until, "the first one counts"
    assert scene.let(Event.ELSEWHERE).life.phase is phase
    until = scene.now + module.LEAVE_S_MAX
    assert scene.life._timers[Event.GIVE_UP] == until, "another aggregator is enough"
    scene.now += 1.0
    assert scene.let(Event.ELSEWHERE).life._timers[Event.GIVE_UP] == until
    assert scene.let(Event.GIVE_UP).life.phase is Phase.LEFT


@pytest.mark.parametrize(("workers", "said"), [(1, 0), (2, 1)])
def test_it_says_once_that_it_waits(caplog: pytest.LogCaptureFixture, workers: int, said: int) -> None:
    scene = at(Phase.UNTOLD, workers=workers).let(Event.LEAVE)
    assert caplog.text.count("it looks for one for up to 30 s") == said
    scene.let(Event.RETRY).let(Event.UNTOLD)
    assert caplog.text.count("it looks for one") == said
    caplog.clear()
    at(Phase.TELLING, workers=2).let(Event.LEAVE)
    at(Phase.ATTENDING).let(Event.LEAVE).let(Event.UNTOLD)
    assert "it looks for one" not in caplog.text


@pytest.mark.parametrize("phase", LEAVING, ids=lambda each: each.name)
def test_it_waits_no_longer_than_for_a_good_bye_if_nobody_else_need_hear_it(phase: Phase) -> None:
    for scene in (at(phase, workers=1), at(phase).let(Event.ELSEWHERE), at(Phase.SPREADING)):
        scene.let(Event.LEAVE)
        assert scene.life._timers[Event.GIVE_UP] == scene.now + module.LEAVE_S_MAX


def test_the_end_is_not_said_to_one_that_leaves() -> None:
    scene = at(Phase.TELLING).let(Event.LEAVE).let(Event.ENDED)
    assert (scene.life.phase, scene.names) == (Phase.LEFT, ["HEARD", "HANG_UP"])
    scene = at(Phase.CONVEYING).let(Event.LEAVE).let(Event.ENDED)
    assert scene.names == ["HEARD", "HANG_UP", "CONNECT", "TELL"]
    assert (scene.let(Event.UNKNOWN).life.phase, scene.names) == (Phase.LEFT, [])


def test_an_order_that_a_service_heard_which_did_not_know_the_job_is_told_where_the_others_may_be() -> None:  # R7.33
    scene = at(Phase.CONVEYING).let(Event.SERVES).let(Event.ENDED)
    assert scene.what(Do.CONNECT) == (SECOND,) and scene.what(Do.TELL) == (scene.life.member, ABORTED)
    assert str(scene.what(Do.SAY)[0]) == "somebody else"
    assert scene.let(Event.UNTOLD).names == []
    assert scene.let(Event.RETRY).what(Do.CONNECT) == (FALLBACK,) and scene.names == ["CONNECT", "TELL"]
    assert scene.let(Event.UNKNOWN).what(Do.CONNECT) == (SECOND,), "it may be back"
    scene.now += module.ABORT_S_MAX - 1.0
    assert scene.let(Event.UNTOLD).let(Event.RETRY).what(Do.CONNECT) == (SECOND,)
    scene.now += 1.0
    assert (scene.let(Event.UNTOLD).life.phase, scene.names) == (Phase.OVER, [])


def test_a_good_bye_is_told_as_the_abort_is_but_nobody_else_need_hear_it() -> None:
    scene = at(Phase.ATTENDING).let(Event.LEAVE).let(Event.ENDED)
    assert (scene.life.phase, scene.names) == (Phase.LEFT, ["HANG_UP"])


def test_one_that_has_left_holds_nothing_of_its_worker() -> None:
    scene, owner = Scene(), Scene()
    held = weakref.ref(owner)
    scene.let(Event.BEGIN, owner.worker()).let(Event.LEAVE).let(Event.TOLD)
    del owner
    assert held() is None
    scene = at(Phase.ATTENDING).let(Event.LEAVE)
    assert scene.what(Do.TELL) == (scene.life.member, LEFT)
    assert scene.life._timers[Event.GIVE_UP] == scene.now + module.LEAVE_S_MAX
    scene.let(Event.UNKNOWN)
    request, _, if_ready = scene.what(Do.ASK)
    assert request.resumed.ended == LEFT and if_ready
    assert at(Phase.ATTENDING).let(Event.LEAVE).let(Event.TOLD).names == ["HANG_UP"]


def test_an_abort_is_told_to_a_service_that_does_not_know_the_job_in_place_of_asking_for_a_lease() -> None:  # R7.31
    scene = at(Phase.CONVEYING)
    request, within_s, _ = scene.what(Do.ASK)
    assert request.resumed.ended == ABORTED and request.resumed.positions == b"" and scene.halts == 0
    assert within_s == 2.0
    told = scene.let(Event.GRANTED).what(Do.TELL)
    assert told == (messages.Member(job=6, worker=1, token="t"), ABORTED) and scene.keys == []


def test_one_that_has_told_its_abort_and_leaves_hangs_up() -> None:
    scene = at(Phase.TELLING).let(Event.LEAVE).let(Event.TOLD)
    assert (scene.life.phase, scene.names) == (Phase.LEFT, ["HEARD", "HANG_UP"])


def test_one_whose_service_does_not_say_that_its_job_is_over_says_so_itself() -> None:
    (error,) = at(Phase.TOLD).let(Event.ENDING).what(Do.SAY)
    assert isinstance(error, JobAbortedError) and f"ended the job: {REASON}" in str(error)


def test_heartbeats_of_one_with_an_order_say_nothing() -> None:  # R7.31
    scene = at(Phase.ATTENDING).let(Event.HALT)
    assert scene.what(Do.BEAT)[1:] == (messages.Halted(move_number=1, positions=POSITIONS), True)
    assert scene.let(Event.ABORT).let(Event.BEAT).what(Do.BEAT)[1:] == (None, False)


# Moves.


def halt(number: int) -> messages.Halt:
    return messages.Halt(move_number=number, reason="a switch is drained")


def move(number: int, key: int = 5, roles: bytes = bytes(SLOTS), **changed: Any) -> messages.Move:
    return messages.Move(move_number=number, grant=lease(key, **changed), roles=roles)


def test_a_move_from_its_halt_to_its_end() -> None:  # R5.28, R7.20
    scene = at(Phase.ATTENDING).let(Event.HALT, halt(1)).let(Event.MOVE, move(1, check_word=True))
    assert scene.names == ["GONE_ON", "CLOSE_FALLBACK", "BEAT"]
    assert scene.what(Do.GONE_ON) == ("a switch is drained",)
    assert scene.life.halted is None and scene.keys == [5] and scene.life.grant.members_secret == b"of lease 1"
    assert not scene.life.grant.check_word, "the job goes on as it began"
    assert scene.what(Do.BEAT)[0] == messages.Member(job=5, worker=1, token="t")


def test_what_is_told_twice_is_done_once() -> None:
    scene = at(Phase.ATTENDING).let(Event.HALT, halt(3))
    assert scene.let(Event.HALT, halt(3)).names == [], "else each answer to a heartbeat would call for the next one"
    scene.let(Event.MOVE, move(3))
    assert scene.let(Event.MOVE, move(3)).names == []
    assert scene.let(Event.HALT, halt(3)).names == [] and scene.life.halted is None and scene.halts == 1


def test_a_service_that_gives_a_move_up_halts_for_another_one() -> None:
    scene = at(Phase.ATTENDING).let(Event.HALT, halt(1)).let(Event.HALT, halt(2))
    assert scene.let(Event.HALT, halt(1)).names == [] and scene.let(Event.MOVE, move(1)).names == []
    assert "GONE_ON" in scene.let(Event.MOVE, move(2)).names


def test_one_that_halted_by_itself_is_moved_after_a_halt_alone() -> None:
    scene = at(Phase.ATTENDING).let(Event.HALT, halt(1)).let(Event.MOVE, move(1)).let(Event.LOST)
    assert scene.what(Do.BEAT)[1] == messages.Halted(move_number=1, positions=POSITIONS, unasked=True)
    assert scene.let(Event.MOVE, move(1)).names == [], "the one before, told again"
    assert scene.let(Event.HALT, halt(1)).names == []
    scene.let(Event.HALT, halt(2)).let(Event.MOVE, move(2, key=7))
    assert scene.life.phase is Phase.ATTENDING and scene.keys == [5, 7] and not scene.life.has_lost_lease
    assert scene.what(Do.GONE_ON) == ("it does not know it any more",)


def test_one_that_has_halted_for_a_move_does_not_halt_again_when_its_lease_is_lost() -> None:
    scene = at(Phase.ATTENDING).let(Event.HALT).let(Event.LOST)
    assert scene.halts == 1 and scene.what(Do.BEAT)[1] == messages.Halted(move_number=1, positions=POSITIONS)


def test_the_times_are_those_of_the_newest_lease() -> None:
    scene = at(Phase.ATTENDING).let(Event.HALT).let(Event.MOVE, move(1, reattach_ms=300)).let(Event.BROKE)
    scene.now += 1.0
    assert scene.let(Event.RETRY).life.phase is Phase.SEEKING


def test_a_lease_that_was_asked_for_begins_the_numbers_anew() -> None:
    scene = at(Phase.ATTENDING).let(Event.HALT, halt(9)).let(Event.MOVE, move(9))
    scene.let(Event.LOST).let(Event.LOST).let(Event.GRANTED)
    assert scene.life.phase is Phase.ATTENDING and scene.keys == [5, 6]
    assert scene.let(Event.HALT, halt(1)).names == ["BEAT"]


def test_a_lease_without_roles_was_granted_before_and_is_attended_as_by_one_that_has_halted() -> None:  # R7.29
    scene = at(Phase.ASKING).let(Event.GRANTED, lease(6, roles=b""))
    assert (scene.life.phase, scene.keys, scene.names) == (Phase.SEEKING, [], ["ATTEND", "BEAT"])
    member, halted, _ = scene.what(Do.BEAT)
    assert (member.job, halted) == (6, messages.Halted(positions=POSITIONS, unasked=True))


BAD = [{name: 16} for name in ("slots", "threads", "lanes", "workers", "rank")]


@pytest.mark.parametrize("changed", BAD, ids="".join)
def test_a_lease_of_another_kind_ends_the_job(changed: dict[str, int]) -> None:
    scene = at(Phase.ATTENDING).let(Event.HALT).let(Event.MOVE, move(1, **changed))
    (reason,) = scene.what(Do.ABORT_ALL)
    assert f"{''.join(changed)} would be 16, and must be" in reason and scene.keys == []
    assert (scene.life.phase, scene.names) == (Phase.TELLING, ["ABORT_ALL", "SAY", "TELL"])


def test_a_lease_with_other_workers_on_a_stream_ends_the_job() -> None:
    other = messages.Sharing(ranks=[0, 1])
    scene = at(Phase.ATTENDING).let(Event.HALT).let(Event.MOVE, move(1, sharing=other))
    (reason,) = scene.what(Do.ABORT_ALL)
    assert "this worker had a stream of its own, and would have a stream that ranks 0, 1 share" in reason
    assert scene.keys == []


def test_roles_are_one_for_each_slot() -> None:
    scene = at(Phase.ATTENDING).let(Event.HALT).let(Event.MOVE, move(1, roles=bytes(3)))
    assert "3 roles were given for 4 slots" in scene.what(Do.ABORT_ALL)[0] and scene.keys == []


FAILING = [(Phase.ATTENDING, Event.HALT), (Phase.SEEKING, Event.HALT), (Phase.ATTENDING, Event.LOST)]


@pytest.mark.parametrize(("phase", "event"), FAILING, ids=lambda each: each.name)
def test_a_data_path_that_cannot_halt_ends_the_job(phase: Phase, event: Event) -> None:
    scene = at(phase)
    scene.halt_fails = ValueError("a thread has died")
    scene.let(event)
    assert (scene.life.phase, scene.names) == (Phase.TELLING, ["ABORT_ALL", "SAY", "TELL"])
    assert scene.what(Do.ABORT_ALL) == ("the job cannot move to another lease: a thread has died",)


def test_a_data_path_that_cannot_go_on_ends_the_job() -> None:
    scene = at(Phase.ASKING)
    scene.move_fails = ValueError("no such socket")
    assert (scene.let(Event.GRANTED).life.phase, scene.names) == (Phase.TELLING, ["ABORT_ALL", "SAY", "TELL"])
    assert scene.what(Do.TELL)[0] == messages.Member(job=6, worker=1, token="t"), "it is a member there"


def test_a_session_that_is_being_closed_neither_halts_nor_moves() -> None:
    scene = at(Phase.ATTENDING)
    scene.halt_fails = SessionClosedError("the session was left")
    assert scene.let(Event.HALT).names == [] and Event.LOOK not in scene.timers, "no heartbeat is due"
    assert (scene.let(Event.LOST).life.phase, scene.names) == (Phase.AWAY, ["HANG_UP"])
    scene = at(Phase.ASKING)
    scene.move_fails = SessionClosedError("the session was left")
    assert (scene.let(Event.GRANTED).life.phase, scene.names) == (Phase.SEEKING, ["ATTEND", "BEAT"])


# Where it looks.


def test_a_service_that_is_gone_is_given_up_in_time_and_the_job_looks_elsewhere() -> None:  # R7.24, R7.25
    scene = at(Phase.AWAY)
    scene.now += 599.0
    assert scene.let(Event.RETRY).life.phase is Phase.ATTENDING
    scene.let(Event.BROKE)
    scene.now += 2.0
    assert (scene.let(Event.RETRY).life.phase, scene.what(Do.CONNECT)) == (Phase.SEEKING, (FIRST,))
    scene = at(Phase.UNTOLD)
    scene.now += 601.0
    assert scene.let(Event.RETRY).what(Do.CONNECT) == (FIRST,) and scene.life.has_lost_lease and scene.halts == 0


def test_one_that_stands_still_and_has_a_fallback_does_not_wait_for_its_service() -> None:  # R7.24
    scene = at(Phase.ATTENDING).let(Event.HALT).let(Event.BROKE)
    scene.now += FALLBACK_S - 0.1
    assert scene.let(Event.RETRY).life.phase is Phase.ATTENDING
    scene.let(Event.BROKE)
    scene.now += 0.1
    assert scene.let(Event.RETRY).life.phase is Phase.SEEKING
    scene = at(Phase.AWAY)
    scene.now += FALLBACK_S
    assert scene.let(Event.RETRY).life.phase is Phase.ATTENDING, "its switch may send the next result"


@pytest.mark.parametrize(("cause", "gone"), [("connection refused", True), ("it timed out", False)])
def test_a_service_that_refuses_is_given_up_sooner_than_one_that_is_silent(cause: str, *, gone: bool) -> None:  # R7.24
    scene = at(Phase.ATTENDING, reattach_ms=300).let(Event.BROKE, cause)
    scene.now += 1.0
    assert scene.let(Event.RETRY).life.has_lost_lease == gone
    scene = at(Phase.TELLING, reattach_ms=300).let(Event.UNTOLD, cause, 0.2)
    scene.now += 1.0
    assert scene.let(Event.RETRY).life.has_lost_lease == gone


def test_a_job_goes_on_without_its_service_while_the_switch_sends_results() -> None:  # R7.17
    scene = at(Phase.AWAY)
    scene.now, scene.received = scene.now + 700.0, 1
    assert scene.let(Event.RETRY).life.phase is Phase.ATTENDING


def test_the_first_cause_is_said() -> None:
    scene = at(Phase.SEEKING).let(Event.BROKE, "the first").let(Event.SERVES_NOT).let(Event.RETRY)
    scene.now += module.RESUME_S
    assert str(scene.let(Event.BROKE, "the second").what(Do.SAY)[0]).endswith("the first")


def test_services_are_tried_in_turn() -> None:
    scene = at(Phase.AWAY)
    assert scene.let(Event.RETRY).what(Do.CONNECT) == (SECOND,)
    assert scene.let(Event.BROKE).let(Event.RETRY).what(Do.CONNECT) == (FIRST,)
    scene = at(Phase.RESTING)
    assert scene.let(Event.RETRY).what(Do.CONNECT) == (SECOND,)
    scene.let(Event.BROKE).let(Event.SERVES).let(Event.RETRY)
    assert scene.what(Do.CONNECT) == (FALLBACK,)
    assert scene.let(Event.LOST).let(Event.REFUSED).let(Event.RETRY).what(Do.CONNECT) == (FIRST,)
    scene = at(Phase.UNTOLD)
    assert scene.let(Event.RETRY).what(Do.CONNECT) == (SECOND,)
    scene = at(Phase.CONVEYING).let(Event.REFUSED, "PERMISSION_DENIED", "").let(Event.RETRY)
    assert scene.what(Do.CONNECT) == (SECOND,)


def test_the_search_ends_in_time_and_says_why() -> None:
    for phase, event in ((Phase.SEEKING, Event.BROKE), (Phase.SEEKING, Event.SILENCE), (Phase.ASKING, Event.REFUSED)):
        scene = at(phase)
        scene.now += module.RESUME_S - 0.1
        assert scene.let(event).life.phase is Phase.RESTING
        scene = at(phase)
        scene.now += module.RESUME_S
        assert (scene.let(event).life.phase, scene.names[-1]) == (Phase.OVER, "SAY")
        why = {Event.BROKE: "connection refused", Event.SILENCE: "silence for 6.0 s"}.get(event, "rank 0 is missing")
        assert f"For 30 s this worker has looked for another lease, and got none: {why}" in str(scene.what(Do.SAY)[0])


def test_a_refusal_for_good_ends_the_search_where_there_is_nobody_else() -> None:
    for own, phase in (((FIRST,), Phase.OVER), ((FIRST, SECOND), Phase.RESTING)):
        scene = at(Phase.ASKING, own=own, fallback="")
        assert scene.let(Event.REFUSED, "PERMISSION_DENIED", "another key").life.phase is phase
    scene = at(Phase.ASKING, own=(FIRST,), fallback="")
    assert scene.let(Event.REFUSED, "INTERNAL", "a table is full").life.phase is Phase.RESTING, (
        "a switch may take it yet"
    )


def test_after_some_turns_only_the_fallback_has_turns() -> None:  # R7.27
    scene = at(Phase.ASKING)
    scene.let(Event.REFUSED).let(Event.RETRY).let(Event.LOST).let(Event.REFUSED).let(Event.RETRY)
    assert scene.let(Event.LOST).what(Do.ASK)[1] == 0.1, "whether the job is over"
    scene.let(Event.REFUSED).let(Event.SERVES).let(Event.RETRY)
    while scene.life.services.at != FALLBACK:
        scene.let(Event.BROKE).let(Event.RETRY)
    assert scene.let(Event.LOST).what(Do.ASK)[1] == 4.0


def test_a_service_without_a_switch_has_had_no_turn() -> None:
    scene = at(Phase.ASKING)
    for _ in range(5):
        scene.let(Event.REFUSED, NOT_READY, "it has no switch").let(Event.RETRY).let(Event.LOST)
        assert scene.life.phase is Phase.ASKING


LOST = [Phase.SEEKING, Phase.ASKING, Phase.RESTING, Phase.CONVEYING]


@pytest.mark.parametrize("phase", LOST, ids=lambda each: each.name)
def test_a_fallback_that_serves_comes_after_the_services(phase: Phase) -> None:
    scene = at(phase).let(Event.LOOK)
    assert scene.let(Event.SERVES_NOT).life.services.all == (FIRST, SECOND)
    assert scene.life._timers[Event.LOOK] == scene.now + module.RETRY_PAUSE_S
    assert scene.let(Event.LOOK).let(Event.SERVES).life.services.all == (FIRST, SECOND, FALLBACK)
    assert scene.life._timers[Event.LOOK] == scene.now + module.RETRY_PAUSE_S, "it may end"


@pytest.mark.parametrize("route", ["REFUSED", "REFUSED RETRY"])
def test_it_does_so_for_one_with_an_order_that_has_lost_its_lease(route: str) -> None:
    scene = at(Phase.CONVEYING).let(Event.LOOK)
    for name in route.split():
        scene.let(Event[name])
    assert scene.life.phase in (Phase.UNTOLD, Phase.TELLING)
    assert Event.LOOK in scene.let(Event.SERVES_NOT).timers
    assert scene.let(Event.SERVES).life.services.all == (FIRST, SECOND, FALLBACK)
    assert at(Phase.TELLING).let(Event.SERVES).life.services.all == (FIRST, SECOND), "its lease is not lost"


def test_the_fallback_is_looked_for_after_a_while_and_again() -> None:
    scene = at(Phase.SEEKING)
    assert scene.life._timers[Event.LOOK] == scene.now + module.FALLBACK_AFTER_S
    scene.let(Event.LOOK)
    assert Event.LOOK not in scene.timers, "it is being looked for"
    assert Event.LOOK in scene.let(Event.SERVES_NOT).timers
    due = scene.life._timers[Event.LOOK]
    assert scene.let(Event.BROKE).let(Event.RETRY).life._timers[Event.LOOK] == due, "another service changes nothing"
    assert Event.LOOK not in at(Phase.SEEKING, fallback="").timers
    scene.let(Event.SERVES_NOT, "what listens there is not it")
    scene.now += module.RESUME_S
    assert "what listens there is not it" in str(scene.let(Event.BROKE).what(Do.SAY)[0])


@pytest.mark.parametrize("phase", [Phase.ATTENDING, Phase.SEEKING], ids=lambda each: each.name)
def test_a_job_that_stands_still_goes_to_the_fallback_if_that_serves(phase: Phase) -> None:  # R7.24
    scene = at(phase).let(Event.PULSE)
    scene.now += module.FALLBACK_AFTER_S
    if phase is Phase.ATTENDING:
        assert scene.let(Event.SERVES).life.phase is phase, "it does not stand still"
        assert scene.let(Event.HALT).timers == {Event.BEAT, Event.SILENCE, Event.LOOK}
        scene.let(Event.BROKE).let(Event.RETRY)
        assert Event.LOOK in scene.timers
    else:
        scene.let(Event.BROKE).let(Event.RETRY)
    scene.now += module.FALLBACK_AFTER_S
    assert scene.let(Event.SERVES).life.phase is phase, "the service has said nothing"
    scene.let(Event.BROKE)
    scene.life.services.at = SECOND if phase is Phase.ATTENDING else FALLBACK
    scene.let(Event.RETRY).let(Event.PULSE)
    scene.now += module.FALLBACK_AFTER_S / 2
    assert scene.let(Event.SERVES).life.phase is phase, "the service has had no time"
    scene.now += module.FALLBACK_AFTER_S / 2
    assert (scene.let(Event.SERVES).life.phase, scene.what(Do.CONNECT)) == (Phase.SEEKING, (FALLBACK,))
    scene.let(Event.PULSE)
    scene.now += module.FALLBACK_AFTER_S
    assert scene.let(Event.SERVES).names == [], "it is there"


def test_a_job_without_a_fallback_does_nothing_for_it() -> None:
    scene = at(Phase.ATTENDING, fallback="")
    scene.now, scene.sent = scene.now + module.FALLBACK_AFTER_S, 3
    assert scene.let(Event.PULSE, messages.Pulse(lost="leaf is lost")).names == []
    assert scene.let(Event.HALT).timers == {Event.BEAT, Event.SILENCE}
    assert scene.let(Event.BROKE).let(Event.RETRY).timers == {Event.BEAT, Event.SILENCE}
    assert scene.let(Event.MOVE).names == ["GONE_ON", "BEAT"]


def test_one_with_an_order_that_has_its_lease_looks_for_no_fallback() -> None:
    assert Event.LOOK not in at(Phase.ATTENDING).let(Event.HALT).let(Event.ABORT).timers


def test_a_fallback_that_the_job_has_left_is_not_gone_back_to_without_a_proof() -> None:
    scene = at(Phase.ATTENDING)
    scene.life.services.further = FALLBACK
    scene.let(Event.HALT).let(Event.MOVE)
    assert scene.life.services.all == (FIRST, SECOND)
    scene.life.services.further = FALLBACK
    assert scene.let(Event.LOST).life.services.all == (FIRST, SECOND)


def test_a_fallback_stays_open_while_the_job_is_there_and_closes_when_it_goes_on_elsewhere() -> None:
    scene = at(Phase.RESTING).let(Event.SERVES)
    while scene.life.services.at != FALLBACK:
        scene.let(Event.RETRY).let(Event.BROKE)
    scene.let(Event.RETRY)
    scene.life.services.at = FALLBACK
    assert "CLOSE_FALLBACK" not in scene.let(Event.LOST).let(Event.GRANTED).names
    assert scene.life.services.all == (FIRST, SECOND, FALLBACK)
    assert "CLOSE_FALLBACK" in scene.let(Event.LOST).let(Event.LOST).let(Event.GRANTED).names
    assert scene.life.services.all == (FIRST, SECOND)


@pytest.mark.parametrize("answers", [False, True])
def test_a_job_whose_service_says_that_the_switch_is_lost_halts_if_so_it_seems(*, answers: bool) -> None:  # R7.24
    scene = at(Phase.ATTENDING)
    scene.now, scene.sent, scene.received = scene.now + module.FALLBACK_AFTER_S, 3, int(answers)
    scene.let(Event.PULSE, messages.Pulse(lost="leaf is lost"))
    assert (scene.halts, scene.names) == ((0, []) if answers else (1, ["BEAT"]))
    scene.now += module.FALLBACK_AFTER_S
    scene.sent += 3
    scene.let(Event.PULSE, messages.Pulse(lost="leaf is lost"))
    assert scene.halts <= 1 or answers, "it has halted"
    late = at(Phase.ATTENDING)
    late.sent = 3
    late.let(Event.BROKE).let(Event.RETRY)
    late.now += module.FALLBACK_AFTER_S
    assert late.let(Event.PULSE, messages.Pulse(lost="leaf is lost")).halts == 0, "that was before this stream"
    late.sent += 1
    assert late.let(Event.PULSE).halts == 0, "nothing is lost"
    idle = at(Phase.ATTENDING)
    idle.now += module.FALLBACK_AFTER_S
    assert idle.let(Event.PULSE, messages.Pulse(lost="leaf is lost")).names == [], "it has asked nothing"


def test_what_is_heard_keeps_the_stream() -> None:
    for phase, event in ((Phase.ATTENDING, Event.PULSE), (Phase.SEEKING, Event.HALT), (Phase.ATTENDING, Event.MOVE)):
        scene = at(phase)
        scene.now += 3.0
        assert scene.let(event).life._timers[Event.SILENCE] == scene.now + module.SILENCE_S_MAX


@pytest.mark.parametrize("event", [Event.PULSE, Event.HALT, Event.MOVE], ids=lambda each: each.name)
def test_what_a_service_says_while_it_is_told_an_order_counts_as_heard(event: Event) -> None:
    scene = at(Phase.TELLING)
    scene.now += 300.0
    assert scene.let(event).timers == {Event.BEAT}, "it waits for an answer, and not for the stream"
    scene.let(Event.UNTOLD)
    scene.now += 400.0
    assert scene.let(Event.RETRY).life.has_lost_lease is False
    scene.let(Event.UNTOLD)
    scene.now += 201.0
    assert scene.let(Event.RETRY).life.has_lost_lease


def test_a_job_that_has_halted_looks_at_the_fallback_again_and_again() -> None:
    scene = at(Phase.ATTENDING).let(Event.HALT).let(Event.LOOK)
    assert Event.LOOK in scene.let(Event.SERVES_NOT, "what listens there is not it").timers
    assert Event.LOOK not in scene.let(Event.MOVE).let(Event.SERVES_NOT).timers, "it has gone on"


def test_an_end_that_somebody_says_is_heard_everywhere() -> None:
    """As good as having told of an abort that comes later, or came too late."""
    assert at(Phase.OVER).let(Event.ABORT).names == ["HEARD"]
    assert isinstance(at(Phase.ATTENDING).let(Event.ENDED).what(Do.SAY)[0], WiresumError)
