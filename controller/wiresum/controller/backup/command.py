"""`wiresum backup` and `wiresum restore`."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import click

from wiresum.controller import config as configuration
from wiresum.controller.backup import archive as archives
from wiresum.controller.backup import parts
from wiresum.controller.backup.archive import ArchiveError
from wiresum.controller.backup.parts import BackupError
from wiresum.controller.config import ConfigError
from wiresum.join.release import software_version

ArchivePath = click.Path(dir_okay=False, path_type=Path)
_archive_argument = click.argument("archive", type=ArchivePath)
_config_option = click.option(
    "--config",
    "config_path",
    type=ArchivePath,
    required=True,
    help="The controller's configuration, which says where its state is.",
)


@click.command(
    epilog="""\b
Examples:
  wiresum backup --config /etc/wiresum/cluster.toml wiresum-$(date +%F).tar
  tar -xOf wiresum-2026-11-28.tar manifest.json        what is in it
"""
)
@_archive_argument
@_config_option
def backup(archive: Path, config_path: Path) -> None:
    """Write a controller's state into one file, also while the controller serves.

    The file holds the database as one moment left it, and the ledger of keys. Only its owner may read it: it holds the
    tokens of jobs, and the secret from which their keys are drawn. Configuration and certificates are not in it.

    ARCHIVE must not be there yet. Run it as the service's user, or as root.
    """
    with _explained(f"{archive} was not written"), tempfile.TemporaryDirectory(prefix="wiresum-backup-") as folder:
        state = _state_of(config_path)
        if archive.exists():
            raise BackupError("it is there already: name another file")
        click.echo(f"copying {state}")
        files, contents = parts.collect(state, Path(folder))
        size = archives.write(archive, files, made_at=time.time(), software_version=software_version())
    click.echo(f"{archive}: {size >> 10} KiB, with {contents}; {', '.join(files)}")


@click.command(
    epilog="""\b
Examples:
  wiresum restore --config /etc/wiresum/cluster.toml wiresum-2026-11-28.tar
  wiresum restore --config /etc/wiresum/cluster.toml --force wiresum-2026-11-28.tar
      in place of the state that is there
"""
)
@_archive_argument
@_config_option
@click.option("--force", is_flag=True, help="Replace files that are there already.")
def restore(archive: Path, config_path: Path, force: bool) -> None:
    """Put a controller's state back from a backup, while no controller uses it.

    The whole archive is checked before anything is written. On a new host the configuration must be there first.

    Jobs that the backup knows and that still run go on when the controller starts. Jobs that began since the backup
    end, since nobody knows them; so do jobs that have ended meanwhile, once more. Names that
    operators created jobs for, and switches that are drained, are as they were. No key is used twice: every switch
    knows how many it was given, and the controller goes on behind that. Its log, `wiresum jobs` and the metric
    wiresum_state_past then say that the state is an old one, until its next start.
    """
    with (
        _explained(f"{archive} was not restored"),
        archive.open("rb") as file,
        tempfile.TemporaryDirectory(prefix="wiresum-restore-") as folder,
    ):
        state = _state_of(config_path)
        manifest = archives.unpack(file, Path(folder))
        click.echo(f"{archive} is whole, and of {_moment(manifest.made_at)}")
        contents = parts.restore(Path(folder), state, force=force)
    give = f" (`chown -R wiresum: {state}` gives it to the service)" if state.stat().st_uid == 0 else ""
    click.echo(
        f"restored to {state}, with {contents}. The controller must run as the owner of {state}{give}; when it starts, "
        f"it ends the jobs that it does not know"
    )


def _state_of(config_path: Path) -> Path:
    """The folder of the state that a configuration names."""
    try:
        state = configuration.load(config_path).state
    except ConfigError as error:
        raise BackupError(str(error)) from None
    if state is None:
        raise BackupError(f"{config_path} names no `state`: a controller without one keeps none")
    return state


def _moment(unix_s: float) -> str:
    try:
        return f"{datetime.fromtimestamp(unix_s, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "an unknown time"


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except (ArchiveError, BackupError) as error:
        raise click.ClickException(f"{what}: {error}") from error
    except OSError as error:
        raise click.ClickException(f"{what}: {error.filename or 'its disk'}: {error.strerror}") from error
