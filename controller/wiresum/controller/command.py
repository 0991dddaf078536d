"""`wiresum controller`: the join service of P4 switches."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wiresum.controller import config as configuration
from wiresum.controller.config import Config
from wiresum.controller.logs import log_options, say
from wiresum.controller.serving import raise_file_limit, stop_on_signals
from wiresum.controller.supervisor import Supervisor
from wiresum.join import PROTOCOL_VERSION
from wiresum.join.constants import STATE_SCHEMA

if TYPE_CHECKING:
    from wiresum.controller.p4runtime import Target
    from wiresum.controller.store import Store

log = logging.getLogger(__name__)

EXIT_DEMOTED = 3
"""Exit status after another controller has taken over: a supervisor should not start this one again as it was."""

PLANS_AT_ONCE = 16
"""How many switches `plan` and `check` ask at a time."""
NO_PROGRAM = "no program yet"
STORE_RETRY_S = 5.0
"""Time until a standby that could not use the state, for instance since its disk is full, stands by again."""

PARAGRAPH = "\n\n\b\n"
"""A mark for click, which leaves the following text as it is written, up to the next empty line."""
EPILOG = PARAGRAPH.join(
    [
        "The configuration, all of it (TOML):",
        *configuration.EXAMPLE.split("\n\n"),
        "Examples:\n"
        "  simple_switch_grpc --no-p4 -i 0@veth0 -i 1@veth1 -- --grpc-server-addr 127.0.0.1:9559\n"
        "  wiresum controller check --config cluster.toml\n"
        "  wiresum controller --config cluster.toml\n"
        "  wiresum jobs --switch 10.0.0.2:43487\n",
    ]
)


class _Demoted(click.ClickException):
    exit_code = EXIT_DEMOTED


class _RunByDefault(click.Group):
    """A group that runs `run` if no subcommand is named."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        if arguments and arguments[0] not in self.commands and arguments[0] not in context.help_option_names:
            arguments = ["run", *arguments]
        return super().parse_args(context, arguments)


@click.group(cls=_RunByDefault, epilog=EPILOG)
def controller() -> None:
    """Run the controller of switches that run the P4 program: bmv2, a Tofino, or `wiresum switch --p4runtime`.

    `wiresum controller --config FILE` is `wiresum controller run --config FILE`: it loads the program into switches
    that do not run it, over P4Runtime, and serves the join requests of workers, whose jobs become entries of the
    switches' tables.
    """


_config_option = click.option(
    "--config",
    "config_path",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Which switches, which hosts, and where workers join.",
)


@controller.command()
@_config_option
@click.option("--standby", is_flag=True, help="Wait until no other controller programs the switches, then take over.")
@log_options
def run(config_path: Path, standby: bool) -> None:
    """Serve until SIGINT or SIGTERM.

    With `state` in the configuration jobs go on while no controller runs, whether it was stopped or killed: the next
    controller reads the switches, puts right what differs, and the workers find it again. Without `state`, the workers
    of every job are told that the job ends.

    A controller that is started with the same state takes over from one that runs, which then ends with status 3. One
    that is started with --standby waits, for as long as another is there.
    """
    from wiresum.controller import controlling
    from wiresum.controller.store import Store

    config = _load(config_path)
    if standby and config.state is None:
        raise click.ClickException(f"--standby needs `state` under [controller] in {config_path}: it takes that over")
    with contextlib.ExitStack() as cleanup, _explained():
        raise_file_limit()
        supervisor = Supervisor()
        cleanup.callback(supervisor.stopping)
        stop = cleanup.enter_context(stop_on_signals())
        controlling.check_listening(config)
        controlling.check_files(config)
        targets = controlling.targets(config)
        log.info("this controller has %s", _versions())
        store = cleanup.enter_context(contextlib.closing(Store(config.state))) if config.state else None

        def announce(text: str) -> None:
            say(text)
            supervisor.ready(text)

        take_turns(config, targets, store, stop, announce, supervisor.beat, standby=standby)


def take_turns(
    config: Config,
    targets: Sequence[Target],
    store: Store | None,
    stop: threading.Event,
    announce: Callable[[str], None],
    beat: Callable[[], None],
    *,
    standby: bool,
) -> None:
    """Serves until told to stop. `standby`: waits for its turn first, and again when another controller has taken
    over."""
    from wiresum.controller import controlling
    from wiresum.controller.controlling import DemotedError
    from wiresum.controller.store import StoreError

    while not stop.is_set():
        if standby and store is not None:
            announce(f"standing by: {', '.join(target.name for target in targets)}")
            if not controlling.stand_by(config, targets, store, stop, beat):
                return
        try:
            controlling.serve(config, targets, store, stop, announce, beat)
        except DemotedError as error:
            if not standby:
                raise _Demoted(
                    f"{error}. Start it with --standby, and it waits for its turn instead (its unit does)"
                ) from error
            log.warning("%s", error)
        except StoreError as error:
            if not standby:
                raise
            log.error("%s. This controller stands by, and tries again in %.0f s", error, STORE_RETRY_S)
            stop.wait(STORE_RETRY_S)


@controller.command()
@_config_option
def check(config_path: Path) -> None:
    """Say whether a configuration, its certificates, programs and files are in order, and what tenants may have.

    Nothing is changed. The switches are asked for their versions, and software switches whether they can have the sizes
    that the configuration gives; a switch of another release is named, with what to upgrade. Run this as the user of
    the service, who must be able to write the state.
    """
    from wiresum.controller import controlling

    config = _load(config_path)
    with _explained():
        controlling.check_listening(config)
        controlling.check_files(config)
        targets = controlling.targets(config)
        notes = _ask_switches(targets)
        on_disk = controlling.on_disk(config)
        entries = [entry for of_node in on_disk.jobs.values() for entry in of_node]
        jobs = len({entry.key for entry in entries})  # one may have several switches
    hosts = sum(len(target.hosts) for target in targets)
    names = ", ".join(f"{target.name} ({target.kind}{_below(target)})" for target in targets)
    click.echo(f"{config_path} is in order: {names}; {hosts} hosts; {jobs} running jobs on disk")
    click.echo(f"this installation has {_versions()}")
    for quota in config.quotas:
        click.echo(f"{f'tenant {quota.name}' if quota.name else 'each other tenant'}: {quota.in_full()}")
    for note in notes:
        click.echo(note)
    for record in on_disk.set_aside:
        click.echo(
            f"the record of job {record.name}, at {record.switch_name}, is set aside, and the job does not go on: "
            f"{record.why}. `wiresum jobs discard` removes it (docs/operations.md, Records set aside)"
        )


@controller.command()
@_config_option
def plan(config_path: Path) -> None:
    """Print what `run` would change at the switches, and change nothing.

    A line for each entry: + would come, - would go, ~ would change. The last line of each switch says how much of its
    slots, job numbers, tables and multicast groups the running jobs take. Exits with status 0 also if something would
    change, and with 1 if a switch does not answer.
    """
    from wiresum.controller import controlling
    from wiresum.controller.driver import DriverError
    from wiresum.controller.plan import plan as plan_switch
    from wiresum.controller.plan import room

    config = _load(config_path)
    with _explained():
        jobs, keys, _ = controlling.on_disk(config)
        targets = controlling.targets(config)
    silent = False
    with ThreadPoolExecutor(PLANS_AT_ONCE) as pool:
        plans = [pool.submit(plan_switch, target.with_keys(keys), jobs[target.name]) for target in targets]
    for target, planned in zip(targets, plans, strict=True):
        try:
            lines = planned.result()
        except DriverError as error:
            silent = True
            click.ClickException(str(error)).show()
            continue
        click.echo(f"{target.name}{_below(target)}: {len(lines) or 'no'} change{'s' * (len(lines) != 1)}")
        for line in lines:
            click.echo(f"  {line}")
        pipes = [other for other in targets if other.part_of and other.part_of == target.part_of]
        beside = [job for other in pipes if other is not target for job in jobs[other.name]]
        click.echo(f"  taken by jobs: {room(target, jobs[target.name], beside)}")
    if silent:
        raise click.exceptions.Exit(1)


def _versions() -> str:
    from wiresum.controller.p4runtime.versions import ours

    return f"{ours()}, join protocol {PROTOCOL_VERSION}, state schema {STATE_SCHEMA}"


def _ask_switches(targets: Sequence[Target]) -> list[str]:
    """A line for each switch: its versions, or that it does not answer. Raises a `SetupError` if a software switch
    cannot have its sizes."""
    from wiresum.controller.controlling import SetupError
    from wiresum.controller.plan import ask

    notes = []
    with ThreadPoolExecutor(PLANS_AT_ONCE) as pool:
        for target, asked in zip(targets, pool.map(ask, targets), strict=True):
            if asked is None:
                notes.append(f"{target.name} does not answer, so its versions and sizes were not looked at")
            elif asked.problem:
                raise SetupError(
                    f"switch {target.name} at {target.p4runtime} is not as it is configured: {asked.problem}. Change "
                    f"lanes and slots here, or start the switch with others"
                )
            else:
                notes.append(f"{target.name} {asked.outdated or f'has {str(asked.versions) or NO_PROGRAM}'}")
    return notes


def _below(target: Target) -> str:
    return f", below {target.parent.name}" if target.parent else ""


def _load(path: Path) -> Config:
    try:
        return configuration.load(path)
    except configuration.ConfigError as error:
        raise click.ClickException(str(error)) from error


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turns errors of the host, the switches or the state into messages without a traceback."""
    from wiresum.controller.controlling import SetupError
    from wiresum.controller.driver import DriverError
    from wiresum.controller.store import StoreError
    from wiresum.join.credentials import CredentialsError

    try:
        yield
    except (SetupError, DriverError, StoreError, CredentialsError, OSError) as error:
        raise click.ClickException(str(error)) from error
