"""`wiresum conformance`."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import Any

import click

from wiresum.conformance import frames
from wiresum.conformance.checks import Check, all_checks, chosen
from wiresum.conformance.report import Outcome, Report
from wiresum.conformance.scenarios import PROFILES
from wiresum.conformance.switch import Switch, SwitchError
from wiresum.conformance.wires import FENCE_S_MAX, Wires, open_interface
from wiresum.controller.driver import DriverError

EPILOG = f"""\
\b
Examples:
  wiresum conformance --list
      what is checked, and which rules of docs/protocol.md each check proves
  wiresum conformance --p4runtime 127.0.0.1:9559 --ports 0=veth0,1=veth1
      bmv2 that runs on this machine; frames go in and out at these interfaces
  wiresum conformance --hook ./program-switch --ports 1=eth1,2=eth2 --profile required,question
      a switch without P4Runtime, that has no META contributions yet
  wiresum conformance --hook ./program-switch --ports 1=eth1,2=eth2 --only R3.7 --junit report.xml
      the checks of one rule

\b
Profiles:
{chr(10).join(f"  {name:14} {what}" for name, what in PROFILES.items())}
"""

FilePath = click.Path(dir_okay=False, exists=True, path_type=Path)


@click.command(epilog=EPILOG)
@click.option("--p4runtime", metavar="HOST:PORT", help="Program the switch over P4Runtime, which is at this address.")
@click.option("--hook", type=FilePath, help="Program the switch by this script (docs/conformance.md).")
@click.option("--ports", metavar="N=IF,...", default="", help="The interface behind each port of the switch.")
@click.option("--address", metavar="IPV4", default="10.111.0.1", show_default=True, help="The switch's address.")
@click.option("--mac", default="02:00:00:00:ff:fe", show_default=True, help="The switch's MAC address.")
@click.option(
    "--device", type=click.IntRange(0), default=0, show_default=True, help="The switch's P4Runtime device id."
)
@click.option(
    "--kind",
    type=click.Choice(["bmv2", "software"]),
    default="bmv2",
    show_default=True,
    help="The program to load. A software switch has no ports: number its interface 0.",
)
@click.option("--p4info", type=FilePath, help="Load a program of your own: its P4Info, as text.")
@click.option("--device-config", type=FilePath, help="And the device configuration that your server takes.")
@click.option("--lanes", type=click.IntRange(1), default=64, show_default=True, help="With --hook: words of a packet.")
@click.option("--slots", type=click.IntRange(1), default=4096, show_default=True, help="With --hook: slots there are.")
@click.option(
    "--profile",
    default=",".join(PROFILES),
    metavar="NAME,...",
    help="What the switch implements.  [default: all that is listed below]",
)
@click.option("--only", multiple=True, metavar="WHAT", help="Only these checks: a rule, a section, or names with *.")
@click.option("--seed", type=int, multiple=True, default=(1, 2, 3), help="Of a random sequence.  [default: 1, 2, 3]")
@click.option("--packets", type=click.IntRange(0), default=400, show_default=True, help="In each random sequence.")
@click.option(
    "--wait-s", type=float, default=FENCE_S_MAX, show_default=True, help="The longest that the switch is silent for."
)
@click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), help="Write a report there as JUnit XML.")
@click.option("--list", "lists", is_flag=True, help="List the checks, and run none.")
def conformance(lists: bool, only: tuple[str, ...], profile: str, junit: Path | None, **options: Any) -> None:
    """Check a switch against the protocol of docs/protocol.md.

    The suite puts jobs into the switch's tables, sends frames to its ports as workers would, and compares every byte
    that comes out, and the counters, with what the protocol requires: vectors that show each rule, frames that are odd,
    and random sequences beside a model. It needs root, for packet sockets, and a switch that does nothing else.

    The exit status is 0 if the switch passes, 1 if it fails, and 2 if the suite could not run.
    """
    profiles = _profiles(profile)
    checks = all_checks(options["seed"], options["packets"])
    wanted = chosen(checks, profiles, only)
    if only and not wanted:
        raise click.UsageError(f"no check of these profiles is called {', '.join(only)}: see --list")
    if lists:
        for check in wanted:
            click.echo(
                f"{check!s:80} {' '.join(check.rules) or 'by failure':20} {' '.join(sorted(check.needs))}".rstrip()
            )
        return
    with _explained(), _switch(profiles, options) as switch:
        report = Report(list(_outcomes(wanted, switch)), len(chosen(checks, PROFILES, only)) - len(wanted))
    click.echo("\n".join(report.lines()))
    if junit is not None:
        junit.write_text(report.junit())
    sys.exit(1 if report.failed else 0)


def _outcomes(checks: list[Check], switch: Switch) -> Iterator[Outcome]:
    with click.progressbar(checks, file=sys.stderr, item_show_func=lambda check: str(check or "")) as shown:
        yield from (Outcome(check, check.failures(switch)) for check in shown)


def _profiles(text: str) -> frozenset[str]:
    names = frozenset(name for name in text.split(",") if name) | {"required"}
    if unknown := sorted(names - PROFILES.keys()):
        raise click.UsageError(f"--profile: there is no {', '.join(unknown)}: there are {', '.join(PROFILES)}")
    return names


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Errors that keep the suite from running at all end with status 2."""
    try:
        yield
    except (DriverError, SwitchError, OSError) as error:
        raise click.UsageError(str(error)) from error


@contextlib.contextmanager
def _switch(profiles: frozenset[str], options: dict[str, Any]) -> Iterator[Switch]:
    p4runtime, hook = options["p4runtime"], options["hook"]
    if (p4runtime is None) == (hook is None):
        raise click.UsageError("give either --p4runtime or --hook, or --list")
    with contextlib.ExitStack() as cleanup:
        own = _own(options["address"], options["mac"])
        wires = Wires(_open(options["ports"], cleanup), own, fence_s_max=options["wait_s"])
        if hook is not None:
            from wiresum.conformance.hook import Hooked

            yield Hooked(hook.absolute(), wires, profiles, lanes=options["lanes"], slots=options["slots"])
        else:
            yield cleanup.enter_context(contextlib.closing(_programmed(p4runtime, wires, profiles, options)))


def _programmed(p4runtime: str, wires: Wires, profiles: frozenset[str], options: dict[str, Any]) -> Any:
    from wiresum.conformance.p4runtime import Programmed
    from wiresum.controller.p4runtime import Client, Pipeline, device_config, sizes

    if (options["p4info"] is None) != (options["device_config"] is None):
        raise click.UsageError("--p4info and --device-config belong together")
    if options["p4info"] is not None:
        info = sizes.parse(options["p4info"].read_text())
        pipeline = Pipeline(info, options["device_config"].read_bytes(), *sizes.sizes_of(info, str(options["p4info"])))
    elif options["kind"] == "software":
        pipeline = device_config.software()
    else:
        pipeline = device_config.bmv2()
    client = Client(p4runtime, options["device"], election_id=1)
    client.wait_ready()
    return Programmed(client, pipeline, wires, profiles)


def _open(ports: str, cleanup: contextlib.ExitStack) -> dict[int, socket.socket]:
    try:
        named = [pair.split("=") for pair in ports.split(",")]
        interfaces = {int(port): interface for port, interface in named}
    except ValueError:
        raise click.UsageError(f"--ports says 1=eth1,2=eth2 and the like, and not {ports!r}") from None
    opened = {}
    for port, interface in interfaces.items():
        try:
            opened[port] = cleanup.enter_context(open_interface(interface))
        except OSError as error:
            raise SwitchError(f"{interface}: {error.strerror} (packet sockets need root)") from error
    return opened


def _own(address: str, mac: str) -> frames.Host:
    try:
        return frames.Host(bytes.fromhex(mac.replace(":", "")), IPv4Address(address))
    except (AddressValueError, ValueError) as error:
        raise click.UsageError(f"--address or --mac: {error}") from None
