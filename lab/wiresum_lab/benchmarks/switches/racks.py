"""Measures racks of workers below a spine, on equal links: `make bench NAMES=racks ARGS=--help`. Needs root.

Theory of operation. On a star of namespaces with racks (`star.py`) the spine and each rack's switch run `wiresum switch
--p4runtime`, and a controller makes trees of them. Every worker is one process with a group over each way to sum
(`rank.py`); the groups sum the same tensors, in turns:

    racks   a tree: each rack's switch sums its workers' tensors, and the spine sums the racks' sums
    spine   one switch at the spine, to which the racks' switches only forward, as without trees
    gloo    a ring of TCP connections, rank by rank through the racks, which crosses each uplink once each way

All ranks begin at the same moment, and the clock runs from the first rank's start to the last rank's end. Every sum is
checked, element by element. The kernel counts the traffic on the uplinks.

The bound: in a tree each link carries the tensor once each way, at any number of workers. With the spine alone, an
uplink carries the tensor once for each worker of the rack.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from wiresum.join.constants import P4RUNTIME_PORT
from wiresum_lab.benchmarks import program
from wiresum_lab.benchmarks.bounds import network_mbit, ring_mbit, tensor_wire_bytes
from wiresum_lab.benchmarks.program import Case, Record, take_turns
from wiresum_lab.benchmarks.switches import cases
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import RACKS_MAX, STAR_DEVICE, UPLINK_DEVICE, Host, Star
from wiresum_lab.ranks.ranks import GLOO, Ranks, Site

RACKS, SPINE = "racks", "spine"
SPINE_CONTROL_PORT, SPINE_DATA_PORT = 43_587, 43_588
WARM_UPS = 1


def bound_mbit(case: Case) -> float | None:
    """The goodput that the links allow, headers counted, without loss."""
    if case["group"] == GLOO:
        return ring_mbit(case["bytes"], case["link_mbit"], case["workers"])
    crossings = -(-case["workers"] // case["racks"]) if case["group"] == SPINE else 1
    return (network_mbit(case["bytes"], case["link_mbit"]) or 0.0) / crossings


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
        choices = [cases.choice(RACKS, switch=tree), cases.choice(SPINE, switch=spine)]
        ranks.start_torch(cases.RANK, STAR_DEVICE, *choices, variables=lambda worker: worker.variables(tree))

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


def measure(options: argparse.Namespace) -> list[Case]:
    measured = []
    with (
        Star(options.workers, Link(options.link_mbit), racks=options.racks) as star,
        started(star, options.logs) as ranks,
    ):
        for loss in (0.0, options.loss) if options.loss else (0.0,):
            star.reshape(Link(options.link_mbit, loss=loss))
            alike = {name: getattr(options, name) for name in ("workers", "racks", "link_mbit", "bytes")}
            groups = (RACKS, SPINE) if loss else (RACKS, SPINE, GLOO)
            some = [Case({"group": group, "loss": loss} | alike) for group in groups]
            prepare = partial(ranks.command, "prepare", options.bytes // 4, 1, 0.0)
            take_turns(some, options.repetitions, WARM_UPS, prepare, partial(go, star, ranks))
            measured += some
    return measured


def go(star: Star, ranks: Ranks, case: Case) -> Record:
    before = uplink_bytes(star)
    repetition = cases.go(ranks, case)
    crossed = max(after - earlier for after, earlier in zip(uplink_bytes(star), before, strict=True))
    return repetition | {"uplink_bytes": crossed}


def uplink_bytes(star: Star) -> list[int]:
    """Bytes that have crossed the uplinks so far: for each rack the bytes down, then the bytes up."""
    found = []
    for rack in star.racks:
        (link,) = json.loads(rack.run(["ip", "-j", "-s", "link", "show", "dev", UPLINK_DEVICE]))
        found += [link["stats64"]["rx"]["bytes"], link["stats64"]["tx"]["bytes"]]
    return found


def figures(case: Case, measured: Sequence[Case]) -> Record:
    """The columns of a case. `uplink_tensors` is how often the tensor's packets crossed the busiest uplink, by
    direction."""
    return cases.figures(case, bound_mbit(case)) | {
        "over_gloo": case.times(measured, group=GLOO, loss=0.0),
        "over_no_loss": case.times(measured, loss=0.0),
        "uplink_tensors": case.median("uplink_bytes") / tensor_wire_bytes(case["bytes"]),
    }


def main(arguments: Sequence[str]) -> int:
    parser = program.Options("racks", __doc__)
    parser.add("--bytes", 8_000_000, "bytes of the tensor")
    parser.add("--repetitions", 5, "repetitions of each case")
    parser.add("--racks", 2, "racks that the workers are in", choices=range(1, RACKS_MAX + 1), metavar="N")
    parser.add("--loss", 0.01, "fraction of packets lost on every link in a second series; 0 leaves that out")
    return program.run(parser.parse_args(arguments), measure, figures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
