"""`wiresum version`."""

from __future__ import annotations

import json
import platform
from importlib import metadata

import click

from wiresum.cli.options import json_option

PACKAGES = ("wiresum", "torch", "grpcio", "protobuf", "numpy")


@click.command(epilog="\b\nExample:\n  wiresum version --json")
@json_option
def version(as_json: bool) -> None:
    """Print which versions are installed: every bug report needs this."""
    from wiresum.join import PROTOCOL_VERSION

    versions = {name: _version_of(name) for name in PACKAGES}
    versions |= {"join protocol": str(PROTOCOL_VERSION), "python": platform.python_version()}
    if as_json:
        click.echo(json.dumps(versions))
        return
    for name, value in versions.items():
        click.echo(f"{name:13} {value or 'not installed'}")


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
