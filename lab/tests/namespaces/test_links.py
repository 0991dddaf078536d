"""The `tc` commands for a link; `test_star.py` runs them in the kernel."""

import pytest

from wiresum_lab.namespaces.links import (
    BURST_BYTES_MIN,
    DETOUR_DEVICE,
    Link,
    UnsupportedLinkError,
    burst_bytes,
    detour_commands,
    tc_commands,
    train_packets,
)


def test_an_unshaped_link_needs_no_command_and_keeps_its_offloads() -> None:
    assert tc_commands(Link(), "star0", netem=False) == []
    assert Link().keeps_offloads


def test_a_rate_is_a_token_bucket_that_passes_trains() -> None:
    (command,) = tc_commands(Link(rate_mbit=100), "star0", netem=False)
    assert command.endswith("tbf rate 100000000bit burst 32000 limit 1000000")
    assert train_packets(Link(rate_mbit=100), netem=False) == 21
    assert not Link(rate_mbit=100).keeps_offloads


def test_a_bucket_holds_a_millisecond_and_at_least_one_train() -> None:
    assert burst_bytes(1) == BURST_BYTES_MIN
    assert burst_bytes(1000) == 125_000
    assert train_packets(Link(rate_mbit=1000), netem=False) == 43


def test_trains_are_segmented_before_netem() -> None:
    link = Link(rate_mbit=100, loss=0.01)
    assert "peakrate 100gbit mtu 1600" in tc_commands(link, "star0", netem=True)[0]
    assert train_packets(link, netem=True) == 1
    assert train_packets(link, netem=False) == 21


def test_queues_hold_frames_of_the_links_mtu() -> None:
    jumbo = Link(rate_mbit=100, loss=0.01, mtu=9000)
    assert "peakrate 100gbit mtu 9100" in tc_commands(jumbo, "star0", netem=True)[0]
    assert train_packets(Link(rate_mbit=100, mtu=9000), netem=False) == 3
    assert train_packets(Link(mtu=9000), netem=False) == 7
    assert "burst 9100 limit 144224" in detour_commands(jumbo)[0]
    assert "burst 1600 limit 24224" in detour_commands(Link())[0]


def test_netem_is_below_the_bucket_which_has_segmented_the_trains() -> None:
    link = Link(rate_mbit=100, loss=0.01, duplicate=0.02, reorder=0.03, delay_us=500)
    bucket, netem = tc_commands(link, "star0", netem=True)
    assert "root handle 1: tbf" in bucket
    assert "parent 1:1 handle 2: netem" in netem
    assert "delay 500us loss 1.000000% duplicate 2.000000% reorder 3.000000%" in netem


def test_netem_alone_is_the_root() -> None:
    (command,) = tc_commands(Link(loss=0.5), "star0", netem=True)
    assert "dev star0 root handle 2: netem" in command


def test_netem_needs_a_delay_to_reorder() -> None:
    assert "delay 1000us" in tc_commands(Link(reorder=0.1), "star0", netem=True)[0]


def test_without_netem_random_faults_are_made_at_the_receiving_end() -> None:
    link = Link(loss=0.25, duplicate=0.5, reorder=0.125)
    clsact, loss, duplicate, reorder = tc_commands(link, "port3", netem=False)
    assert clsact == "qdisc add dev port3 clsact"
    assert f"53 1 0 {2**30}," in loss
    assert "direct-action" in loss
    assert "mirred ingress mirror dev port3" in duplicate
    assert f"mirred egress redirect dev {DETOUR_DEVICE}" in reorder


def test_a_delay_without_netem_is_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedLinkError, match="netem"):
        tc_commands(Link(delay_us=100), "star0", netem=False)


@pytest.mark.parametrize(
    "wrong", [{"rate_mbit": 0}, {"loss": 1.0}, {"duplicate": -0.1}, {"delay_us": -1}, {"mtu": 575}, {"mtu": 9217}]
)
def test_an_invalid_link_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).partition("_")[0]):
        Link(**wrong)  # type: ignore[arg-type]


def test_a_link_is_described_in_a_few_words() -> None:
    assert str(Link()) == "unshaped"
    assert str(Link(rate_mbit=100, loss=0.01)) == "100 Mbit/s, loss 1.00%"
    assert str(Link(mtu=9000)) == "unshaped, MTU 9000"
