"""Tables of what was measured, and how it compares with what the project wants to reach."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from wiresum_lab.benchmarks.against_gloo_and_mpi.numeric import Conversion
from wiresum_lab.benchmarks.against_gloo_and_mpi.records import AGGREGATING, Measurement
from wiresum_lab.benchmarks.against_gloo_and_mpi.systems import SYSTEMS
from wiresum_lab.namespaces.links import MTU_BYTES

Record = dict[str, Any]

PEERS = ("gloo", "openmpi")
BOUND_RATIO_MIN = 0.95
FLATNESS_MIN = 0.95
PEER_WORKERS = 8
PEER_RATIO_MIN = 1.6
LANE_RATIO_MIN = {16: 1.9, 8: 3.6}
LOSS_RATIO_MIN = 0.85
LOSS_TARGET = 0.01
MEMCPY_RATIO_MIN = 0.5
UNSHAPED_WORKERS = 4
UNSHAPED_MTUS = (MTU_BYTES, 9000)
UNSHAPED_RATIO_MIN = 1.2
LATENCY_RATIO_MAX = 2.0
FAST_LINK_MBIT = 1000.0
FAST_LINK_RATIO_MIN = {"UDP": 0.95, "the best transport": 1.0}
TRANSPORTS = {"UDP": ("wiresum",), "the best transport": ("wiresum", "wiresum-xdp", "wiresum-dpdk")}
CPU_RATIO_MAX = 1.5
TARGET_LINK_MBIT = 100.0


@dataclass(frozen=True)
class Target:
    """A target, and what was measured; `value` is None where the run did not measure it."""

    text: str
    value: float | None
    limit: float
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value < self.limit if self.at_most else self.value >= self.limit


def line(measurement: Measurement) -> str:
    """One line for the screen as soon as a case is done."""
    record = measurement.record()
    lanes = f"{record['bits']:>2}-bit" if record["system"] == "wiresum" else "      "
    text = f"{record['experiment']:<8} N={record['workers']}  {link_of(record):<20} {_title(record):<9} {lanes}  "
    if not record["seconds"]:
        return text + "failed"
    if record["experiment"] == "latency":
        return text + f"{median(record['seconds']) * 1e6:9.0f} us"
    bound = "" if record["bound_ratio"] is None else f"   {record['bound_ratio']:.3f} of the bound"
    return text + f"{record['goodput_mbit']:9.1f} Mbit/s{bound}{'' if record['correct'] else '   WRONG SUM'}"


def print_tables(records: Sequence[Record], conversions: Sequence[Conversion], console: Console) -> None:
    headings = {
        "rate": "Links with a rate",
        "loss": "Packets lost on every link, in both directions",
        "unshaped": "Links as fast as this machine",
    }
    for experiment, heading in headings.items():
        rows = [record for record in records if record["experiment"] == experiment]
        if rows:
            console.print(_rate_table(heading, rows, records))
    latencies = [record for record in records if record["experiment"] == "latency" and record["seconds"]]
    if latencies:
        console.print(_latency_table(latencies))
    if conversions:
        console.print(_conversion_table(conversions))


def print_targets(records: Sequence[Record], conversions: Sequence[Conversion], console: Console) -> None:
    table = _table("What it must reach", "", "", ">measured", ">target", "")
    for target in targets(records, conversions):
        if target.met is None:
            table.add_row(target.text, "-", _limit(target), "[dim]not measured")
        else:
            verdict = "[green]met" if target.met else "[bold red]not met"
            table.add_row(target.text, f"{target.value:.3f}", _limit(target), verdict)
    console.print(table)


def targets(records: Sequence[Record], conversions: Sequence[Conversion]) -> list[Target]:
    """The targets, in the order in which the project states them."""
    found = [_bound_target(records, workers) for workers in (2, 4, 8)]
    found.append(_flatness_target(records))
    found += [_peer_target(records, peer) for peer in PEERS]
    found += _mpi_targets(records)
    found += [_lane_target(records, bits) for bits in LANE_RATIO_MIN]
    found.append(_loss_target(records))
    for operation in ("quantise + pack", "unpack + dequantise"):
        ratio = next((c.ratio_to_memcpy for c in conversions if c.operation == operation), None)
        found.append(Target(f"{operation}, fp32, of memcpy's bandwidth", ratio, MEMCPY_RATIO_MIN))
    found += [_unshaped_target(records, mtu) for mtu in UNSHAPED_MTUS]
    found += [_latency_target(records, workers) for workers in (2, 4)]
    for workers in (4, 8):
        found += [_fast_link_target(records, workers, transport) for transport in TRANSPORTS]
        found.append(_cpu_target(records, workers))
    return found


def _bound_target(records: Sequence[Record], workers: int) -> Target:
    record = _find(records, "rate", "wiresum", workers=workers)
    value = record["bound_ratio"] if record else None
    return Target(f"fp32 at 100 Mbit/s, N = {workers}: of the physical bound", value, BOUND_RATIO_MIN)


def _flatness_target(records: Sequence[Record]) -> Target:
    goodputs = [_goodput(_find(records, "rate", "wiresum", workers=workers)) for workers in (2, 4, 8)]
    known = [goodput for goodput in goodputs if goodput is not None]
    value = min(known) / max(known) if len(known) == len(goodputs) else None
    return Target("fp32 at 100 Mbit/s: slowest N of fastest N", value, FLATNESS_MIN)


def _peer_target(records: Sequence[Record], peer: str) -> Target:
    own = _goodput(_find(records, "rate", "wiresum", workers=PEER_WORKERS))
    other = _goodput(_find(records, "rate", peer, workers=PEER_WORKERS))
    title = SYSTEMS[peer].title
    return Target(f"fp32 at 100 Mbit/s, N = {PEER_WORKERS}: times {title}", _quotient(own, other), PEER_RATIO_MIN)


def _mpi_targets(records: Sequence[Record]) -> list[Target]:
    own = _find(records, "rate", "openmpi-wiresum", workers=PEER_WORKERS)
    other = _find(records, "rate", "openmpi", workers=PEER_WORKERS)
    ratio = _quotient(_goodput(own), _goodput(other))
    return [
        Target("MPI_Allreduce through Wiresum: of the bound", own["bound_ratio"] if own else None, BOUND_RATIO_MIN),
        Target("MPI_Allreduce through Wiresum: over Open MPI's best", ratio, PEER_RATIO_MIN),
    ]


def _lane_target(records: Sequence[Record], bits: int) -> Target:
    """The least favourable number of workers counts."""
    ratios = [
        _quotient(
            _goodput(_find(records, "rate", "wiresum", workers=workers, bits=bits)),
            _goodput(_find(records, "rate", "wiresum", workers=workers)),
        )
        for workers in sorted({record["workers"] for record in records})
    ]
    value = min((ratio for ratio in ratios if ratio is not None), default=None)
    return Target(f"{bits} bits at 100 Mbit/s: times fp32, worst N", value, LANE_RATIO_MIN[bits])


def _loss_target(records: Sequence[Record]) -> Target:
    lossy = next((r for r in records if r["experiment"] == "loss" and r["loss"] == LOSS_TARGET), None)
    text = f"{LOSS_TARGET:.0%} loss on every link: of the rate without loss"
    if lossy is None:
        return Target(text, None, LOSS_RATIO_MIN)
    same = {"workers": lossy["workers"], "link_mbit": lossy["link_mbit"]}
    own = next((r for r in records if _is(r, "loss", "wiresum", loss=LOSS_TARGET, **same)), None)
    value = _quotient(_goodput(own), _goodput(_find(records, "rate", "wiresum", **same)))
    return Target(text, value, LOSS_RATIO_MIN)


def _unshaped_target(records: Sequence[Record], mtu: int) -> Target:
    """Both systems with packets of the same size."""
    own, gloo = (
        _goodput(_find(records, "unshaped", system, workers=UNSHAPED_WORKERS, link_mbit=None, mtu=mtu))
        for system in ("wiresum", "gloo")
    )
    text = f"25 MB, unshaped links, MTU {mtu}, N = {UNSHAPED_WORKERS}: times Gloo"
    return Target(text, _quotient(own, gloo), UNSHAPED_RATIO_MIN)


def _latency_target(records: Sequence[Record], workers: int) -> Target:
    own, gloo = (
        _seconds(_find(records, "latency", system, workers=workers, link_mbit=None)) for system in ("wiresum", "gloo")
    )
    text = f"1 kB over loopback, N = {workers}: median time, times Gloo's"
    return Target(text, _quotient(own, gloo), LATENCY_RATIO_MAX, at_most=True)


def _fast_link_target(records: Sequence[Record], workers: int, transport: str) -> Target:
    """Where the cores are the limit."""

    def rate(system: str) -> float | None:
        return _goodput(_find(records, "rate", system, workers=workers, link_mbit=FAST_LINK_MBIT))

    own = max((found for found in map(rate, TRANSPORTS[transport]) if found is not None), default=None)
    text = f"fp32 at 1 Gbit/s, N = {workers}, {transport}: times Gloo"
    return Target(text, _quotient(own, rate("gloo")), FAST_LINK_RATIO_MIN[transport])


def _cpu_target(records: Sequence[Record], workers: int) -> Target:
    own, gloo = (_find(records, "rate", system, workers=workers) for system in ("wiresum", "gloo"))
    name = "cpu_seconds_per_gb_worker"
    value = _quotient(own[name], gloo[name]) if own and gloo else None
    text = f"fp32 at 100 Mbit/s, N = {workers}: CPU at a worker, times Gloo's"
    return Target(text, value, CPU_RATIO_MAX, at_most=True)


def _rate_table(heading: str, rows: Sequence[Record], records: Sequence[Record]) -> Table:
    caption = (
        "bound: what the link can carry, headers counted; own bound: for rings, 2(N-1)/N of the tensor crosses every "
        "link. CPU: seconds for each GB of tensor, of one worker's process and of the switch's. "
        "retransmissions: of all workers in all repetitions."
    )
    columns = ["link", ">N", "system", ">bits", ">Mbit/s", ">of bound", ">of own", ">x Gloo", ">x Open MPI"]
    table = _table(heading, caption, *columns, ">CPU worker", ">CPU switch", ">retrans.")
    for index, row in enumerate(rows):
        peers = [_peer_of(row, peer, records) for peer in PEERS]
        table.add_row(
            link_of(row),
            str(row["workers"]),
            _title(row),
            str(row["bits"]),
            _cell(row["goodput_mbit"], ".1f") if row["correct"] or not row["seconds"] else "[bold red]WRONG SUM",
            _cell(row["bound_ratio"], ".3f"),
            _cell(row["own_bound_ratio"], ".3f"),
            *(_cell(_quotient(_goodput(row), _goodput(peer)), ".2f") for peer in peers),
            _cell(row["cpu_seconds_per_gb_worker"], ".2f"),
            _cell(row["cpu_seconds_per_gb_switch"], ".2f"),
            _cell(row["retransmissions"], "d"),
            end_section=index + 1 == len(rows) or _group(rows[index + 1]) != _group(row),
        )
    return table


def _latency_table(rows: Iterable[Record]) -> Table:
    table = _table("1 kB over loopback", "", ">N", "system", ">median us", "of repetitions")
    for row in rows:
        each = " ".join(f"{seconds * 1e6:.0f}" for seconds in row["seconds"])
        table.add_row(str(row["workers"]), _title(row), f"{median(row['seconds']) * 1e6:.0f}", each)
    return table


def _conversion_table(conversions: Iterable[Conversion]) -> Table:
    table = _table("Floats to lanes and back, one core", "", "operation", "instructions", ">GB/s", ">of memcpy")
    for conversion in conversions:
        rate, ratio = f"{conversion.gigabytes_per_s:.1f}", f"{conversion.ratio_to_memcpy:.2f}"
        table.add_row(conversion.operation, conversion.instruction_set, rate, ratio)
    return table


def _table(title: str, caption: str, *headings: str) -> Table:
    """A heading that begins with > is that of a column of numbers."""
    table = Table(title=title, title_justify="left", caption=caption or None, caption_justify="left")
    for heading in headings:
        table.add_column(heading.lstrip(">"), justify="right" if heading.startswith(">") else "left")
    return table


def _peer_of(row: Record, peer: str, records: Sequence[Record]) -> Record | None:
    """The peer's record of the same experiment; a peer sends floats as they are, whatever our lanes."""
    if row["system"] not in AGGREGATING:
        return None
    same = {name: row[name] for name in ("workers", "link_mbit", "bytes", "loss", "mtu")}
    return next((record for record in records if _is(record, row["experiment"], peer, **same)), None)


def _find(
    records: Sequence[Record],
    experiment: str,
    system: str,
    *,
    workers: int,
    link_mbit: float | None = TARGET_LINK_MBIT,
    bits: int = 32,
    mtu: int = MTU_BYTES,
) -> Record | None:
    wanted = {"workers": workers, "link_mbit": link_mbit, "bits": bits, "mtu": mtu}
    return next((record for record in records if _is(record, experiment, system, **wanted)), None)


def _is(record: Record, experiment: str, system: str, **wanted: object) -> bool:
    wanted |= {"experiment": experiment, "system": system}
    return all(record[name] == value for name, value in wanted.items())


def _goodput(record: Record | None) -> float | None:
    """Of a record that may be missing, failed or wrong: a wrong sum has no rate."""
    return record["goodput_mbit"] if record and record["correct"] else None


def _seconds(record: Record | None) -> float | None:
    return median(record["seconds"]) if record and record["seconds"] else None


def _quotient(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value / other


def median(values: Sequence[float]) -> float:
    """A value that was measured: the larger of the two in the middle."""
    return sorted(values)[len(values) // 2]


def _group(record: Record) -> tuple[object, ...]:
    return record["link_mbit"], record["workers"], record["loss"], record["mtu"]


def _title(record: Record) -> str:
    return SYSTEMS[record["system"]].title


def link_of(record: Record) -> str:
    if record["link_mbit"] is None:
        return "loopback" if record["experiment"] == "latency" else f"unshaped, MTU {record['mtu']}"
    return f"{record['link_mbit']:g} Mbit/s" + (f" {record['loss']:.1%} loss" if record["loss"] else "")


def _limit(target: Target) -> str:
    return f"{'<' if target.at_most else '>='} {target.limit:g}"


def _cell(value: float | int | None, form: str) -> str:
    return "-" if value is None else format(value, form)
