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
from wiresum.controller.backup.archive import Archive, ArchiveError
from wiresum.controller.backup.parts import BackupError, Places
from wiresum.controller.config import Config, ConfigError
from wiresum.join.release import software_version

ArchivePath = click.Path(dir_okay=False, path_type=Path)
FolderPath = click.Path(file_okay=False, path_type=Path)
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
  wiresum backup --config /etc/wiresum/cluster.toml --tls --pki pki wiresum-all.tar
  tar -xOf wiresum-all.tar manifest.json        what is in it
"""
)
@_archive_argument
@_config_option
@click.option("--tls", is_flag=True, help="With the service's TLS directory, its private key among it.")
@click.option(
    "--pki", type=FolderPath, help="With the authority's certificate, and its lists of what it issued and revoked."
)
@click.option(
    "--authority-key", is_flag=True, help="With the authority's private key, too: whoever has it can pose as anybody."
)
def backup(archive: Path, config_path: Path, tls: bool, pki: Path | None, authority_key: bool) -> None:
    """Write a controller's state into one file, also while the controller serves.

    The file holds the database as one moment left it, the ledger of keys, and the configuration. Only its owner may
    read it: it holds the tokens of jobs, and the secret from which their keys are drawn. Private keys of certificates
    are in it only if you ask for them. Better keep them out, and issue new certificates after a loss.

    ARCHIVE must not be there yet. Run it as the service's user, or as root.
    """
    if authority_key and pki is None:
        raise click.UsageError("--authority-key needs --pki, the authority's folder")
    with _explained(f"{archive} was not written"), tempfile.TemporaryDirectory(prefix="wiresum-backup-") as folder:
        config = _load(config_path)
        if archive.exists():
            raise BackupError("it is there already: name another file")
        click.echo(f"copying {config.state}")
        files, contents = parts.collect(
            config_path, config, Path(folder), tls=tls, pki=pki, authority_key=authority_key
        )
        size = archives.write(archive, files, made_at=time.time(), software_version=software_version())
    click.echo(f"{archive}: {size >> 10} KiB, with {contents}; {', '.join(files)}")
    if secret := [name for name in files if name.endswith(".key")]:
        click.echo(f"it holds private keys ({', '.join(secret)}): keep it as you keep those", err=True)


@click.command(
    epilog="""\b
Examples:
  wiresum restore --config /etc/wiresum/cluster.toml wiresum-2026-11-28.tar
  wiresum restore --config /etc/wiresum/cluster.toml --force wiresum-2026-11-28.tar
      in place of the state that is there
  wiresum restore --config cluster.toml --state /var/lib/wiresum --tls /etc/wiresum/controller wiresum-all.tar
      on a new host: the configuration and the TLS directory, too
"""
)
@_archive_argument
@_config_option
@click.option("--state", type=FolderPath, help="Where the state goes. Needed if there is no configuration here yet.")
@click.option("--tls", type=FolderPath, help="Restore the TLS directory there.")
@click.option("--pki", type=FolderPath, help="Restore what the backup has of the authority there.")
@click.option("--force", is_flag=True, help="Replace files that are there already.")
def restore(
    archive: Path, config_path: Path, state: Path | None, tls: Path | None, pki: Path | None, force: bool
) -> None:
    """Put a controller's state back from a backup, while no controller uses it.

    The whole archive is checked before anything is written. A configuration that is there stays as it is; without one
    the backup's is written.

    Jobs that the backup knows and that still run go on when the controller starts. Jobs that began since the backup
    end, since nobody knows them; so do jobs that have ended meanwhile, once more. Names that
    operators created jobs for, and switches that are drained, are as they were. No key is used twice: every switch
    knows how many it was given, and the controller goes on behind that. Its log, `wiresum jobs` and the metric
    wiresum_state_past then say that the state is an old one, until its next start.
    """
    with _explained(f"{archive} was not restored"), archive.open("rb") as file:
        checked = Archive(file)
        click.echo(f"{archive} is whole, and of {_moment(checked.manifest.made_at)}")
        places = _places(checked, config_path, state, tls, pki)
        contents, written = parts.restore(checked, places, force=force)
    for path in written:
        click.echo(f"wrote {path}")
    for name in sorted(name for name in checked.manifest.digests if places.of(name) is None):
        click.echo(f"left {name} in the archive")
    give = f" (`chown -R wiresum: {places.state}` gives it to the service)" if places.state.stat().st_uid == 0 else ""
    click.echo(
        f"restored, with {contents}. The controller must run as the owner of {places.state}{give}; when it starts, it "
        f"ends the jobs that it does not know"
    )


def _places(archive: Archive, config_path: Path, state: Path | None, tls: Path | None, pki: Path | None) -> Places:
    """Where the parts of an archive go. Paths in an archive's configuration are followed only if the user names
    them."""
    if config_path.exists():
        here = _load(config_path).state
        if here is None and state is None:
            raise BackupError(f"{config_path} names no `state`: name its folder there, or with --state")
        return Places(state or here or Path(), None, tls, pki)
    text = parts.configuration_in(archive)
    if not text:
        raise BackupError(f"there is no {config_path}, and none in the backup: write one first")
    with tempfile.TemporaryDirectory(prefix="wiresum-restore-") as folder:
        copy = Path(folder) / "cluster.toml"
        copy.write_text(text)
        try:
            there = configuration.load(copy).state
        except ConfigError as error:
            raise BackupError(
                f"the configuration in it cannot be used: {str(error).replace(str(copy), 'it')}"
            ) from None
    if there is None or state != there:
        raise BackupError(
            f"there is no {config_path}. The backup has one, which names the state {str(there)!r}: if that is right, "
            f"say --state {there}"
        )
    return Places(state, config_path, tls, pki)


def _load(path: Path) -> Config:
    try:
        return configuration.load(path)
    except ConfigError as error:
        raise BackupError(str(error)) from None


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
