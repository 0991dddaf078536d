"""A controller's state on disk, with its configuration, for tests of backups."""

from __future__ import annotations

import contextlib
from pathlib import Path

from click.testing import CliRunner

from wiresum.controller.backup import command
from wiresum.controller.jobs.outputs import Save, SaveDraining, SaveKeys
from wiresum.controller.jobs.records import JobRecord, Reservation
from wiresum.controller.store import Store

JOB = JobRecord("leaf", 3, "night", "running", "{}")
RESERVATION = Reservation("weekly", 4, 256, "vision", 1, "", "a token", 5.0, 6.0)
CONFIGURATION = """\
[controller]
state = "{folder}/state"
[security]
tls = "{folder}/tls"
[[switch]]
name = "leaf"
kind = "software"
p4runtime = "127.0.0.1:9559"
tls = "{folder}/tls"
address = "127.0.0.1"
"""


class StoredState:
    """The state of a controller that has served from a folder, and ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config, self.state, self.archive = (folder / name for name in ("cluster.toml", "state", "backup.tar"))
        self.config.write_text(CONFIGURATION.format(folder=folder))
        with contextlib.closing(Store(self.state)) as store:
            store.begin()
            store.write([SaveKeys(64), Save(JOB), Save(RESERVATION), SaveDraining("leaf", draining=True)])

    def run(self, what: str, *arguments: str, config: Path | None = None) -> tuple[int, str]:
        """Runs `backup` or `restore` (`what`) with configuration and archive. Returns status and output."""
        arguments = ("--config", str(config or self.config), *arguments, str(self.archive))
        done = CliRunner().invoke(getattr(command, what), list(arguments))
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.output

    def everything(self) -> dict[str, bytes]:
        """The contents of all files but the archive, to check that nothing has changed."""
        there = (path for path in self.folder.rglob("*") if path.is_file() and path != self.archive)
        return {str(path): path.read_bytes() for path in there}
