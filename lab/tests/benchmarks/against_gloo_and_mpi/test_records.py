"""Quantities that are derived from measured times, and their table."""

from argparse import Namespace

import pytest

from wiresum_lab.benchmarks.against_gloo_and_mpi.__main__ import table
from wiresum_lab.benchmarks.against_gloo_and_mpi.records import (
    Case,
    Measurement,
    Repetition,
    physical_bound_mbit,
    ring_bound_mbit,
)
from wiresum_lab.namespaces.links import burst_bytes


def case(system: str = "wiresum", **changes: object) -> Case:
    values: dict[str, object] = {"workers": 8, "link_mbit": 100.0, "bytes": 14_400_000} | changes
    return Case(system, **values)  # type: ignore[arg-type]


def repetition(seconds: float, *, wrong: int = 0, retransmissions: int | None = 1) -> Repetition:
    return Repetition(seconds, 0.144, 0.288, wrong, retransmissions)


def paced(case: Case, frame_bytes: float) -> float:
    """The goodput in Mbit/s of a tensor whose frames, except for one burst, are sent at 100 Mbit/s."""
    return 100 * case.bytes / (frame_bytes - burst_bytes(100.0))


def test_the_bound_counts_all_headers_and_subtracts_one_burst() -> None:
    whole = case()
    assert physical_bound_mbit(whole) == pytest.approx(paced(whole, 10_000 * 1506))
    one_more = case(bytes=14_400_004)
    assert physical_bound_mbit(one_more) == pytest.approx(paced(one_more, 10_000 * 1506 + 70))
    assert physical_bound_mbit(whole) == pytest.approx(100 * 1440 / 1506, rel=0.003)


def test_narrower_lanes_have_their_own_bound() -> None:
    for bits, packets in ((16, 5000), (8, 2500)):
        narrow = case(bits=bits)
        assert physical_bound_mbit(narrow) == pytest.approx(paced(narrow, packets * 1506))


def test_jumbo_packets_have_a_higher_bound() -> None:
    jumbo = case(bytes=8928 * 1000, mtu=9000)
    assert physical_bound_mbit(jumbo) == pytest.approx(paced(jumbo, 1000 * (9014 - 20)))
    assert ring_bound_mbit(case("gloo", mtu=9000)) == pytest.approx(100 * 8948 / 9014 / 1.75, rel=0.003)


def test_a_tensor_that_fits_the_burst_has_no_bound() -> None:
    assert physical_bound_mbit(case(bytes=14_400)) is None


def test_a_ring_sends_almost_twice_the_tensor() -> None:
    assert ring_bound_mbit(case("gloo")) == pytest.approx(100 * 1448 / 1514 / 1.75, rel=0.003)
    assert ring_bound_mbit(case("gloo", workers=2)) == pytest.approx(100 * 1448 / 1514, rel=0.003)


def test_an_unshaped_link_has_no_bound() -> None:
    measurement = Measurement(case(link_mbit=None), [repetition(1.0)])
    record = measurement.record()
    assert (record["bound_ratio"], record["own_bound_ratio"]) == (None, None)


def test_a_record_has_every_repetition_and_the_median_goodput() -> None:
    measurement = Measurement(case(), [repetition(2.0), repetition(1.0), repetition(9.0)])
    record = measurement.record()
    assert record["seconds"] == [2.0, 1.0, 9.0]
    assert record["goodput_mbit"] == pytest.approx(57.6)
    assert record["bound_ratio"] == pytest.approx(57.6 / paced(case(), 10_000 * 1506), abs=1e-4)
    assert record["cpu_seconds_per_gb_worker"] == 10.0
    assert record["cpu_seconds_per_gb_switch"] == 20.0
    assert record["retransmissions"] == 3
    assert record["correct"] is True


def test_one_wrong_element_makes_a_measurement_incorrect() -> None:
    assert not Measurement(case(), [repetition(1.0), repetition(1.0, wrong=1)]).record()["correct"]


def test_a_ring_is_held_against_its_own_bound_and_against_everybodys() -> None:
    record = Measurement(case("gloo"), [repetition(2.0)]).record()
    assert record["own_bound_ratio"] == pytest.approx(1.75 * record["bound_ratio"], rel=0.02)


def test_what_a_system_does_not_give_is_unknown_instead_of_zero() -> None:
    record = Measurement(case("gloo"), [repetition(1.0, retransmissions=None)]).record()
    assert record["retransmissions"] is None
    record = Measurement(case(), error="it hung").record()
    assert (record["correct"], record["goodput_mbit"], record["error"]) == (False, None, "it hung")


def test_a_wrong_sum_has_no_rate_in_the_table_and_others_are_compared_with_their_peers() -> None:
    own, wrong = Measurement(case(), [repetition(1.0)]), Measurement(case(), [repetition(1.0, wrong=1)])
    peer, other = (Measurement(case("gloo", **changes), [repetition(2.0)]) for changes in ({}, {"workers": 4}))
    rows = zip(*(column.cells for column in table([own, wrong, peer, other], Namespace()).columns), strict=True)
    rates = [(row[0], row[4], row[7]) for row in rows]
    assert rates == [
        ("Wiresum", "115.2", "2.00"),
        ("Wiresum", "WRONG SUM", "-"),
        ("Gloo", "57.6", "-"),
        ("Gloo", "57.6", "-"),
    ]
