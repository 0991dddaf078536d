"""`wiresum paths`: prints where parts of this installation are."""

from __future__ import annotations

from pathlib import Path

import click

EPILOG = """\b
Examples:
  export PKG_CONFIG_PATH=$(wiresum paths pkg-config)
  cc app.c $(pkg-config --cflags --libs wiresum)
  cmake -B build -D wiresum_DIR=$(wiresum paths cmake)
  export LD_LIBRARY_PATH=$(wiresum paths nccl)
  ls $(wiresum paths docs)
"""


@click.command(epilog=EPILOG)
@click.argument(
    "what", required=False, type=click.Choice(["docs", "library", "include", "pkg-config", "cmake", "nccl", "openmpi"])
)
def paths(what: str | None) -> None:
    """Print where parts of this installation are: the pages that helps and errors name as docs/..., and the folders of
    the C library, its header, its pkg-config file, its CMake package, NCCL's plug-in, and Open MPI's component."""
    found = {"docs": _docs()}
    if what != "docs":
        found |= _native_parts(what)
    if what is not None:
        click.echo(found[what])
        return
    for name, path in found.items():
        click.echo(f"{name:11} {path}")


def _docs() -> Path:
    """The pages' folder in the installation, or in the checkout that this runs from."""
    here = Path(__file__).resolve()
    installed = here.with_name("docs")
    return installed if installed.is_dir() else here.parents[3] / "docs"


def _native_parts(what: str | None) -> dict[str, Path]:
    from wiresum.agent import _native

    folder = Path(str(_native.__file__)).resolve().parent
    found = {
        "library": folder,
        "include": folder / "include",
        "pkg-config": folder / "pkgconfig",
        "cmake": folder / "cmake",
        "nccl": folder / "nccl",
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
    return found
