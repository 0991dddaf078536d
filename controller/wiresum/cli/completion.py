"""`wiresum completion`: what a shell needs to complete commands, options, and the names of jobs and switches."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

EPILOG = """\b
Examples:
  eval "$(wiresum completion bash)"                              in ~/.bashrc
  eval "$(wiresum completion zsh)"                               in ~/.zshrc
  wiresum completion fish > ~/.config/fish/completions/wiresum.fish
"""


@click.command(epilog=EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that makes a shell complete this command.

    It completes names of jobs and switches too, for which it asks the service that WIRESUM_SWITCH or --switch names.
    """
    from wiresum.cli.main import main

    made_for = get_completion_class(shell)
    assert made_for is not None, f"click completes for {shell}"
    click.echo(made_for(main, {}, "wiresum", "_WIRESUM_COMPLETE").source())
