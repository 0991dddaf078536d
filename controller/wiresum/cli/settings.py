"""`wiresum settings`: lists the environment variables that a worker reads."""

from __future__ import annotations

import json
import os
import re
import textwrap

import click

from wiresum.cli.options import json_option

COLUMNS = 100
INDENT = 24


@click.command(epilog="\b\nExample:\n  WIRESUM_THREADS=2 wiresum settings")
@json_option
def settings(as_json: bool) -> None:
    """List the environment variables that a worker reads, and the values that it would use here. Variables that other
    programs read come last."""
    from wiresum.agent.config import OTHER_VARIABLES, AgentConfig, settings_of

    try:
        config = AgentConfig.from_environment()
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    values = {
        name: "(not shown)" if setting.secret else getattr(config, name) for name, setting in settings_of().items()
    }
    if as_json:
        click.echo(json.dumps({setting.variable: values[name] for name, setting in settings_of().items()}))
        return
    for name, setting in settings_of().items():
        is_set = bool(os.environ.get(setting.variable, "").strip())
        shown = values[name] if is_set or not setting.default_shown else setting.default_shown
        click.echo(f"{setting.variable:{INDENT - 1}} {shown}{'   (from the environment)' if is_set else ''}")
        explained = re.sub(r"\[([^]]*)\]\(([^)]*)\)", r"docs/\1", setting.help).replace("`", "")
        click.echo(textwrap.indent(textwrap.fill(explained, COLUMNS - INDENT), " " * INDENT))
    for variable, help_text in OTHER_VARIABLES.items():
        click.echo(f"{variable:{INDENT - 1}} {os.environ.get(variable, '')}".rstrip())
        click.echo(textwrap.indent(help_text, " " * INDENT))
