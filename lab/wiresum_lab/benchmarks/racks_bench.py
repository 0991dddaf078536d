"""Racks of workers below a spine, every link as slow: `make bench-racks ARGS=--help`. Needs root.

Theory of operation. On a star of namespaces with racks (`star.py`) the spine and each rack's switch run `wiresum switch
--p4runtime`, and a controller makes trees of them. Every worker is one process with a group over each way to sum
(`groups_rank.py`), so that all of them sum the very same tensors, in turns:

    racks   a tree: each rack's switch sums what its workers have, the spine what the racks have
    spine   one switch at the spine, to which the racks' switches forward: what there is without trees
    gloo    a ring of TCP connections, rank by rank through the racks, which crosses each uplink once each way

All ranks begin at the same moment, and the clock runs from the first rank's start to the last rank's end. Every sum is
checked, element by element. What crossed the uplinks is what the kernel counted there.

What can be reached: over a tree each link carries the tensor once each way, whatever the number of workers. To the
spine alone an uplink carries it once for each worker of the rack.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from wiresum.join.constants import CONTROL_PORT, P4RUNTIME_PORT
from wiresum_lab.benchmarks.allreduce_record import Case as DenseCase
from wiresum_lab.benchmarks.allreduce_record import physical_bound_mbit, ring_bound_mbit, tensor_wire_bytes
from wiresum_lab.benchmarks.groups_rank import GLOO
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import RACKS_MAX, UPLINK_DEVICE, Host, Star
from wiresum_lab.ranks.star_ranks import GroupsRanks, add_tensor, control_endpoint, parser_of, run

RACKS, SPINE = "racks", "spine"
GROUPS = (RACKS, SPINE, GLOO)
SPINE_CONTROL_PORT, SPINE_DATA_PORT = 43_587, 43_588
WARM_UPS = 1


@dataclass
class Case:
    """One way to sum, on links of one kind."""

    group: str
    workers: int
    racks: int
    link_mbit: float
    bytes: int
    loss: float
    repetitions: list[dict[str, Any]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self._median("seconds")

    @property
    def goodput_mbit(self) -> float:
        return self.bytes * 8 / self.seconds / 1e6

    @property
    def bound_mbit(self) -> float:
        """What the links allow, headers counted, if nothing is lost."""
        if self.group == GLOO:
            return float(ring_bound_mbit(self._dense) or 0.0)
        crossings = -(-self.workers // self.racks) if self.group == SPINE else 1
        return float(physical_bound_mbit(self._dense) or 0.0) / crossings

    @property
    def uplink_tensors(self) -> float:
        """How often the tensor's packets crossed an uplink: the most of all uplinks and both ways."""
        return self._median("uplink_bytes") / tensor_wire_bytes(self._dense)

    @property
    def _dense(self) -> DenseCase:
        return DenseCase("rate", "", self.workers, self.link_mbit, self.bytes)

    def record(self) -> dict[str, Any]:
        figures = {
            name: round(getattr(self, name), 4) for name in ("seconds", "goodput_mbit", "bound_mbit", "uplink_tensors")
        }
        return vars(self) | figures | {"bound_ratio": round(self.goodput_mbit / self.bound_mbit, 4)}

    def _median(self, name: str) -> float:
        return float(statistics.median(repetition[name] for repetition in self.repetitions))


class RacksRanks(GroupsRanks):
    """With the switches of a tree, the controller that makes it, and one more switch at the spine."""

    def __init__(self, star: Star, logs: Path) -> None:
        self._spine_control = f"{star.switch.management_address}:{SPINE_CONTROL_PORT}"
        super().__init__(star, logs, {RACKS: control_endpoint(star.manager), SPINE: self._spine_control})

    def _start_services(self, star: Star) -> str:
        for name, host in _tree(star).items():
            command = ["switch", "--p4runtime", _p4runtime(host), "--bind", host.address, "--insecure"]
            self._start_service(name, host, command)
        config = self._logs / "racks-controller.toml"
        config.write_text(_config(star))
        self._start_service("controller", star.manager, ["controller", "--config", str(config)])
        command = ["switch", "--bind", star.switch.address, "--control", self._spine_control, "--insecure"]
        self._start_service("spine-alone", star.switch, [*command, "--port", str(SPINE_DATA_PORT)])
        return control_endpoint(star.manager)


def _tree(star: Star) -> dict[str, Host]:
    return {"spine": star.switch} | {f"rack{index}": rack for index, rack in enumerate(star.racks)}


def _p4runtime(host: Host) -> str:
    return f"{host.management_address}:{P4RUNTIME_PORT}"


def _config(star: Star) -> str:
    """Of the controller."""
    lines = ["[controller]", f'listen = "{star.manager.management_address}:{CONTROL_PORT}"']
    lines += ["[security]", "insecure = true"]
    for name, host in _tree(star).items():
        lines += ["[[switch]]", f'name = "{name}"', 'kind = "software"', f'p4runtime = "{_p4runtime(host)}"']
        lines += ["insecure = true", f'address = "{host.address}"']
        if host is not star.switch:
            lines += ['parent = "spine"', f'multicast = "239.194.{4 * star.racks.index(host)}.0"']  # 1,024 groups each
        for rank, worker in enumerate(star.workers):
            if star.rack_of(rank) is host:
                lines += ["[[switch.host]]", f'name = "worker{rank}"', f'address = "{worker.address}"']
    return "\n".join(lines) + "\n"


def measure(options: argparse.Namespace, console: Console) -> list[Case]:
    cases = []
    with (
        Star(options.workers, Link(options.link_mbit), racks=options.racks) as star,
        RacksRanks(star, options.logs) as ranks,
    ):
        for loss in (0.0, options.loss) if options.loss else (0.0,):
            star.reshape(Link(options.link_mbit, loss=loss))
            # Gloo over TCP crawls where packets are lost: allreduce_bench.py shows that.
            groups = GROUPS if not loss else (RACKS, SPINE)
            measured = [
                Case(group, options.workers, options.racks, options.link_mbit, options.bytes, loss) for group in groups
            ]
            repeat(star, ranks, measured, options.repetitions)
            for case in measured:
                console.print(f"{case.group}, {case.loss:.0%} loss: {case.goodput_mbit:.1f} Mbit/s")
            cases += measured
    return cases


def repeat(star: Star, ranks: RacksRanks, cases: Sequence[Case], repetitions: int) -> None:
    """In turns, so that what else the machine does meets all alike."""
    for draw in range(-WARM_UPS, repetitions):
        ranks.prepare(cases[0].bytes // 4, 1, 0.0, draw + WARM_UPS)
        for case in cases:
            before = uplink_bytes(star)
            repetition = ranks.go(case.group)
            crossed = max(after - earlier for after, earlier in zip(uplink_bytes(star), before, strict=True))
            if draw >= 0:
                case.repetitions.append(repetition | {"uplink_bytes": crossed})


def uplink_bytes(star: Star) -> list[int]:
    """What has crossed so far: for each rack what came down, and what went up."""
    found = []
    for rack in star.racks:
        (link,) = json.loads(rack.run(["ip", "-j", "-s", "link", "show", "dev", UPLINK_DEVICE]))
        found += [link["stats64"]["rx"]["bytes"], link["stats64"]["tx"]["bytes"]]
    return found


def table_of(cases: Sequence[Case], options: argparse.Namespace) -> Table:
    table = Table(
        title=f"{options.workers} workers in {options.racks} racks, every link {options.link_mbit:g} Mbit/s, "
        f"{options.bytes / 1e6:g} MB fp32; medians"
    )
    columns = ("", "loss", "time", "goodput", "of its bound", "to Gloo", "of no loss", "tensors an uplink", "again")
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    for case in cases:
        gloo = next((other for other in cases if other.group == GLOO and not case.loss), None)
        clean = next((other for other in cases if other.group == case.group and not other.loss and case.loss), None)
        again = sum(repetition["retransmissions"] for repetition in case.repetitions)
        table.add_row(
            case.group,
            f"{case.loss:.0%}",
            f"{case.seconds * 1e3:.0f} ms",
            f"{case.goodput_mbit:.1f} Mbit/s",
            f"{case.goodput_mbit / case.bound_mbit:.3f}",
            f"{gloo.seconds / case.seconds:.2f}" if gloo else "-",
            f"{clean.seconds / case.seconds:.3f}" if clean else "-",
            f"{case.uplink_tensors:.3f}",
            "-" if case.group == GLOO else str(again),
        )
    return table


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of(__doc__, records="build/bench/racks.json", workers=8)
    add_tensor(parser)
    parser.add_argument("--racks", type=int, default=2, help="racks that they are in (default: %(default)s)")
    parser.add_argument("--loss", type=float, default=0.01, help="also with so much loss on every link (%(default)s)")
    options = parser.parse_args(arguments)
    if not 1 <= options.racks <= min(RACKS_MAX, options.workers):
        parser.error(f"{options.workers} workers are in 1 to {min(RACKS_MAX, options.workers)} racks")
    return options


def main(arguments: Sequence[str]) -> int:
    return run(parse_options(arguments), measure, record=Case.record, table=table_of)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
