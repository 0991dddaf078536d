"""What a session is told of moves, also of those that come before there is a session; why its data path failed."""

from __future__ import annotations

from dataclasses import fields, replace
from errno import ECONNREFUSED, EPERM
from types import SimpleNamespace
from typing import Any

import pytest

from wiresum.agent.causes import Causes
from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import (
    CollectiveTimeoutError,
    DivergedError,
    ImpossibleSumError,
    SwitchUnreachableError,
    WiresumError,
    WrongSumError,
)
from wiresum.agent.job_membership import JobMembership
from wiresum.agent.statistics import TrafficStats
from wiresum.join import Diagnosis, Endpoint, JoinReply

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

    def own_stop(self) -> str:
        return ""

    def diagnose(self, tensor: int) -> str:
        return "rank 1 lags"


def grant(key: int) -> JoinReply:
    return JoinReply(
        job=1,
        key=key,
        workers=2,
        lanes=8,
        threads=1,
        slots=SLOTS,
        switch_endpoint=Endpoint(address="10.0.0.9", port=1),
        switch_name=f"s{key}",
    )


@pytest.fixture
def membership() -> JobMembership:
    """Of a worker that has joined at two aggregators."""
    made = JobMembership(AgentConfig(switch="a:1"), job_name="job", rank=0, world_size=2)
    made._aggregators = Joined(  # type: ignore[assignment]
        SimpleNamespace(
            switch="a:1",
            address="10.0.0.1",
            membership=SimpleNamespace(grant=grant(key), group_is_silent=False, diagnose=Diagnosis),
        )
        for key in (5, 6)
    )
    return made


def attend(membership: JobMembership) -> Session:
    session = Session()
    membership.attend(dict, lambda error, tell_others: None, session.halt, session.move)
    return session


@pytest.mark.parametrize(
    ("setting", "granted", "expected"),
    [("auto", (False, True), 1), ("auto", (False, False), 0), ("0", (True, True), 0), ("1", (False, False), 1)],
)
def test_check_words_are_as_set_or_else_at_all_aggregators_if_one_asks_for_them(
    membership: JobMembership, setting: str, granted: tuple[bool, ...], expected: int
) -> None:  # R5.28
    membership._config = replace(membership._config, check_word=setting)
    assert membership._aggregators is not None
    aggregators = list(membership._aggregators)
    for aggregator, check_word in zip(aggregators, granted, strict=True):
        aggregator.membership.grant.check_word = check_word
    assert {membership._place(each, each.membership.grant)["check_word"] for each in aggregators} == {expected}


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


def state(**fields_: object) -> dict[str, str]:
    """What a session says of its data path, unless it is one of these."""
    counters = {f"{field.name}.{index}": 0 for field in fields(TrafficStats) for index in range(2)}
    said = {"status": "timed-out", "tensor": 0xABCD0007, "greeted": 1} | counters
    return {name: str(value) for name, value in {**said, **fields_}.items()}


@pytest.mark.parametrize(
    ("told", "kind", "says"),
    [
        ({"greeted": 0}, SwitchUnreachableError, "nothing came back from the switch's data ports (UDP 10.0.0.9:1)"),
        ({"greeted": 0}, SwitchUnreachableError, " in 10 s. Does a firewall block UDP"),
        ({"greeted": 0, "transport_error.1": ECONNREFUSED}, SwitchUnreachableError, "be used: Connection refused"),
        ({"greeted": 0, "results.0": 1, "results.1": 1}, SwitchUnreachableError, "came back: rank 1 lags"),
        ({"greeted": 0, "transport_error.0": EPERM}, SwitchUnreachableError, "A firewall of this host"),
        ({}, CollectiveTimeoutError, "rank 0 of job 'job': Timed out waiting for collective number 7. rank 1 lags"),
        ({"status": "diverged"}, DivergedError, "the workers call different collectives at number 7"),
        ({"status": "diverged", "greeted": 0}, DivergedError, "must call the aggregators by the same names"),
        ({"status": "no-memory"}, WiresumError, "rank 0 of job 'job': this worker's process could not allocate"),
        ({"status": "impossible"}, ImpossibleSumError, "number 7 a sum came back that the workers cannot have made"),
        (
            {"status": "wrong-sum", "slot_wrong.1": 4},
            WrongSumError,
            "rank 0 of job 'job': in collective number 7 the sum of slot 3 at switch 's6' (a:1) was wrong",
        ),
        ({"status": "aborted"}, WiresumError, "rank 0 of job 'job': the collective was aborted"),
    ],
)
def test_why_a_data_path_has_failed_is_said_in_words(
    membership: JobMembership, told: dict[str, object], kind: type[WiresumError], says: str
) -> None:
    assert membership._aggregators is not None
    membership._causes = Causes(membership._aggregators, "rank 0 of job 'job'")
    error = membership.explain("explain", state(**told))
    assert type(error) is kind and says in str(error)


def test_who_waits_in_vain_is_told_of_a_multicast_group_that_is_silent(membership: JobMembership) -> None:
    assert membership._aggregators is not None
    silent = list(membership._aggregators)[1].membership
    silent.group_is_silent = True  # type: ignore[misc]
    silent.grant.results_group.address = "239.192.0.0"
    causes = Causes(membership._aggregators, "a worker")
    said = str(causes.of_status("timed-out", 0, [TrafficStats()] * 2, greeted=True))
    assert said.count("the multicast group 239.192.0.0: does the network carry that from it to this worker") == 1


@pytest.mark.parametrize(("greeted", "cause"), [("0", SwitchUnreachableError), ("1", CollectiveTimeoutError)])
def test_a_heartbeat_may_see_before_the_session_that_nothing_came_back(
    membership: JobMembership, greeted: str, cause: type[WiresumError]
) -> None:
    assert membership._aggregators is not None
    membership._causes = Causes(membership._aggregators, "rank 0 of job 'job'")
    ended: list[tuple[WiresumError, bool]] = []
    session = Session()
    membership.attend(lambda: state(greeted=greeted), lambda *told: ended.append(told), session.halt, session.move)
    membership.progress(0)
    [(error, tell_others)] = ended
    assert type(error) is cause
    assert tell_others
