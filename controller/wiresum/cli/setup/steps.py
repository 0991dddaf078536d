"""The steps of a host's setup. Each knows whether it is done already, and how to do it."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

COMMAND_S_MAX = 120.0
OWNER = "root"


class SetupError(RuntimeError):
    """The text says what could not be done, and why."""


@dataclass(frozen=True)
class Host:
    """The host that is set up: this one, or an image whose files lie in the folder `root`."""

    root: Path = Path("/")

    @property
    def runs(self) -> bool:
        return self.root == Path("/")

    @property
    def has_systemd(self) -> bool:
        """The test that `sd_booted(3)` makes."""
        return self.runs and Path("/run/systemd/system").is_dir()

    def path(self, absolute: str) -> Path:
        return self.root / absolute.lstrip("/")

    def id_of(self, database: str, name: str) -> int | None:
        """`database`: passwd or group. None: there is none of this name."""
        if name == OWNER:
            return 0
        row = self._row(database, name)
        return None if row is None else int(row[2])

    def is_member(self, user: str, group: str) -> bool:
        row = self._row("group", group)
        return row is not None and user in row[3].split(",")

    def _row(self, database: str, name: str) -> list[str] | None:
        try:
            lines = self.path(f"/etc/{database}").read_text().splitlines()
        except OSError:
            return None
        return next((row for row in (line.split(":") for line in lines) if row[0] == name and len(row) > 3), None)


class Step(Protocol):
    @property
    def what(self) -> str:
        """What it makes, as a phrase."""

    @property
    def kept(self) -> bool:
        """If it differs, it stays as it is, since somebody may have edited it."""
        return False

    def is_so(self, host: Host) -> bool:
        """What it makes is there, as it should be."""

    def is_there(self, host: Host) -> bool:
        """What it makes is there in any form."""
        return self.is_so(host)

    def do(self, host: Host) -> None:
        """Raises a `SetupError` or an `OSError`."""


@dataclass(frozen=True)
class User(Step):
    """A system user without a login, and its group."""

    name: str

    @property
    def what(self) -> str:
        return f"the user {self.name}, without a login"

    def is_there(self, host: Host) -> bool:
        return host.id_of("passwd", self.name) is not None

    def is_so(self, host: Host) -> bool:
        return self.is_there(host) and host.id_of("group", self.name) is not None

    def do(self, host: Host) -> None:
        run([
            "useradd", *_prefix(host), "--system", "--user-group", "--home-dir", f"/var/lib/{self.name}",
            "--no-create-home", "--shell", "/usr/sbin/nologin", self.name,
        ])  # fmt: skip


@dataclass(frozen=True)
class Member(Step):
    user: str
    group: str

    @property
    def what(self) -> str:
        return f"{self.user} in the group {self.group}, from the next login on"

    def is_so(self, host: Host) -> bool:
        return host.is_member(self.user, self.group)

    def do(self, host: Host) -> None:
        if host.id_of("passwd", self.user) is None:
            raise SetupError(f"there is no user {self.user!r} here: --user names who trains")
        run(["usermod", *_prefix(host), "--append", "--groups", self.group, self.user])


@dataclass(frozen=True)
class Folder(Step):
    path: str
    mode: int
    owner: str
    group: str

    @property
    def what(self) -> str:
        return f"{self.path}/ ({self.owner}:{self.group}, {self.mode:04o})"

    def is_there(self, host: Host) -> bool:
        return host.path(self.path).is_dir()

    def is_so(self, host: Host) -> bool:
        return self.is_there(host) and _has(host, self.path, self.mode, self.owner, self.group)

    def do(self, host: Host) -> None:
        host.path(self.path).mkdir(parents=True, exist_ok=True)
        _give(host, host.path(self.path), self.mode, self.owner, self.group)


@dataclass(frozen=True)
class File(Step):
    path: str
    content: bytes = field(repr=False)
    mode: int
    owner: str = OWNER
    group: str = OWNER
    kept: bool = False
    shown: bool = False
    """Its content may be shown."""

    @property
    def what(self) -> str:
        return f"{self.path} ({self.owner}:{self.group}, {self.mode:04o})"

    def is_there(self, host: Host) -> bool:
        return host.path(self.path).exists()

    def is_so(self, host: Host) -> bool:
        path = host.path(self.path)
        same = path.is_file() and path.read_bytes() == self.content
        return same and _has(host, self.path, self.mode, self.owner, self.group)

    def do(self, host: Host) -> None:
        """Atomically: the new file appears with its owner and mode."""
        path = host.path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(self.content)
                file.flush()
                os.fsync(file.fileno())
            _give(host, beside, self.mode, self.owner, self.group)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


@dataclass(frozen=True)
class Settings(Step):
    """Kernel settings with a least value. Larger values stay."""

    path: str
    """The file that sets them at boot."""
    least: Mapping[str, int]
    """The least values, by dotted name."""

    @property
    def what(self) -> str:
        return f"{self.path}: {', '.join(f'{name} = {value}' for name, value in self.least.items())}"

    @property
    def file(self) -> File:
        lines = ["# Made by `wiresum setup`.", *(f"{name} = {value}" for name, value in self.least.items())]
        return File(self.path, "".join(f"{line}\n" for line in lines).encode(), 0o644)

    def is_there(self, host: Host) -> bool:
        return self.file.is_there(host)

    def is_so(self, host: Host) -> bool:
        return self.file.is_so(host) or (host.runs and not self.lacking())

    def do(self, host: Host) -> None:
        self.file.do(host)
        if host.runs:
            with contextlib.suppress(SetupError):  # lacking() finds out
                run(["sysctl", "--quiet", "--load", self.path])

    def lacking(self) -> dict[str, int | None]:
        """Current values that are too small; None: cannot be set."""
        found = {name: _setting(name) for name in self.least}
        return {name: value for name, value in found.items() if value is None or value < self.least[name]}


def _setting(name: str) -> int | None:
    try:
        return int(Path("/proc/sys", *name.split(".")).read_text())
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class Link(Step):
    path: str
    target: str
    kept: bool = False

    @property
    def what(self) -> str:
        return f"{self.path} -> {self.target}"

    def is_there(self, host: Host) -> bool:
        return os.path.lexists(host.path(self.path))

    def is_so(self, host: Host) -> bool:
        path = host.path(self.path)
        return path.is_symlink() and str(path.readlink()) == self.target

    def do(self, host: Host) -> None:
        path = host.path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(self.target)


def run(command: Sequence[str]) -> str:
    """Returns its output. Raises a `SetupError` if it fails."""
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"cannot run `{' '.join(command)}`: {error}") from error
    if finished.returncode:
        said = " ".join((finished.stderr or finished.stdout).split())
        raise SetupError(f"`{' '.join(command)}` failed with status {finished.returncode}: {said}")
    return finished.stdout


def _prefix(host: Host) -> list[str]:
    return [] if host.runs else ["--prefix", str(host.root)]


def _has(host: Host, path: str, mode: int, owner: str, group: str) -> bool:
    status = host.path(path).stat()
    is_owned = (status.st_uid, status.st_gid) == (host.id_of("passwd", owner), host.id_of("group", group))
    return is_owned and stat.S_IMODE(status.st_mode) == mode


def _give(host: Host, path: Path, mode: int, owner: str, group: str) -> None:
    user_id, group_id = host.id_of("passwd", owner), host.id_of("group", group)
    if user_id is None or group_id is None:
        raise SetupError(f"{path} is to be {owner}:{group}'s, but there is no such user or group")
    os.chown(path, user_id, group_id)
    path.chmod(mode)
