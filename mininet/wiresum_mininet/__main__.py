"""Runs Mininet on a network with hosts that train, switches that run the switch program, and the controller.

    make mininet                                             the mininet> prompt, on four workers at one switch
    make mininet ARGS='--topology leaf-spine'                on another network, given by name or file
    make mininet ARGS='--switch software --rate 10 --loss 0.01'
    make mininet ARGS='train --epochs 2'                     a training, a table, a picture; no prompt
    make mininet ARGS='train --topology racks --gloo'        the same in two racks below a spine, beside Gloo
    make mininet ARGS=list                                   lists the topologies

docs/mininet.md is the tutorial. Needs root. Logs, a capture of each switch port, and the results of a training are in
the output folder. All processes end with this one, even if it is killed.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from wiresum_lab import REPOSITORY
from wiresum_lab.demos.digits.runs import Run
from wiresum_lab.demos.digits.training import Start, over_software_switch, train
from wiresum_lab.namespaces.star import termination_as_exit
from wiresum_lab.processes import ProgramError
from wiresum_mininet import mininet_package, topology, world
from wiresum_mininet.passage import Passage
from wiresum_mininet.programs import Program
from wiresum_mininet.topology import HostPlan, Shape, SwitchPlan, Topology, TopologyError

if TYPE_CHECKING:
    from wiresum_mininet.nodes import WiresumHost
    from wiresum_mininet.wiresum_net import WiresumNet

BMV2_INSTALL = "p4lang's packages (p4lang-bmv2) have it"
EXIT_USAGE, EXIT_INTERRUPTED = 2, 130
PROMPT, TRAIN, LIST = WHAT = ("prompt", "train", "list")


class UsageError(Exception):
    """A request that cannot be fulfilled on this machine; the text says what to do."""


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="make mininet ARGS='...'"
    )
    parser.add_argument("what", nargs="?", choices=WHAT, default=PROMPT, help="what to do (default: %(default)s)")
    parser.add_argument("--topology", default="one-switch", metavar="NAME|FILE", help="which network (one-switch)")
    parser.add_argument(
        "--switch", choices=("bmv2", "software"), help="kind of switch (bmv2 where simple_switch_grpc is on PATH)"
    )
    links = parser.add_argument_group("links whose shape the topology does not give")
    links.add_argument("--rate", type=float, metavar="MBIT", help="of each link, up to 1000 (unlimited)")
    links.add_argument("--delay", metavar="TIME", help='of each link and direction, like "2ms" (none; needs netem)')
    links.add_argument("--loss", type=float, default=0.0, metavar="SHARE", help="of the packets, each way (0)")
    training = parser.add_argument_group("train")
    training.add_argument("--epochs", type=int, default=2, help="passes over the training images (%(default)s)")
    training.add_argument("--seed", type=int, default=1, help="of split, order and parameters (%(default)s)")
    training.add_argument("--width", type=int, default=8, help="channels of the first layer (%(default)s)")
    training.add_argument(
        "--per-host", type=int, default=1, choices=range(1, 9), metavar="N", help="workers on each host (%(default)s)"
    )
    training.add_argument("--gloo", action="store_true", help="repeats the training over Gloo, on the same network")
    prompt = parser.add_argument_group("prompt")
    prompt.add_argument(
        "--commands",
        type=argparse.FileType(),
        metavar="FILE",
        help="run the commands in this file instead of the prompt",
    )
    parser.add_argument("--no-captures", action="store_true", help="write no pcaps, which fill disks in long trainings")
    parser.add_argument(
        "--log-level", default="warn", help="log level of bmv2; trace shows every table of every packet (warn)"
    )
    parser.add_argument("--output", type=Path, default=REPOSITORY / "build/mininet", help="folder (build/mininet)")
    return parser.parse_args(argv)


def check_machine(options: argparse.Namespace, console: Console) -> None:
    """Checks that the options are possible on this machine, and chooses the kind of switch if none is given. Raises
    `UsageError`."""
    if os.geteuid() != 0:
        raise UsageError("Mininet needs root: sudo make mininet")
    if missing := mininet_package.missing():
        raise UsageError(missing)
    has_bmv2 = shutil.which("simple_switch_grpc") is not None
    if options.switch == "bmv2" and not has_bmv2:
        raise UsageError(f"simple_switch_grpc is not on PATH: {BMV2_INSTALL}. Or take --switch software")
    asked = [switch.name for switch in topology.find(options.topology).switches if switch.kind == topology.BMV2]
    if asked and not has_bmv2:
        raise UsageError(f"{', '.join(asked)} of {options.topology} must be bmv2: {BMV2_INSTALL}")
    if options.switch is None:
        options.switch = "bmv2" if has_bmv2 else "software"
        if not has_bmv2:
            console.print(f"simple_switch_grpc is not on PATH ({BMV2_INSTALL}): the switches are software switches")


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Locks the folder. Raises `UsageError` if another network uses it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"a network is running that uses {folder}: choose another --output") from None
        yield


def inside(options: argparse.Namespace, console: Console) -> int:
    """Builds the network, and runs the command in it; called in the PID namespace."""
    from mininet.log import output, setLogLevel

    from wiresum_mininet.nodes import Workplace
    from wiresum_mininet.prompt import Prompt
    from wiresum_mininet.wiresum_net import WiresumNet

    plan = topology.find(options.topology)
    name_hosts(plan, options.output)
    shape = Shape(options.rate, options.delay, options.loss)
    setLogLevel("info" if options.what == PROMPT else "warning")
    workplace = Workplace(options.output.resolve(), options.log_level, not options.no_captures)
    with WiresumNet(plan, kind=options.switch, workplace=workplace, shape=shape) as net:
        if options.what == PROMPT:
            output(
                f"{plan.name}: {plan.about}.\n"
                f"The switches are of the kind {options.switch}; the controller runs at {net.control}.\n"
                f"Logs and captures are in {options.output}.\n"
            )
            Prompt(net, options.commands)
            return 0
        passages = [passage(net, "wiresum", options), *([passage(net, "gloo", options)] if options.gloo else [])]
    options.workers = len(plan.workers) * options.per_host
    return report(passages, over_software_switch(options), options)


def passage(net: WiresumNet, backend: str, options: argparse.Namespace) -> Passage:
    """Trains with all workers, and measures the traffic."""
    before = net.port_bytes()
    run = Run("mininet" if backend == "wiresum" else backend, backend)
    train([run], [starter(host) for host in net.workers for _ in range(options.per_host)], {}, options)
    after = net.port_bytes()
    return Passage(run, {port: (after[port][0] - before[port][0], after[port][1] - before[port][1]) for port in after})


def name_hosts(plan: Topology, folder: Path) -> None:
    """Makes host names resolvable in this mount namespace, since PyTorch looks them up. The machine's own name is
    loopback in every namespace."""
    nodes: list[HostPlan | SwitchPlan] = [*plan.hosts, *plan.switches]
    names = {"127.0.0.1": f"localhost {socket.gethostname()}"}
    names |= {node.address: node.name for node in nodes if node.address}
    lines = [f"{form}{address} {name}\n" for form in ("", "::ffff:") for address, name in names.items()]
    (folder / "hosts").write_text("".join(lines))
    subprocess.run(["mount", "--bind", str(folder / "hosts"), "/etc/hosts"], check=True)


def starter(host: WiresumHost) -> Start:
    """A function that starts a worker of the training at a host of Mininet."""

    return lambda command, log, variables: Program(host, command, log, {**host.variables, **variables})


def report(passages: Sequence[Passage], loopback: Run, options: argparse.Namespace) -> int:
    """Prints a table and writes picture and JSON. Returns the exit code: 0 if all parameters are the same."""
    from wiresum_mininet.training_picture import draw

    run, ports = passages[0]
    workers = len(run.digests)
    same = run.parameters_identical(workers) and set(run.digests.values()) == set(loopback.digests.values())
    console: Console = options.console
    console.print(training_table(passages, loopback))
    console.print(port_table(passages))
    verdict = "bit for bit the same" if same else "NOT the same"
    console.print(f"Parameters of all workers, here and over a software switch on loopback: {verdict}.")
    title = f"{workers} workers, topology {options.topology}, {options.switch}"
    draw(passages, options.output / "run.png", title=title)
    found = {
        "topology": options.topology,
        "switch": options.switch,
        "parameters_identical": same,
        "digests": sorted(set(run.digests.values())),
        "accuracy": run.accuracy,
        "seconds": run.seconds,
        "goodput_mbit": run.goodput_mbit,
        "retransmissions": run.retransmissions,
        "steps": run.steps,
        "ports": port_record(ports),
        "ports_gloo": port_record(passages[1].ports) if len(passages) > 1 else None,
    }
    (options.output / "run.json").write_text(json.dumps(found, indent=2) + "\n")
    console.print(f"{options.output / 'run.json'}\n{options.output / 'run.png'}", highlight=False)
    return 0 if same else 1


def port_record(ports: Mapping[str, tuple[int, int]]) -> dict[str, dict[str, int]]:
    return {name: {"bytes_in": counts[0], "bytes_out": counts[1]} for name, counts in ports.items()}


def training_table(passages: Sequence[Passage], loopback: Run) -> Table:
    table = Table("", "accuracy", "seconds", "goodput, Mbit/s", "packets sent again")
    names = [("in Mininet", passages[0].run), *((f"over {one.run.name}", one.run) for one in passages[1:])]
    for name, one in (*names, ("on loopback", loopback)):
        again = "-" if one.backend == "gloo" else str(one.retransmissions)
        table.add_row(name, f"{one.accuracy:.2%}", f"{one.seconds:.1f}", f"{one.goodput_mbit:.1f}", again)
    return table


def port_table(passages: Sequence[Passage]) -> Table:
    beside = [f", {one.run.name}" for one in passages[1:]]
    table = Table("port", *(f"MB {way}{whose}" for whose in ("", *beside) for way in ("in", "out")))
    for port in passages[0].ports:
        table.add_row(port, *(f"{count / 1e6:.2f}" for one in passages for count in one.ports[port]))
    return table


def list_topologies(console: Console) -> None:
    table = Table("topology", "what it is", "hosts", "switches")
    for name in topology.names():
        plan = topology.find(name)
        switches = ", ".join(f"{switch.name} ({switch.role})" for switch in plan.switches)
        table.add_row(name, plan.about, ", ".join(host.name for host in plan.hosts), switches)
    console.print(table)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = parse_arguments(arguments)
    options.console = console = Console(soft_wrap=True)
    try:
        if options.what == LIST:
            list_topologies(console)
            return 0
        topology.find(options.topology)
        Shape(options.rate, options.delay, options.loss)
        if not world.is_inside():
            check_machine(options, console)
            with alone_in(options.output):
                return world.run([__file__, *arguments, "--switch", options.switch])
        mininet_package.import_mininet()
        with termination_as_exit():
            return inside(options, console)
    except (UsageError, TopologyError, ValueError) as error:
        console.print(str(error), style="red", markup=False)
        return EXIT_USAGE
    except ProgramError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("Interrupted; everything that was started has been stopped.")
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
