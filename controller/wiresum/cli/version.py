"""`wiresum version`."""

from __future__ import annotations

import json
import platform
from importlib import metadata

import click

from wiresum.cli import versions
from wiresum.cli.options import json_option

PACKAGES = ("torch", "grpcio", "protobuf", "numpy")


@click.command(epilog="\b\nExample:\n  wiresum version --json")
@json_option
def version(as_json: bool) -> None:
    """Print which versions are installed: every bug report needs this.

    A development build of Wiresum says its commit. Workers and controllers must have one join protocol; controllers one
    state schema; controllers and software switches one switch program.
    """
    ours = versions.installed()
    found: dict[str, str | None] = {"wiresum": ours.pop("wiresum")}
    found |= {name: _version_of(name) for name in PACKAGES}
    found |= {**ours, "python": platform.python_version()}
    if as_json:
        click.echo(json.dumps(found))
        return
    for name, value in found.items():
        click.echo(f"{name:14} {value or 'not installed'}")


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
