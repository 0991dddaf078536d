"""Runs `wiresum` with the version numbers of another release.

    python -m wiresum_lab.other_release --software 0.0.9 --program 1 controller --config cluster.toml

Programs distinguish releases by these numbers alone, so nothing else is changed.
"""

from __future__ import annotations

import dataclasses
import functools
import sys

import click

from wiresum import compiled, join
from wiresum.join import constants, release


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--software", default="0.0.9", show_default=True, help="The release.")
@click.option("--program", default="", help="Version of the switch program.")
@click.option("--build", default="", help="What its P4Info has as its organisation, so that its digest is another.")
@click.option("--join-protocol", type=int, default=constants.PROTOCOL_VERSION)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def main(software: str, program: str, build: str, join_protocol: int, command: tuple[str, ...]) -> None:
    release.software_version = functools.cache(lambda: software)
    constants.PROTOCOL_VERSION = join.PROTOCOL_VERSION = join_protocol
    ours = compiled.load("v1model")
    version, wanted = f'version: "{ours.version}"', f'version: "{program or ours.version}"'
    if build:
        wanted += f'\n  organization: "{build}"'
    assert ours.p4info.count(version) == 1, "P4Info has one version"
    theirs = dataclasses.replace(ours, p4info=ours.p4info.replace(version, wanted))
    compiled.load = functools.cache(lambda target: theirs)

    from wiresum.cli.main import main as wiresum

    sys.argv = ["wiresum", *command]
    wiresum()


if __name__ == "__main__":
    main()
