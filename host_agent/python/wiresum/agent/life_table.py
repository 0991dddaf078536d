"""A worker's life on one page: its phases, the events in each, and the actions. The actions are methods of `Life`
(life.py), which tells them in words.

A worker *attends* at a service. It *halts*, and *moves* to another lease. A worker that has lost its lease *looks* for
another one. An *order* is its message that its job ends.
"""

from __future__ import annotations

from enum import Enum

from wiresum.agent.control import RETRY_PAUSE_S


class _Single(Enum):
    """Members are found by identity, and not by a hash of their names, which `Enum` computes in Python."""

    __hash__ = object.__hash__


class Phase(_Single):
    JOINED = "it has a lease, and does not attend yet"
    ATTENDING = "a stream is open to a service where it is a member"
    AWAY = "the stream broke: a pause"
    SEEKING = "its lease is lost; a stream is open to a service that may know it"
    ASKING = "its lease is lost, and that service does not know it: asked for a place"
    RESTING = "its lease is lost: a pause before the next service"
    OVER = "the job is over, or was given up"
    TELLING = "it has an order: a service is told, where it is a member"
    CONVEYING = "it has an order: a service is told that does not know it"
    SPREADING = "a service that did not know it has heard its order; the others are told, until each has answered"
    UNTOLD = "it has an order that no service has heard: a pause before the next one"
    TOLD = "a service has heard its abort, and will say that the job is over"
    LEFT = "it has left"
    INERT = "this process is a forked child, and no member"


class Event(_Single):
    """Events, and the data that come with each."""

    BEGIN = "the worker has a data path: `Worker`"
    # The stream says these, or ends by them: each of the last four ends it.
    PULSE = "the answer to a heartbeat: join.Pulse"
    HALT = "stand still: join.Halt"
    MOVE = "go on at another lease: join.Move"
    ENDED = "the job is over, also in answer to a question: the error"
    LOST = "the service does not know the worker, or the job has lost its switch there: the error, and why, a clause"
    BARRED = "the service lets this worker not go on: the error"
    BROKE = "the connection did: the cause, as gRPC says it"
    # Answers to questions and orders.
    GRANTED = "a lease: join.JoinReply"
    REFUSED = "no lease: the code, and the text"
    TOLD = "the service has heard the order"
    UNTOLD = "it was not reached, or has no time: the cause, and after how many seconds to tell again"
    UNKNOWN = "it does not know the worker: as LOST"
    SERVES = "the fallback has proved that it takes this job"
    SERVES_NOT = "it has not: why what listens there was not believed, a sentence; empty: nothing does"
    # Timers.
    BEAT = "a heartbeat is due"
    SILENCE = "nothing came over the stream for too long"
    RETRY = "the pause is over"
    LOOK = "at the fallback"
    ENDING = "the service that has heard the abort does not say that the job is over"
    GIVE_UP = "the worker leaves, and has looked long enough for a service that hears its order"
    # The worker and its process.
    ABORT = "the order"
    LEAVE = "the worker does"
    ELSEWHERE = "a service of another aggregator has heard the abort"
    FORKED = "this is the child"


SILENCE_S_MAX = 6.0
"""After so long a silence the stream is opened anew, perhaps at a standby: the service is not given up."""
FALLBACK_AFTER_S = 1.0  # R7.24
"""After so long without a lease the fallback is started."""
RESUME_S = 30.0
"""The longest search for a lease: as long as a service keeps a job that no switch takes. A service that may come back
with the job is sought for as long as its grant says, if that is longer."""
LEAVE_S_MAX = 1.5
ABORT_S_MAX = 30.0
"""Bounds for an abort, from the order on: a leaving worker looks for a service that hears its order; a worker that
stays tells the remaining services, once one that did not know it has heard."""

TIMERS = {
    Event.RETRY: RETRY_PAUSE_S,
    Event.LOOK: FALLBACK_AFTER_S,
    Event.ENDING: LEAVE_S_MAX,
    Event.GIVE_UP: LEAVE_S_MAX,
}
"""Seconds, where the grant does not say them. A timer runs while `TABLE` has something for it to do: a phase in which
it cannot run out ends it."""

IMPOSSIBLE, NOTHING = "-", "."
_GOES_ON = """
            JOINED  ATTENDING  AWAY    SEEKING     ASKING      RESTING     OVER
BEGIN       attend  -          -       -           -           -           .
PULSE       -       hear       -       hear        -           -           -
HALT        -       halt       -       halt        -           -           -
MOVE        -       move       -       move        -           -           -
ENDED       -       end        -       end         end         -           -
LOST        -       lose       -       ask         -           -           -
BARRED      -       finish     -       finish      -           -           -
BROKE       -       pause      -       rest        -           -           -
GRANTED     -       -          -       -           resume      -           -
REFUSED     -       -          -       -           refused     -           -
TOLD        -       -          -       -           -           -           .
UNTOLD      -       -          -       -           -           -           .
UNKNOWN     -       -          -       -           -           -           .
SERVES      -       fall_back  .       fall_back   further     further     .
SERVES_NOT  -       look_again .       look_again  look_again  look_again  .
BEAT        -       beat       -       beat        -           -           -
SILENCE     -       silent     -       silent      -           -           -
RETRY       -       -          again   -           -           seek        -
LOOK        -       look       -       look        look        look        -
ENDING      -       -          -       -           -           -           -
GIVE_UP     -       -          -       -           -           -           -
ABORT       give    give       give    give        give        give        note
LEAVE       give    give       give    give        give        give        go
ELSEWHERE   -       -          -       -           -           -           .
FORKED      fork    fork       fork    fork        fork        fork        fork
"""
_HAS_ORDER = """
            TELLING     CONVEYING   SPREADING   UNTOLD      TOLD      LEFT  INERT
BEGIN       .           .           .           .           .         .     .
PULSE       alive       -           -           -           .         .     .
HALT        alive       -           -           -           .         .     .
MOVE        alive       -           -           -           .         .     .
ENDED       end         conveyed    -           -           end       .     .
LOST        .           -           -           -           end_told  .     .
BARRED      .           -           -           -           end_told  .     .
BROKE       .           -           -           -           end_told  .     .
GRANTED     -           tell_there  -           -           -         .     .
REFUSED     -           refused     -           -           -         .     .
TOLD        told        -           reached     -           -         .     .
UNTOLD      untold      -           unreached   -           -         .     .
UNKNOWN     unknown     -           reached     -           -         .     .
SERVES      further     further     .           further     .         .     .
SERVES_NOT  look_again  look_again  .           look_again  .         .     .
BEAT        beat        -           -           -           beat      -     -
SILENCE     -           -           -           -           -         -     -
RETRY       -           -           spread      tell_next   -         -     -
LOOK        look        look        -           look        -         -     -
ENDING      -           -           -           -           end_told  -     -
GIVE_UP     go          go          go          go          -         -     -
ABORT       .           .           .           .           .         .     .
LEAVE       leave_too   leave_too   leave_too   leave_too   go        .     .
ELSEWHERE   elsewhere   elsewhere   .           elsewhere   .         .     .
FORKED      fork        fork        fork        fork        fork      fork  .
"""
_FOLLOWS = {
    "attend": {Phase.ATTENDING},
    "hear halt tell_there tell_next": {Phase.TELLING},
    "give": {Phase.TELLING, Phase.CONVEYING},
    "move": {Phase.ATTENDING, Phase.TELLING},
    "alive beat look look_again further note spread leave_too elsewhere": set(),
    "lose": {Phase.SEEKING, Phase.AWAY, Phase.TELLING},
    "again": {Phase.ATTENDING, Phase.SEEKING, Phase.TELLING},
    "pause": {Phase.AWAY},
    "fall_back": {Phase.SEEKING},
    "ask": {Phase.ASKING, Phase.CONVEYING},
    "unknown": {Phase.CONVEYING},
    "resume": {Phase.ATTENDING, Phase.SEEKING, Phase.TELLING},
    "rest": {Phase.RESTING, Phase.OVER},
    "silent": {Phase.AWAY, Phase.RESTING, Phase.OVER},
    "seek": {Phase.SEEKING},
    "refused": {Phase.RESTING, Phase.UNTOLD, Phase.OVER, Phase.LEFT},
    "untold": {Phase.UNTOLD, Phase.OVER, Phase.LEFT},
    "conveyed": {Phase.SPREADING, Phase.OVER, Phase.LEFT},
    "reached unreached end": {Phase.OVER, Phase.LEFT},
    "told": {Phase.TOLD, Phase.LEFT},
    "finish end_told": {Phase.OVER},
    "go": {Phase.LEFT},
    "fork": {Phase.INERT},
}
"""The phases that may follow an action of `TABLE`, besides the same one."""


def _parsed(*grids: str) -> dict[Phase, dict[Event, str]]:
    """Parses the grids. Every cell is written, or this fails."""
    table: dict[Phase, dict[Event, str]] = {}
    for grid in grids:
        head, *rows = (line.split() for line in grid.strip().splitlines())
        assert [row[0] for row in rows] == [event.name for event in Event]
        assert all(len(row) == 1 + len(head) for row in rows)
        for index, name in enumerate(head):
            table[Phase[name]] = {Event[row[0]]: row[1:][index] for row in rows}
    assert list(table) == list(Phase)
    return table


TABLE = _parsed(_GOES_ON, _HAS_ORDER)
"""The action, a method of `Life`, by phase and event. `.`: nothing. `-`: the event cannot come then."""
FOLLOWS = {name: phases for names, phases in _FOLLOWS.items() for name in names.split()}


class Do(_Single):
    """Actions for the player, and their arguments."""

    CONNECT = "anew, to the service at this endpoint"
    ATTEND = "by a stream; there is no other one"
    BEAT = "a heartbeat: as which member, halted where, and does it say the worker's newest round?"
    HANG_UP = "what the stream says is of no interest any more, if there is one"
    ASK = "this, and nothing else, for so many seconds; and only if the service has a switch that takes jobs?"
    TELL = "as this member, this order"
    LOOK = "at the fallback: start it for a job with this lease, if that is this process's part; does it serve?"
    CLOSE_FALLBACK = "the job goes on elsewhere"
    GONE_ON = "at another lease, since the last one was lost for this reason"
    SAY = "to the worker: its job is over, by this error"
    ABORT_ALL = "at all aggregators, for this reason"
    HEARD = "a service has heard the abort, or has ended the job for another reason"
