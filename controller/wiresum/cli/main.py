"""Lists the subcommands, and imports only the one that runs, so that `wiresum --help` answers at once."""

from __future__ import annotations

import importlib
import os
from typing import Any

import click

COMMANDS = {
    "backup": ("wiresum.controller.backup.command:backup", "Write a controller's state into one file."),
    "ca": ("wiresum.controller.security.command:ca", "Make the certificates of a cluster."),
    "conformance": ("wiresum.conformance.command:conformance", "Check a switch against the protocol."),
    "controller": (
        "wiresum.controller.command:controller",
        "Run the controller of one switch or several, with its join service.",
    ),
    "doctor": ("wiresum.cli.doctor:doctor", "Find out what is wrong with this host, a switch, a job."),
    "health": ("wiresum.cli.health:health", "Ask a switch or controller whether it is healthy, for probes."),
    "jobs": ("wiresum.cli.jobs:jobs", "List the jobs of a switch or controller; create, end, drain."),
    "paths": ("wiresum.cli.paths:paths", "Print where the pages, and the parts for C and for Open MPI, are."),
    "restore": ("wiresum.controller.backup.command:restore", "Put a controller's state back from a backup."),
    "settings": ("wiresum.cli.settings:settings", "List the environment variables that a worker reads."),
    "switch": ("wiresum.switch.command:switch", "Run a software switch, with its join service."),
    "top": ("wiresum.cli.top:top", "Show live what runs at a switch or controller."),
    "upgrade": ("wiresum.cli.upgrade:upgrade", "Say whether and how a cluster can be upgraded while jobs run."),
}
"""Where each subcommand is, and its one line of help."""

EXTRA_OF = {
    "cryptography": "controller",
    "finsy": "controller",
    "matplotlib": "demo",
    "numpy": "torch",
    "prometheus_client": "controller",
    "rich": "controller",
    "sklearn": "demo",
    "tomli": "controller",
    "torch": "torch",
}
"""The extra that installs a module which a subcommand may need. All other modules are always installed."""


class LazyGroup(click.Group):
    """A group whose subcommands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        # gRPC reads this variable when it is imported. Otherwise gRPC would log each failed handshake, which anybody
        # can cause, and not as JSON.
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        try:
            command: click.Command = getattr(importlib.import_module(module), name)
        except ImportError as error:
            raise click.ClickException(_what_is_missing(cmd_name, error)) from error
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a subcommand, and explains a module that the subcommand misses: it may import more while it runs."""
        try:
            return super().invoke(ctx)
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in EXTRA_OF:
                raise
            raise click.ClickException(_what_is_missing(ctx.invoked_subcommand or "", error)) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in sorted(COMMANDS.items())])


def _what_is_missing(command: str, error: ImportError) -> str:
    from wiresum.join.installation import how_to_install

    module = error.name or ""
    top = module.partition(".")[0]
    if top in EXTRA_OF:
        return f"'wiresum {command}' needs {top}, which is not installed: {how_to_install(EXTRA_OF[top])}"
    if top == "wiresum":
        return f"'wiresum {command}' needs {module}, which is not in this installation ({error}): {how_to_install()}"
    return f"'wiresum {command}' cannot be loaded ({error}): {how_to_install()}"


EPILOG = """\b
Examples:
  wiresum switch                            a switch at the usual ports
  WIRESUM_SWITCH=10.0.0.1:43487 torchrun --nproc-per-node 4 train.py
                                            workers of a job on that switch
  wiresum top --switch 10.0.0.1:43487       what goes on there
  wiresum doctor --switch 10.0.0.1:43487    what is wrong, here and there

\b
Completion, in bash (zsh and fish likewise):
  eval "$(_WIRESUM_COMPLETE=bash_source wiresum)"

\b
The pages named docs/...:
  ls $(wiresum paths docs)
"""


def _say_versions(context: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if not is_asked or context.resilient_parsing:
        return
    from wiresum.cli import versions

    for name, version in (versions.installed() | versions.of_packages()).items():
        click.echo(f"{name:14} {version or 'not installed'}")
    context.exit()


@click.command(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_say_versions,
    help="Show which versions of Wiresum, its protocols and what it uses are installed: every bug report needs this.",
)
def main() -> None:
    """Sum gradients in the network.

    A switch adds up the gradients of all workers of a job while they pass through it. Start a switch, then start
    training with init_process_group("wiresum").
    """
