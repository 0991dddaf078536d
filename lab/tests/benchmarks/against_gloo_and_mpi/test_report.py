"""The summary compares the results with the targets."""

from typing import Any

from rich.console import Console

from wiresum_lab.benchmarks.against_gloo_and_mpi import chart
from wiresum_lab.benchmarks.against_gloo_and_mpi.numeric import Conversion, conversions
from wiresum_lab.benchmarks.against_gloo_and_mpi.records import Case, Measurement, Repetition
from wiresum_lab.benchmarks.against_gloo_and_mpi.report import Target, print_tables, print_targets, targets

Records = list[dict[str, Any]]


def record(system: str, workers: int, mbit: float, **changes: Any) -> dict[str, Any]:
    """A record with this median goodput in Mbit/s."""
    size = 8_000_000
    values: dict[str, Any] = {"experiment": "rate", "link_mbit": 100.0, "bytes": size} | changes
    own = system == "wiresum"
    seconds = size * 8 / 1e6 / mbit
    repetitions = [Repetition(seconds, 0.1, 0.1 if own else None, 0, 4 if own else None)] * 3
    return Measurement(Case(system=system, workers=workers, **values), repetitions).record()


def latency(system: str, workers: int, seconds: float) -> dict[str, Any]:
    case = Case("latency", system, workers, None, 1024)
    return Measurement(case, latencies_s=[seconds, seconds, 1.0]).record()


def full_run() -> Records:
    records = [record("wiresum", workers, 94.0) for workers in (2, 4, 8)]
    records += [record("wiresum", workers, mbit, bits=bits) for workers in (2, 8) for bits, mbit in LANES.items()]
    records += [record("gloo", 8, 54.0), record("openmpi", 8, 60.0)]
    records += [
        record("wiresum", 8, 84.0, experiment="loss", loss=0.01),
        record("gloo", 8, 20.0, experiment="loss", loss=0.01),
    ]
    records += [
        record(name, 4, mbit, experiment="unshaped", link_mbit=None, mtu=mtu) for (name, mtu), mbit in UNSHAPED.items()
    ]
    return [*records, latency("wiresum", 2, 150e-6), latency("gloo", 2, 100e-6)]


LANES = {16: 187.0, 8: 300.0}
UNSHAPED = {("wiresum", 1500): 3400.0, ("gloo", 1500): 3500.0, ("wiresum", 9000): 4800.0, ("gloo", 9000): 3600.0}
ROWS: list[dict[str, object]] = [
    {
        "operation": operation,
        "instruction_set": name,
        "format": fmt,
        "bytes": 1e9,
        "seconds_median": 0.1,
        "ratio_to_memcpy": ratio,
    }
    for name, ratio in (("scalar", 0.1), ("avx2", 0.8))
    for fmt in ("f32/32", "f32/16")
    for operation in ("quantise + pack", "unpack + dequantise")
]


def found(records: Records, measured: list[Conversion], words: str) -> Target:
    (target,) = [target for target in targets(records, measured) if words in target.text]
    return target


def test_the_best_transport_is_compared_with_gloo_if_cores_are_the_limit() -> None:
    fast = {"link_mbit": 1000.0}
    records = [record("gloo", 4, 400.0, **fast), record("wiresum", 4, 390.0, **fast)]
    assert found(records, [], "1 Gbit/s, N = 4, UDP").met is True
    assert found(records, [], "1 Gbit/s, N = 4, the best").met is False
    records.append(record("wiresum-xdp", 4, 410.0, **fast))
    assert found(records, [], "1 Gbit/s, N = 4, the best").met is True
    assert found(records, [], "1 Gbit/s, N = 8, UDP").value is None


def test_a_workers_cpu_time_is_compared_with_gloos() -> None:
    records = [record("gloo", 8, 54.0), record("wiresum", 8, 94.0)]
    assert found(records, [], "N = 8: CPU at a worker").value == 1.0
    assert found(records, [], "N = 8: CPU at a worker").met is True


def test_targets_are_compared_with_the_right_records() -> None:
    records = full_run()
    assert found(records, [], "N = 8: of the physical").met is True
    assert found(records, [], "slowest N").value == 1.0
    peer = found(records, [], "N = 8: times Gloo").value
    assert peer is not None
    assert abs(peer - 94 / 54) < 0.01
    assert found(records, [], "times Open MPI").met is False
    assert found(records, [], "16 bits").met is True
    assert found(records, [], "8 bits").met is False
    assert found(records, [], "loss").met is True
    assert found(records, [], "MTU 1500, N = 4: times Gloo").met is False
    jumbo = found(records, [], "MTU 9000, N = 4: times Gloo")
    assert jumbo.met is True
    assert jumbo.value is not None
    assert abs(jumbo.value - 4800 / 3600) < 0.01
    assert found(records, [], "loopback, N = 2").met is True


def test_a_target_without_a_measurement_is_neither_met_nor_missed() -> None:
    assert {target.met for target in targets([], [])} == {None}
    assert found([record("wiresum", 2, 94.0)], [], "slowest N").met is None


def test_a_wrong_sum_has_no_rate() -> None:
    wrong = record("wiresum", 8, 94.0) | {"correct": False}
    assert found([wrong, record("gloo", 8, 54.0)], [], "N = 8: times Gloo").met is None


def test_a_latency_above_twice_the_peers_misses_the_target() -> None:
    records = [latency("wiresum", 4, 210e-6), latency("gloo", 4, 100e-6)]
    assert found(records, [], "loopback, N = 4").met is False


def test_conversions_are_reported_for_the_instruction_set_in_use() -> None:
    measured = conversions(ROWS)
    assert {conversion.instruction_set for conversion in measured} == {"avx2"}
    assert len(measured) == 2
    assert found([], measured, "quantise + pack").met is True


def test_a_whole_run_can_be_printed_and_drawn(tmp_path: Any) -> None:
    console = Console(record=True, width=140, file=(tmp_path / "out").open("w"))
    records = full_run()
    print_tables(records, conversions(ROWS), console)
    print_targets(records, conversions(ROWS), console)
    text = console.export_text()
    for words in ("Wiresum", "Open MPI", "not met", "Packets lost", "1 kB over loopback", "unshaped, MTU 9000"):
        assert words in text
    picture = tmp_path / "allreduce.png"
    chart.draw(records, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    console.file.close()


def test_a_run_without_results_leaves_no_picture(tmp_path: Any) -> None:
    failed = record("wiresum", 2, 94.0) | {"goodput_mbit": None, "correct": False}
    chart.draw([failed], tmp_path / "allreduce.png")
    assert not (tmp_path / "allreduce.png").exists()
