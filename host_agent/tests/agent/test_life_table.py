"""A worker's life, cell by cell: what follows each event in each phase, and what is to be done then."""

from __future__ import annotations

import pytest

from wiresum.agent.life_table import IMPOSSIBLE, TABLE, Event, Phase

from .scene import at

ROWS = """
JOINED      BEGIN       > ATTENDING  ATTEND BEAT
JOINED      ABORT       > TELLING    TELL
JOINED      LEAVE       > TELLING    TELL
ATTENDING   PULSE       > ATTENDING
ATTENDING   HALT        > ATTENDING  BEAT
ATTENDING   MOVE        > ATTENDING
ATTENDING   ENDED       > OVER       HANG_UP SAY
ATTENDING   LOST        > SEEKING    HANG_UP CONNECT ATTEND BEAT
ATTENDING   BARRED      > OVER       HANG_UP SAY
ATTENDING   BROKE       > AWAY
ATTENDING   SERVES      > ATTENDING
ATTENDING   SERVES_NOT  > ATTENDING
ATTENDING   BEAT        > ATTENDING  BEAT
ATTENDING   SILENCE     > AWAY       HANG_UP
ATTENDING   LOOK        > ATTENDING  LOOK
ATTENDING   ABORT       > TELLING    TELL
ATTENDING   LEAVE       > TELLING    TELL
AWAY        RETRY       > ATTENDING  CONNECT ATTEND BEAT
AWAY        ABORT       > TELLING    TELL
AWAY        LEAVE       > TELLING    TELL
SEEKING     PULSE       > SEEKING
SEEKING     HALT        > SEEKING    BEAT
SEEKING     MOVE        > SEEKING
SEEKING     ENDED       > OVER       HANG_UP SAY
SEEKING     LOST        > ASKING     HANG_UP ASK
SEEKING     BARRED      > OVER       HANG_UP SAY
SEEKING     BROKE       > RESTING
SEEKING     SERVES      > SEEKING
SEEKING     SERVES_NOT  > SEEKING
SEEKING     BEAT        > SEEKING    BEAT
SEEKING     SILENCE     > RESTING    HANG_UP
SEEKING     LOOK        > SEEKING    LOOK
SEEKING     ABORT       > TELLING    TELL
SEEKING     LEAVE       > TELLING    TELL
ASKING      ENDED       > OVER       HANG_UP SAY
ASKING      GRANTED     > ATTENDING  GONE_ON CLOSE_FALLBACK ATTEND BEAT
ASKING      REFUSED     > RESTING
ASKING      SERVES      > ASKING
ASKING      SERVES_NOT  > ASKING
ASKING      LOOK        > ASKING     LOOK
ASKING      ABORT       > CONVEYING  HANG_UP ASK
ASKING      LEAVE       > CONVEYING  HANG_UP ASK
RESTING     SERVES      > RESTING
RESTING     SERVES_NOT  > RESTING
RESTING     RETRY       > SEEKING    HANG_UP CONNECT ATTEND BEAT
RESTING     LOOK        > RESTING    LOOK
RESTING     ABORT       > TELLING    TELL
RESTING     LEAVE       > TELLING    TELL
OVER        ABORT       > OVER       HEARD
OVER        LEAVE       > LEFT       HANG_UP
TELLING     PULSE       > TELLING
TELLING     HALT        > TELLING
TELLING     MOVE        > TELLING
TELLING     ENDED       > OVER       HEARD HANG_UP SAY
TELLING     TOLD        > TOLD       HEARD
TELLING     UNTOLD      > UNTOLD     HANG_UP
TELLING     UNKNOWN     > CONVEYING  HANG_UP ASK
TELLING     SERVES      > TELLING
TELLING     SERVES_NOT  > TELLING
TELLING     BEAT        > TELLING    BEAT
TELLING     LOOK        > TELLING    LOOK
TELLING     GIVE_UP     > LEFT       HANG_UP
TELLING     LEAVE       > TELLING
TELLING     ELSEWHERE   > TELLING
CONVEYING   ENDED       > SPREADING  HEARD HANG_UP SAY CONNECT TELL
CONVEYING   GRANTED     > TELLING    TELL
CONVEYING   REFUSED     > UNTOLD
CONVEYING   SERVES      > CONVEYING
CONVEYING   SERVES_NOT  > CONVEYING
CONVEYING   LOOK        > CONVEYING  LOOK
CONVEYING   GIVE_UP     > LEFT       HANG_UP
CONVEYING   LEAVE       > CONVEYING
CONVEYING   ELSEWHERE   > CONVEYING
SPREADING   TOLD        > OVER
SPREADING   UNTOLD      > SPREADING
SPREADING   UNKNOWN     > OVER
SPREADING   RETRY       > SPREADING  CONNECT TELL
SPREADING   GIVE_UP     > LEFT       HANG_UP
SPREADING   LEAVE       > SPREADING
UNTOLD      SERVES      > UNTOLD
UNTOLD      SERVES_NOT  > UNTOLD
UNTOLD      RETRY       > TELLING    CONNECT TELL
UNTOLD      LOOK        > UNTOLD     LOOK
UNTOLD      GIVE_UP     > LEFT       HANG_UP
UNTOLD      LEAVE       > UNTOLD
UNTOLD      ELSEWHERE   > UNTOLD
TOLD        ENDED       > OVER       HEARD HANG_UP SAY
TOLD        LOST        > OVER       HANG_UP SAY
TOLD        BARRED      > OVER       HANG_UP SAY
TOLD        BROKE       > OVER       HANG_UP SAY
TOLD        BEAT        > TOLD       BEAT
TOLD        ENDING      > OVER       HANG_UP SAY
TOLD        LEAVE       > LEFT       HANG_UP
"""
"""Phase, event, the phase after it, and what is to be done, in this order."""
IGNORED = {
    Phase.AWAY: "SERVES SERVES_NOT",
    Phase.OVER: "BEGIN TOLD UNTOLD UNKNOWN SERVES SERVES_NOT ELSEWHERE",
    Phase.TELLING: "BEGIN LOST BARRED BROKE ABORT",
    Phase.CONVEYING: "BEGIN ABORT",
    Phase.SPREADING: "BEGIN SERVES SERVES_NOT ABORT ELSEWHERE",
    Phase.UNTOLD: "BEGIN ABORT",
    Phase.TOLD: "BEGIN PULSE HALT MOVE SERVES SERVES_NOT ABORT ELSEWHERE",
    Phase.LEFT: "BEGIN PULSE HALT MOVE ENDED LOST BARRED BROKE GRANTED REFUSED TOLD UNTOLD UNKNOWN SERVES SERVES_NOT "
    "ABORT LEAVE ELSEWHERE",
    Phase.INERT: "BEGIN PULSE HALT MOVE ENDED LOST BARRED BROKE GRANTED REFUSED TOLD UNTOLD UNKNOWN SERVES SERVES_NOT "
    "ABORT LEAVE ELSEWHERE FORKED",
}
"""Events that change nothing. All that is neither here nor in `ROWS` cannot come, but for a fork."""


CELLS = [
    (Phase[words[0]], Event[words[1]], Phase[words[3]], words[4:])
    for words in (line.split() for line in ROWS.strip().splitlines())
]
QUIET = [(phase, Event[name]) for phase, names in IGNORED.items() for name in names.split()]


@pytest.mark.parametrize(("phase", "event", "after", "outputs"), CELLS, ids=lambda each: getattr(each, "name", ""))
def test_what_follows(phase: Phase, event: Event, after: Phase, outputs: list[str]) -> None:
    scene = at(phase).let(event)
    assert (scene.life.phase, scene.names) == (after, outputs)


@pytest.mark.parametrize(("phase", "event"), QUIET, ids=lambda each: each.name)
def test_what_changes_nothing(phase: Phase, event: Event) -> None:
    scene = at(phase)
    before = dict(scene.life._timers)
    scene.let(event)
    assert (scene.life.phase, scene.names, scene.life._timers) == (phase, [], before)


@pytest.mark.parametrize("phase", Phase, ids=lambda each: each.name)
def test_what_cannot_come_is_a_bug_of_ours(phase: Phase) -> None:
    known = {row[:2] for row in CELLS} | set(QUIET)
    for event in Event:
        if (phase, event) in known or event is Event.FORKED:
            assert TABLE[phase][event] != IMPOSSIBLE
        else:
            scene = at(phase)
            with pytest.raises(AssertionError, match=f"{event.name} cannot come while"):
                scene.let(event)


@pytest.mark.parametrize("phase", Phase, ids=lambda each: each.name)
def test_a_forked_child_is_no_member(phase: Phase) -> None:
    scene = at(phase).let(Event.FORKED)
    assert (scene.life.phase, scene.names, scene.timers) == (Phase.INERT, [], set())


TIMERS = {
    Phase.ATTENDING: "BEAT SILENCE",
    Phase.AWAY: "RETRY",
    Phase.SEEKING: "BEAT SILENCE LOOK",
    Phase.ASKING: "LOOK",
    Phase.RESTING: "RETRY LOOK",
    Phase.TELLING: "BEAT",
    Phase.CONVEYING: "LOOK",
    Phase.UNTOLD: "RETRY",
    Phase.TOLD: "BEAT ENDING",
}


@pytest.mark.parametrize("phase", Phase, ids=lambda each: each.name)
def test_which_timers_run(phase: Phase) -> None:
    assert at(phase).timers == {Event[name] for name in TIMERS.get(phase, "").split()}
