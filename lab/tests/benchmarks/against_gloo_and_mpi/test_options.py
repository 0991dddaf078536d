"""Parsing of the benchmark's command line."""

from pathlib import Path

import pytest

from wiresum_lab.benchmarks.against_gloo_and_mpi.options import UNSHAPED_BYTES, parse_options


def test_by_default_everything_is_measured() -> None:
    options = parse_options([])
    assert options.systems == ("wiresum", "gloo", "openmpi")
    assert options.workers == (2, 4, 8)
    assert options.links_mbit == (100.0, 1000.0)
    assert options.bits == (32, 16, 8)
    assert options.losses == (0.01,)
    assert options.experiments == ("rate", "loss", "unshaped", "latency", "numeric")
    assert options.json == Path("build/bench/allreduce.json")


def test_a_part_contains_its_share_of_the_grid_and_its_loss_experiment() -> None:
    options = parse_options(["--workers", "8", "--link", "100mbit"])
    assert (options.workers, options.links_mbit) == ((8,), (100.0,))
    assert options.experiments == ("rate", "loss")


def test_link_none_selects_only_the_unshaped_experiment() -> None:
    options = parse_options(["--link", "none"])
    assert options.experiments == ("unshaped",)
    assert options.unshaped_workers == (2, 4)


def test_a_fast_link_alone_has_no_loss_experiment() -> None:
    assert parse_options(["--link", "1gbit"]).experiments == ("rate",)


def test_unshaped_links_are_measured_with_two_packet_sizes_by_default() -> None:
    assert parse_options([]).unshaped_mtus == (1500, 9000)
    options = parse_options(["--link", "none", "--mtu", "9000"])
    assert options.unshaped_mtus == (9000,)
    assert {case.mtu for case in options.cases("unshaped", 4, None, mtu=9000)} == {9000}
    assert {case.mtu for case in options.cases("rate", 4, 100.0)} == {1500}


def test_shorter_repetitions_are_repeated_more_often() -> None:
    options = parse_options(["--repetitions", "3"])
    assert (options.repetitions_of("rate"), options.repetitions_of("unshaped")) == (3, 12)


def test_only_selects_experiments_by_name() -> None:
    assert parse_options(["--only", "latency,numeric"]).experiments == ("latency", "numeric")


def test_loss_is_a_fraction_or_a_percentage() -> None:
    assert parse_options(["--loss", "0.001,2%,0"]).losses == (0.001, 0.02)


def test_lane_widths_apply_to_wiresum_alone_and_alternate_with_the_peers() -> None:
    cases = parse_options(["--bits", "32,8"]).cases("rate", 4, 100.0)
    assert [(case.system, case.bits) for case in cases] == [
        ("wiresum", 32),
        ("wiresum", 8),
        ("gloo", 32),
        ("openmpi", 32),
    ]
    assert {case.bytes for case in cases} == {8_000_000}


def test_outside_the_grid_only_the_largest_lane_width_is_measured() -> None:
    (own, gloo) = parse_options([]).cases("loss", 8, 100.0, loss=0.01)
    assert (own.system, own.bits, own.loss) == ("wiresum", 32, 0.01)
    assert gloo.system == "gloo"
    assert parse_options([]).cases("unshaped", 4, None)[0].bytes == UNSHAPED_BYTES


def test_quick_reduces_everything_and_bytes_override_it() -> None:
    assert parse_options(["--quick"]).bytes_at(100.0) == 2_000_000
    assert parse_options(["--quick"]).repetitions == 3
    assert parse_options(["--quick", "--bytes", "4001"]).bytes_at(100.0) == 4000


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--workers", "1"], "from 2 to 32"),
        (["--workers", "two"], "from 2 to 32"),
        (["--link", "10mbit"], "none of 100mbit"),
        (["--systems", "nccl"], "none of wiresum, wiresum-xdp, wiresum-dpdk, gloo, openmpi, openmpi-wiresum"),
        (["--bits", "12"], "32, 16 or 8"),
        (["--loss", "1.5"], "fraction of packets"),
        (["--repetitions", "0"], "repetitions"),
        (["--only", "speed"], "none of rate"),
        (["--mtu", "575"], "from 576 to 9216"),
        (["--mtu", "9000", "--link", "100mbit"], "add --link none"),
        (["--work", "2"], "unrecognized"),
    ],
)
def test_an_invalid_value_is_refused_and_named(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refusal:
        parse_options(arguments)
    assert refusal.value.code == 2
    assert complaint in capsys.readouterr().err


def test_the_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leave:
        parse_options(["--help"])
    assert leave.value.code == 0
    assert "make bench NAMES=dense ARGS='--workers 8 --link 100mbit'" in capsys.readouterr().out
