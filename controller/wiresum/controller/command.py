"""`wiresum controller`: the join service of a P4 switch."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import click

from wiresum import compiled
from wiresum.controller import config as configuration
from wiresum.controller.config import Config
from wiresum.controller.driver import DriverError
from wiresum.controller.p4runtime import Client, P4RuntimeSwitch
from wiresum.controller.service import JoinServer
from wiresum.controller.serving import stop_on_signals

WAIT_S_MAX = 0.5
"""Longest sleep of the main thread between two looks at whether the switch is still there."""

PARAGRAPH = "\n\n\b\n"
"""Click leaves what follows as it is written, up to the next empty line."""
EPILOG = PARAGRAPH.join(
    [
        "The configuration, all of it (TOML):",
        *configuration.EXAMPLE.split("\n\n"),
        "Examples:\n"
        "  simple_switch_grpc --no-p4 -i 0@veth0 -i 1@veth1 -- --grpc-server-addr 127.0.0.1:9559\n"
        "  wiresum controller --config cluster.toml\n"
        "  wiresum jobs --switch 10.0.0.2:43487\n",
    ]
)


@click.command(epilog=EPILOG)
@click.option(
    "--config",
    "config_path",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Which switch, which hosts, and where workers join.",
)
@click.option("--verbose", "-v", is_flag=True, help="Log what the join service and the P4Runtime client do.")
def controller(config_path: Path, verbose: bool) -> None:
    """Run the controller of a switch that runs the P4 program.

    It loads the program into the switch, over P4Runtime, and serves the join requests of workers: their jobs become
    entries of the switch's tables. It serves until SIGINT or SIGTERM, and then tells the workers of every job that it
    ends. If the switch is lost it tells them too, and exits with status 1: let a supervisor start it again.
    """
    _set_up_logging(verbose=verbose)
    try:
        config = configuration.load(config_path)
    except configuration.ConfigError as error:
        raise click.ClickException(str(error)) from error
    with contextlib.ExitStack() as cleanup:
        stop = cleanup.enter_context(stop_on_signals())
        device = cleanup.enter_context(_connected(config))
        service = JoinServer(device)
        host, port = config.listen
        try:
            port = service.start(host, port)
        except OSError as error:
            raise click.ClickException(str(error)) from error
        cleanup.callback(service.stop)
        sizes, data = device.sizes, device.endpoint
        click.echo(
            f"ready: control {host}:{port}, data {data.address}:{data.port}-{data.port + sizes.threads_max - 1} "
            f"({device.name}, {len(config.hosts)} hosts, {sizes.slots} slots, {sizes.lanes_max} lanes)"
        )
        while not stop.wait(WAIT_S_MAX):
            if device.lost:
                raise click.ClickException(f"{device.lost}. Start the switch again, and then this controller")


@contextlib.contextmanager
def _connected(config: Config) -> Iterator[P4RuntimeSwitch]:
    """The switch, with our program and the hosts of the configuration, and without jobs."""
    program = compiled.load("v1model")
    try:
        client = Client(config.switch.p4runtime, config.switch.device, program)
        with contextlib.closing(client):
            device = P4RuntimeSwitch(
                client, program, address=config.switch.address, mac=config.switch.mac, hosts=config.hosts
            )
            with contextlib.closing(device):
                yield device
    except DriverError as error:
        raise click.ClickException(str(error)) from error


def _set_up_logging(*, verbose: bool) -> None:
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # finsy warns of what every bmv2 lacks, and shows a stack for what `Client` says in a sentence.
    logging.getLogger("finsy").setLevel(logging.INFO if verbose else logging.CRITICAL + 1)
