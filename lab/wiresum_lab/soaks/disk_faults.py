"""Faults of the controllers' state in cluster_soak.py: its disk fills up or becomes read-only; while no controller
runs, files are damaged, lost, or replaced by older copies.

Each fault is a generator: it begins, yields how long it lasts, and ends. Where this process may mount, the state is on
a small disk of its own.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from wiresum_lab.patience import FACTOR
from wiresum_lab.soaks.proxied_laboratory import ANSWER_S_MAX, ProxiedLaboratory

DISK_BYTES = 24 << 20
COPIES_MAX = 4
MENDED_S_MAX = 120.0 * FACTOR
"""Longest time from a fault until a controller serves again."""
DATABASE = ("controller.sqlite3", "controller.sqlite3-wal", "controller.sqlite3-shm")
FILES = (*DATABASE, "controller.keys", "controller.alive")


class DiskError(RuntimeError):
    """The controllers did not recover from a fault; the text has the details."""


class DiskTimedOutError(DiskError):
    """No controller served again in time."""


class DiskFaults:
    def __init__(self, laboratory: ProxiedLaboratory, chance: random.Random, *, own_disk: bool) -> None:
        """`own_disk` says that the state is on a disk that was mounted for it."""
        self._laboratory, self._chance = laboratory, chance
        self._copies: list[Path] = []
        self._full_since_start: int | None = None
        """How many controllers had been started when the disk filled up; None if the disk is not full."""
        self._read_only = False
        self.damages = 0
        """How often the state was changed while no controller ran."""
        self.kinds: dict[Callable[[], Iterator[float]], str] = {
            self.damage_a_file: "files",
            self.lose_a_file: "files",
            self.put_an_old_copy_back: "files",
        }
        if own_disk:
            self.kinds |= {self.fill_the_disk: "disk", self.make_the_disk_read_only: "files"}

    @property
    def disturbs(self) -> bool:
        """Whether a controller must start, but cannot, since the disk is full."""
        return self._full_since_start is not None and self._laboratory.controllers_started > self._full_since_start

    @property
    def is_full(self) -> bool:
        """Whether the disk is full. A full disk has no room for faults of the files."""
        return self._full_since_start is not None

    # The disk.

    def fill_the_disk(self) -> Iterator[float]:
        if self._read_only:
            return
        self._full_since_start = self._laboratory.controllers_started
        filler = self._laboratory.state / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 12)):
                pass
        yield self._chance.uniform(1, 25)
        filler.unlink()
        self._full_since_start = None

    def make_the_disk_read_only(self) -> Iterator[float]:
        """Remounts the disk read-only. No controller runs at that moment, since the kernel refuses while a file is open
        for writing."""
        if self.is_full:
            return
        self._read_only = True
        with self._nobody_serving():
            _mount("-o", "remount,ro", str(self._laboratory.state))
        yield self._chance.uniform(1, 10)
        _mount("-o", "remount,rw", str(self._laboratory.state))
        self._read_only = False
        yield from self._until_served()

    # The files.

    def damage_a_file(self) -> Iterator[float]:
        if self.is_full:
            return
        with self._nobody_serving():
            path = self._laboratory.state / self._chance.choice([name for name in FILES if self._size(name)])
            contents = bytearray(path.read_bytes())
            if self._chance.random() < 0.5:
                del contents[int(len(contents) * self._chance.choice((0.0, self._chance.random()))) :]
            else:
                contents[self._chance.randrange(len(contents))] ^= 1 << self._chance.randrange(8)
            path.write_bytes(contents)
        yield from self._until_served()

    def lose_a_file(self) -> Iterator[float]:
        if self.is_full:
            return
        with self._nobody_serving():
            (self._laboratory.state / self._chance.choice([name for name in FILES if self._size(name)])).unlink()
        yield from self._until_served()

    def put_an_old_copy_back(self) -> Iterator[float]:
        """Replaces all files, or one file, by an older copy."""
        if self.is_full:
            return
        with self._nobody_serving():
            copy = self._chance.choice(self._copies)
            names = FILES if self._chance.random() < 0.5 else [self._chance.choice(FILES)]
            for name in names:
                (self._laboratory.state / name).unlink(missing_ok=True)
                if (copy / name).exists():
                    shutil.copy2(copy / name, self._laboratory.state / name)
        yield from self._until_served()

    def _size(self, name: str) -> int:
        path = self._laboratory.state / name
        return path.stat().st_size if path.exists() else 0

    @contextlib.contextmanager
    def _nobody_serving(self) -> Iterator[None]:
        """Kills both controllers until the end of the block, and keeps a copy of their files."""
        self._laboratory.controllers_wanted = False
        for program in self._laboratory.controllers.values():
            program.kill()
        copy = self._laboratory.folder / "copies" / str(self.damages)
        shutil.copytree(self._laboratory.state, copy, ignore=shutil.ignore_patterns("filler"))
        self._copies.append(copy)
        if len(self._copies) > COPIES_MAX:
            shutil.rmtree(self._copies.pop(self._chance.randrange(COPIES_MAX)))
        self.damages += 1
        yield
        self._laboratory.controllers_wanted = True

    def _until_served(self) -> Iterator[float]:
        """Waits until a controller serves. Removes the database if a controller's log asks the operator to move it."""
        give_up_at = time.monotonic() + MENDED_S_MAX
        logs = [self._laboratory.log_of(name) for name in self._laboratory.controllers]
        read = {log: log.stat().st_size for log in logs}
        while self._laboratory.report(ANSWER_S_MAX) is None:
            if time.monotonic() > give_up_at:
                raise DiskTimedOutError(f"in {MENDED_S_MAX:.0f} s no controller served after a fault of the state")
            for log in read:
                said = log.read_bytes()[read[log] :].decode(errors="replace")
                if "move it away" in said or "database away" in said:
                    read[log] = log.stat().st_size
                    for name in DATABASE:
                        (self._laboratory.state / name).unlink(missing_ok=True)
            yield 0.5


@contextlib.contextmanager
def disk_of_its_own(folder: Path) -> Iterator[None]:
    """Mounts a small disk in memory at `folder` until the end of the block. The process must be allowed to mount."""
    folder.mkdir(mode=0o700)
    _mount("-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "tmpfs", str(folder))
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)
