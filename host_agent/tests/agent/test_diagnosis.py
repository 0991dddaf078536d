"""A time-out error's text says which worker or switch lags."""

from __future__ import annotations

import pytest

from wiresum import join as messages
from wiresum.agent.diagnosis import describe, error_of, who_is_cut_off, why_translated
from wiresum.agent.errors import SwitchUnreachableError


def worker(rank: int, **fields: int | str | list[int] | None) -> messages.Diagnosis.Worker:
    peer = messages.Peer(rank=rank, host_name="host", process_id=9, address="10.0.0.1")
    values = {"tensor_last": 7, "contributions": 5, "heartbeat_age_ms": 300} | fields
    return messages.Diagnosis.Worker(peer=peer, **values)  # type: ignore[arg-type]


def shared(rank: int, said: int | None, **fields: int | None) -> messages.Diagnosis.Worker:
    """On the host of ranks 1 and 2."""
    return worker(rank, sharing=[1, 2], tensor_said=said, **fields)


def alone(rank: int, said: int, **fields: int | None) -> messages.Diagnosis.Worker:
    """One of two workers on one host: no packet leaves it."""
    return worker(rank, contributions=0, tensor_last=None, sharing=[0, 1], tensor_said=said, **fields)


RANK_1 = "rank 1 (10.0.0.1, process 9 on 'host')"
SIGNED = 0xABCD0000
"""The signature of a collective, which stands above its number."""


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ([worker(0), worker(1)], "all workers have begun collective number 7"),
        (
            [worker(0), worker(1, tensor_last=SIGNED + 5)],
            "rank 1 (10.0.0.1, process 9 on 'host') is 2 collectives behind; it was alive 0.3 s ago",
        ),
        (
            [worker(0), worker(1, contributions=0)],
            f"nothing of {RANK_1} has reached the switch",
        ),
        ([worker(0), worker(1, left=1)], f"{RANK_1} has left the job"),
        ([worker(0, tensor_last=9)], "all workers have begun"),
        (
            [worker(0, tensor_last=None), worker(1, tensor_last=None, contributions=2)],
            "rank 1 (10.0.0.1, process 9 on 'host') is 3 packets behind; it was alive 0.3 s ago",
        ),
        ([worker(0, tensor_last=None), worker(1, tensor_last=None)], "all workers have begun collective number 7"),
        (
            [worker(0), shared(1, 7, tensor_last=6), shared(2, SIGNED + 7, tensor_last=6)],
            f"{RANK_1}, which sends for all workers of its host, is one collective behind; it was alive 0.3 s ago",
        ),
        (
            [worker(0), shared(2, 7, tensor_last=6), shared(1, SIGNED + 6, tensor_last=6)],
            f"{RANK_1} is one collective behind; it was alive 0.3 s ago",
        ),
        (
            [worker(0), shared(1, None, tensor_last=6), shared(2, None, tensor_last=6)],
            f"{RANK_1}, which sends for all workers of its host, is one collective behind",
        ),
        ([alone(0, 7), alone(1, 5)], f"{RANK_1} is 2 collectives behind; it was alive 0.3 s ago"),
        (
            [alone(0, 7), alone(1, SIGNED + 7)],
            "all workers have begun collective number 7, so none lags: is rank 0 (10.0.0.1, process 9 on 'host'), "
            "which sums for all of them, held up?",
        ),
        ([alone(0, 7), alone(1, 7, heartbeat_age_ms=6000)], f"nothing has been heard of {RANK_1} for 6.0 s"),
        ([worker(0), worker(1, heartbeat_age_ms=6000)], f"nothing has been heard of {RANK_1} for 6.0 s"),
        (
            [worker(0, contributions=0, sharing=[0, 1]), worker(1, contributions=0, sharing=[0, 1], left=1)],
            f"{RANK_1} has left the job",
        ),
    ],
)
def test_a_diagnosis_names_the_lagging_workers_and_the_reason(  # R4.30
    workers: list[messages.Diagnosis.Worker], said: str
) -> None:
    assert said in describe({"the switch": messages.Diagnosis(workers=workers)}, SIGNED + 7)


NAT = "If something on the way translates addresses (NAT), the switch takes none of its packets"


@pytest.mark.parametrize(
    ("called_from", "fields", "blames_nat"),
    [
        ("192.0.2.9", {"contributions": 0}, True),
        ("192.0.2.9", {"contributions": 0, "uncounted": True}, True),
        ("192.0.2.9", {"contributions": 1}, False),  # the switch knows its packets
        ("10.0.0.1", {"contributions": 0}, False),
        ("", {"contributions": 0}, False),
        ("127.0.0.1", {"contributions": 0}, False),  # it is at the service's own host
        ("2001:db8::9", {"contributions": 0}, False),
    ],
)
def test_addresses_that_may_be_translated_are_said(
    called_from: str, fields: dict[str, int | str | None], blames_nat: bool
) -> None:
    away = worker(1, **fields)
    away.peer.called_from = called_from
    diagnosis = messages.Diagnosis(workers=[worker(0), away])
    said = why_translated(diagnosis)
    assert (NAT in said) == blames_nat
    assert not said or said.startswith("rank 1 (10.0.0.1, called from 192.0.2.9, ")
    if not away.uncounted:  # then it is no laggard either
        assert (NAT in describe({"the switch": diagnosis}, SIGNED + 7)) == blames_nat


@pytest.mark.parametrize(
    ("workers", "named"),
    [
        ([worker(0), worker(1, contributions=0)], "none of rank 1 (10.0.0.1, "),
        ([worker(0, contributions=0), worker(1, contributions=0)], ""),
        ([worker(0), worker(1)], ""),
        ([worker(0), worker(1, contributions=0, uncounted=True)], ""),
        ([worker(0), shared(1, SIGNED + 7), shared(2, SIGNED + 7, contributions=0)], ""),  # rank 1 sends for both
        ([], ""),
    ],
)
def test_workers_of_which_alone_nothing_comes_are_named(workers: list[messages.Diagnosis.Worker], named: str) -> None:
    said = who_is_cut_off(messages.Diagnosis(workers=workers))
    assert named in said if named else not said


def test_a_diagnosis_says_first_that_the_job_moves() -> None:
    moving = "it moves, since leaf is lost (no answer), 9 s ago, and waits for another lease (leaf cannot be used now)"
    diagnosis = messages.Diagnosis(workers=[worker(0), worker(1, contributions=0)], moving=moving)
    said = describe({"the switch": diagnosis}, SIGNED + 7)
    assert said.startswith(f"at the switch, {moving}; nothing of {RANK_1} has reached the switch")


def tree(*nodes: messages.NodeReport, uncounted: str = "") -> str:
    workers = [
        worker(rank, tensor_last=None, switch_name=leaf, uncounted=leaf == uncounted)
        for rank, leaf in enumerate(("leaf1", "leaf2"))
    ]
    return describe({"the switch": messages.Diagnosis(workers=workers, switches=nodes)}, SIGNED + 7)


def node(name: str, parent: str = "", contributions: int = 0, *, uncounted: bool = False) -> messages.NodeReport:
    return messages.NodeReport(switch_name=name, parent=parent, contributions=contributions, uncounted=uncounted)


def test_a_lagging_link_between_two_switches_is_named_if_no_worker_lags() -> None:
    spine, leaf1 = node("spine"), node("leaf1", "spine", 5)
    assert "all workers have begun" in tree(spine, leaf1, node("leaf2", "spine", 5))
    said = tree(spine, leaf1, node("leaf2", "spine", 3))
    assert said == (
        "the sums of leaf2 come to spine 2 packets behind: packets between the two are lost, or come very slowly"
    )


def test_missing_counters_of_a_switch_blame_no_worker() -> None:
    silent = node("leaf2", "spine", 5, uncounted=True)
    said = tree(node("spine"), node("leaf1", "spine", 5), silent, uncounted="leaf2")
    assert said == "leaf2 does not say what it has counted"
    assert "spine" in tree(node("spine", uncounted=True), node("leaf1", "spine"), node("leaf2", "spine"))


def test_a_worker_whose_leaf_has_received_nothing_is_named() -> None:
    alone = messages.Diagnosis(workers=[worker(0), worker(1, contributions=0, switch_name="leaf2")])
    assert f"nothing of {RANK_1} has reached leaf2" in describe({"the switch": alone}, SIGNED + 7)


def test_collective_numbers_wrap_around() -> None:
    said = describe({"the switch": messages.Diagnosis(workers=[worker(0, tensor_last=0xFFFF)])}, 2)
    assert "3 collectives behind" in said


def at_two(first: list[messages.Diagnosis.Worker], second: list[messages.Diagnosis.Worker]) -> str:
    diagnoses = {"switch A": messages.Diagnosis(workers=first), "switch B": messages.Diagnosis(workers=second)}
    return describe(diagnoses, SIGNED + 7)


def test_a_worker_may_lag_at_one_of_several_aggregators() -> None:
    everybody_is_at_7 = at_two([worker(0), worker(1)], [worker(0, tensor_last=6), worker(1, tensor_last=5)])
    assert "rank 1 (10.0.0.1, process 9 on 'host') is one collective behind" in everybody_is_at_7
    assert everybody_is_at_7.startswith("at switch B, ")
    assert "rank 0" not in everybody_is_at_7
    none_lags = at_two([worker(0), worker(1)], [worker(0, tensor_last=6), worker(1, tensor_last=6)])
    assert none_lags.startswith("all workers have begun collective number 7")
    assert "between them and switch A and switch B" in none_lags


def test_a_worker_that_lags_at_all_aggregators_is_named_once() -> None:
    said = at_two([worker(0), worker(1, tensor_last=4)], [worker(0, tensor_last=6), worker(1, tensor_last=5)])
    assert said == "rank 1 (10.0.0.1, process 9 on 'host') is 2 collectives behind; it was alive 0.3 s ago"


def test_an_aggregator_without_packets_of_a_worker_says_nothing_of_its_progress() -> None:
    far = {"tensor_last": 40_000}
    first = [worker(0, **far), worker(1, **far)]
    second = [worker(0, **far), worker(1, tensor_last=0, contributions=0)]
    diagnoses = {"A": messages.Diagnosis(workers=first), "B": messages.Diagnosis(workers=second)}
    assert describe(diagnoses, 40_000).startswith("at B, nothing of rank 1")


def test_a_worker_that_never_reached_an_aggregator_is_named_with_it() -> None:
    said = at_two([worker(0), worker(1)], [worker(0), worker(1, contributions=0, tensor_last=None)])
    assert said.startswith("at switch B, nothing of rank 1")


def test_a_switch_that_was_lost_is_named() -> None:
    ended = messages.JobEnded(cause=messages.JobEnded.SWITCH_LOST, reason="it was stopped")
    error = error_of(ended, "night", "the switch at b:1")
    assert isinstance(error, SwitchUnreachableError)
    assert str(error) == "job 'night' has ended at the switch at b:1: it was stopped"
