"""Racks of workers below a spine, every link as slow: `make bench NAMES=racks ARGS=--help`. Needs root.

Theory of operation. On a star of namespaces with racks (`star.py`) the spine and each rack's switch run `wiresum switch
--p4runtime`, and a controller makes trees of them. Every worker is one process with a group over each way to sum
(`rank.py`), so that all of them sum the very same tensors, in turns:

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
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from wiresum.join.constants import P4RUNTIME_PORT
from wiresum_lab.benchmarks.against_gloo_and_mpi.records import physical_bound_mbit, ring_bound_mbit, tensor_wire_bytes
from wiresum_lab.benchmarks.program import add_tensor, parser_of, run, table_of, take_turns
from wiresum_lab.benchmarks.switches.cases import RANK, SwitchesCase, choice, go
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import RACKS_MAX, STAR_DEVICE, UPLINK_DEVICE, Host, Star
from wiresum_lab.ranks.ranks import GLOO, Ranks, Site

RACKS, SPINE = "racks", "spine"
GROUPS = (RACKS, SPINE, GLOO)
SPINE_CONTROL_PORT, SPINE_DATA_PORT = 43_587, 43_588
WARM_UPS = 1


@dataclass
class Case(SwitchesCase):
    """One way to sum, on links of one kind."""

    racks: int
    loss: float

    @property
    def bound_mbit(self) -> float:
        """What the links allow, headers counted, if nothing is lost."""
        if self.group == GLOO:
            return float(ring_bound_mbit(self.dense) or 0.0)
        crossings = -(-self.workers // self.racks) if self.group == SPINE else 1
        return float(physical_bound_mbit(self.dense) or 0.0) / crossings

    @property
    def uplink_tensors(self) -> float:
        """How often the tensor's packets crossed an uplink: the most of all uplinks and directions."""
        return self.median("uplink_bytes") / tensor_wire_bytes(self.dense)

    def record(self) -> dict[str, Any]:
        return super().record() | {"uplink_tensors": round(self.uplink_tensors, 4)}


def started(star: Star, logs: Path) -> Ranks:
    """Starts ranks, the switches of a tree, the controller that makes it, and one more switch at the spine."""

    def start(ranks: Ranks) -> None:
        for name, host in _tree(star).items():
            ranks.start_service(
                name, host, "switch", "--p4runtime", _p4runtime(host), "--bind", host.address, "--insecure"
            )
        config = ranks.folder / "controller.toml"
        config.write_text(_config(star))
        ranks.start_service("controller", star.manager, "controller", "--config", str(config))
        control = f"{star.switch.management_address}:{SPINE_CONTROL_PORT}"
        options = ["--port", str(SPINE_DATA_PORT)]
        spine = ranks.start_switch(star.switch, *options, name="spine-alone", control=control)
        tree = star.manager.control_endpoint
        choices = [choice(RACKS, switch=tree), choice(SPINE, switch=spine)]
        ranks.start_torch(RANK, STAR_DEVICE, *choices, variables=lambda worker: worker.variables(tree))

    return Ranks("racks", Site.of_star(star), logs, start)


def _tree(star: Star) -> dict[str, Host]:
    return {"spine": star.switch} | {f"rack{index}": rack for index, rack in enumerate(star.racks)}


def _p4runtime(host: Host) -> str:
    return f"{host.management_address}:{P4RUNTIME_PORT}"


def _config(star: Star) -> str:
    """The controller's configuration."""
    lines = ["[controller]", f'listen = "{star.manager.control_endpoint}"']
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
        started(star, options.logs) as ranks,
    ):
        for loss in (0.0, options.loss) if options.loss else (0.0,):
            star.reshape(Link(options.link_mbit, loss=loss))
            groups = GROUPS if not loss else (RACKS, SPINE)
            measured = [
                Case(group, options.workers, options.link_mbit, options.bytes, options.racks, loss) for group in groups
            ]
            prepare = partial(ranks.command, "prepare", options.bytes // 4, 1, 0.0)
            take_turns(measured, options.repetitions, WARM_UPS, prepare, partial(go_over_uplinks, star, ranks))
            for case in measured:
                console.print(f"{case.group}, {case.loss:.0%} loss: {case.goodput_mbit:.1f} Mbit/s")
            cases += measured
    return cases


def go_over_uplinks(star: Star, ranks: Ranks, case: Case) -> dict[str, Any]:
    before = uplink_bytes(star)
    repetition = go(ranks, case)
    crossed = max(after - earlier for after, earlier in zip(uplink_bytes(star), before, strict=True))
    return repetition | {"uplink_bytes": crossed}


def uplink_bytes(star: Star) -> list[int]:
    """Bytes that have crossed so far: for each rack those that came down, and those that went up."""
    found = []
    for rack in star.racks:
        (link,) = json.loads(rack.run(["ip", "-j", "-s", "link", "show", "dev", UPLINK_DEVICE]))
        found += [link["stats64"]["rx"]["bytes"], link["stats64"]["tx"]["bytes"]]
    return found


def report(cases: Sequence[Case], options: argparse.Namespace) -> Table:
    table = table_of(
        f"{options.workers} workers in {options.racks} racks, every link {options.link_mbit:g} Mbit/s, "
        f"{options.bytes / 1e6:g} MB fp32; medians",
        ("", "loss", "time", "goodput", "of its bound", "to Gloo", "of no loss", "tensors an uplink", "again"),
    )
    for case in cases:
        gloo = next((other for other in cases if other.group == GLOO and not case.loss), None)
        clean = next((other for other in cases if other.group == case.group and not other.loss and case.loss), None)
        table.add_row(
            case.group,
            f"{case.loss:.0%}",
            f"{case.seconds * 1e3:.0f} ms",
            f"{case.goodput_mbit:.1f} Mbit/s",
            f"{case.goodput_mbit / case.bound_mbit:.3f}",
            f"{gloo.seconds / case.seconds:.2f}" if gloo else "-",
            f"{clean.seconds / case.seconds:.3f}" if clean else "-",
            f"{case.uplink_tensors:.3f}",
            "-" if case.group == GLOO else str(case.retransmissions),
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
    return run(parse_options(arguments), measure, record=Case.record, table=report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
