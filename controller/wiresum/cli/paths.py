"""`wiresum paths`."""

from __future__ import annotations

from pathlib import Path

import click

from wiresum.agent import _native


@click.command(
    epilog="\b\nExample:\n  export PKG_CONFIG_PATH=$(wiresum paths pkg-config)\n"
    "  cc app.c $(pkg-config --cflags --libs wiresum)\n"
    "  cmake -B build -D wiresum_DIR=$(wiresum paths cmake)"
)
@click.argument("what", required=False, type=click.Choice(["library", "include", "pkg-config", "cmake", "openmpi"]))
def paths(what: str | None) -> None:
    """Print where the parts for other languages are: the folders of the C library, its header, its pkg-config file, its
    CMake package, and Open MPI's component."""
    folder = Path(str(_native.__file__)).resolve().parent
    found = {
        "library": folder,
        "include": folder / "include",
        "pkg-config": folder / "pkgconfig",
        "cmake": folder / "cmake",
    }
    if (folder / "openmpi" / "mca_coll_wiresum.so").exists():
        found["openmpi"] = folder / "openmpi"
    elif what == "openmpi":
        raise click.ClickException(
            "this installation has no component for Open MPI, which is built where Open MPI's own headers are. On "
            "Debian or Ubuntu: apt-get install libopenmpi-dev, then install wiresum from source"
        )
    if not (folder / "libwiresum.so.1").exists():
        raise click.ClickException(f"this installation has no C library: {folder}/libwiresum.so.1 is not there")
    if what is not None:
        click.echo(found[what])
        return
    for name, path in found.items():
        click.echo(f"{name:11} {path}")
