"""`wiresum man`: a manual page of each command, from what --help shows."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import click

SECTION = 1
FOLDER = Path(sys.prefix) / "share" / "man" / f"man{SECTION}"
"""Where `man` looks, if this installation's `bin` is on PATH."""


@click.command(epilog="\b\nExamples:\n  wiresum man\n  man wiresum-switch\n  wiresum man ~/.local/share/man/man1")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=FOLDER)
def man(directory: Path) -> None:
    """Write the manual pages of all commands.

    They say what --help says. Without a DIRECTORY they go to where `man` finds them for this installation.
    """
    from wiresum.cli.main import main

    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in pages(main, "wiresum"):
            (directory / f"{name.replace(' ', '-')}.{SECTION}").write_text(text)
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename}: {error.strerror}") from error
    click.echo(directory)


def pages(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[tuple[str, str]]:
    """Of a command and of those below it: each one's full name, and the text of its page.

    A command whose part is not installed is left out, with those below it.
    """
    context = click.Context(command, info_name=name.rpartition(" ")[2], parent=parent)
    below = []
    if isinstance(command, click.Group):
        for word in command.list_commands(context):
            try:
                found = command.get_command(context, word)
            except click.ClickException:
                continue
            if found is not None:
                below.append((f"{name} {word}", found))
    yield name, _page(command, context, name, [each for each, _ in below])
    for each, found in below:
        yield from pages(found, each, context)


def _page(command: click.Command, context: click.Context, name: str, below: list[str]) -> str:
    title = name.replace(" ", "-")
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [
        f'.TH "{title.upper()}" {SECTION} "" "wiresum {_version()}" "Wiresum"',
        f".SH NAME\n{_text(title)} \\- {_text(command.get_short_help_str(1000))}",
        f".SH SYNOPSIS\n.B {_text(name)}\n{_text(usage)}",
        f".SH DESCRIPTION\n{_prose(inspect.cleandoc(command.help or ''))}",
    ]
    records = [record for each in command.get_params(context) if (record := each.get_help_record(context))]
    options = [(flag, what) for flag, what in records if what]  # an argument has none: the description names it
    if options:
        parts.append("\n".join([".SH OPTIONS", *(f".TP\n.B {_text(flag)}\n{_text(what)}" for flag, what in options)]))
    if command.epilog:
        parts.append(f".SH NOTES\n{_prose(inspect.cleandoc(command.epilog))}")
    if below or " " in name:
        others = [name.rpartition(" ")[0]] * (" " in name) + below
        parts.append(
            ".SH SEE ALSO\n" + ",\n".join(f".BR {_text(each.replace(' ', '-'))} ({SECTION})" for each in others)
        )
    return "\n".join(parts) + "\n"


def _prose(text: str) -> str:
    """Paragraphs; one that begins with \\b keeps its lines, as in click."""
    shown = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        kept = paragraph.startswith("\b\n")
        escaped = _text(paragraph.removeprefix("\b\n"))
        shown.append(f".nf\n{escaped}\n.fi" if kept else escaped)
    return "\n.PP\n".join(shown)


def _text(text: str) -> str:
    """As troff shows it unchanged."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"(?m)^([.'])", r"\\&\1", escaped)


def _version() -> str:
    try:
        return metadata.version("wiresum")
    except metadata.PackageNotFoundError:
        return ""
