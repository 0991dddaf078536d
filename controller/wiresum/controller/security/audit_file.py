"""The file of the audit log. A thread of its own writes the file, so a disk that is full or hangs holds up no call.

Lines wait in a queue of bounded size. The service continues without lines that the disk refuses, or for which the queue
has no room: they are counted, and the next line that is written says in the file how many are missing.

The file is rotated at FILE_BYTES_MAX. Other programs may rotate it too: before each line the thread checks whether the
path still is the open file, and opens the path anew if not (logrotate's `create`). The file is only appended to, so
another program may also truncate it (`copytruncate`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

log = logging.getLogger(__name__)

FILE_BYTES_MAX = 32 << 20
FILES_KEPT = 8
"""How many rotated files are kept besides the current one."""
QUEUE_BYTES_MAX = 16 << 20
SILENCE_S_MAX = 5.0
"""How long a disk may take for a line, before it counts as hanging."""
RETRY_S = 5.0
"""Time between two attempts while there is nothing new to write."""
ROTATE_RETRY_S = 60.0
CLOSE_S_MAX = 3.0


class AuditFile:
    """Writes lines to the file from construction, which touches no disk, to `close`. All methods may be called from any
    thread, and only `flush` and `close` wait for the disk."""

    def __init__(
        self,
        path: Path,
        *,
        file_bytes_max: int = FILE_BYTES_MAX,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
        retry_s: float = RETRY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._file_bytes_max, self._queue_bytes_max, self._retry_s = file_bytes_max, queue_bytes_max, retry_s
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._queue_bytes = 0
        """Bytes of the queue and of the line that is being written."""
        self._busy_since: float | None = None
        """When the thread began with its current line. None: it waits for a line."""
        self._closing = False
        self._error = ""
        """The disk's error for the last line; empty: the disk took the line."""
        self._said = False
        """True if the process's log says that there is trouble."""
        self.lines_lost = 0
        self._untold, self._untold_since = 0, ""
        """How many of the lost lines the file does not mention yet, and the time of the first."""
        # The following fields are for the thread only:
        self._descriptor: int | None = None
        self._torn = False
        """True if the file ends with a part of a line."""
        self._rotate_at = -ROTATE_RETRY_S
        """Earliest time of the next attempt to rotate."""
        self._thread = threading.Thread(target=self._run, name="wiresum-audit", daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> str:
        """A sentence that says why the log cannot be written; empty if it can, as far as is known."""
        with self._changed:
            return self._look()

    def write(self, line: str) -> None:
        """Queues a line, given without its newline."""
        content = f"{line}\n".encode()
        with self._changed:
            if self._closing or self._queue_bytes + len(content) > self._queue_bytes_max:
                self._lose()
            else:
                self._queue.append(content)
                self._queue_bytes += len(content)
                self._changed.notify_all()
            self._look()

    def flush(self, s_max: float) -> bool:
        """Waits until nothing is left to write. True if nothing is left, False after `s_max`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue_bytes, s_max)

    def close(self) -> None:
        """Ends the thread. Idempotent. Lines that the disk does not take in CLOSE_S_MAX are lost."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(CLOSE_S_MAX)
        if self._thread.is_alive():
            log.error("the audit log was left with lines that %s has not taken", self._path)

    # The lock must be held for these.

    def _look(self) -> str:
        """Returns the trouble, and logs when it begins and ends."""
        trouble = self._error
        if self._busy_since is not None and self._clock() - self._busy_since > SILENCE_S_MAX:
            trouble = f"{self._path} has taken nothing for {SILENCE_S_MAX:.0f} s"
        if trouble and not self._said:
            log.error(
                "the audit log cannot be written: %s. The service goes on without it, and counts the lines that are "
                "lost. Look at that disk",
                trouble,
            )
        elif self._said and not trouble:
            log.warning("the audit log can be written again; %d lines were lost since the start", self.lines_lost)
        self._said = bool(trouble)
        return trouble

    def _lose(self) -> None:
        self.lines_lost += 1
        self._untold_since = self._untold_since or _now()
        self._untold += 1

    # These run in the thread.

    def _run(self) -> None:
        self._try_to(self._open)
        while (line := self._next()) is not None:
            written = self._write_gap() and self._try_to(lambda line=line: self._put(line))  # type: ignore[misc]
            with self._changed:
                self._queue_bytes -= len(line)
                self._busy_since = None
                if line and not written:
                    self._lose()
                self._look()
                self._changed.notify_all()
        self._close_file()

    def _next(self) -> bytes | None:
        """Returns the next line; empty: no line has come, and it is time to try whether the disk takes something. None:
        the log is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing, self._retry_s if self._error else None)
            if not self._queue and self._closing:
                return None
            self._busy_since = self._clock()
            return self._queue.popleft() if self._queue else b""

    def _write_gap(self) -> bool:
        """Says in the file how many lines are missing at this place. True if none are missing, or the file says so."""
        with self._changed:
            count, since = self._untold, self._untold_since
        told = {"time": _now(), "lines_lost": count, "from": since}
        if count and not self._try_to(lambda: self._put(f"{json.dumps(told)}\n".encode())):
            return False
        with self._changed:
            self._untold -= count
            self._untold_since = _now() if self._untold else ""
        return True

    def _try_to(self, act: Callable[[], None]) -> bool:
        try:
            act()
        except OSError as error:
            with self._changed:
                self._error = f"{self._path}: {error.strerror or error}"
            return False
        with self._changed:
            self._error = ""
        return True

    def _put(self, line: bytes) -> None:
        self._use_right_file(len(line))
        assert self._descriptor is not None, "it was opened"
        content = b"\n" + line if self._torn and line else line
        written = os.write(self._descriptor, content)
        if written:
            self._torn = written < len(content)
        if written < len(content):
            raise OSError(errno.ENOSPC, "it took only a part of a line")

    def _use_right_file(self, more_bytes: int) -> None:
        if self._descriptor is not None:
            ours = os.fstat(self._descriptor)
            if not self._is_at_path(ours):
                self._close_file()
            elif stat.S_ISREG(ours.st_mode) and ours.st_size + more_bytes > self._file_bytes_max:
                self._rotate()
        if self._descriptor is None:
            self._open()

    def _is_at_path(self, ours: os.stat_result) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(self._path.stat(), ours)
        return False

    def _rotate(self) -> None:
        """Rotates the files. If files cannot be renamed in the folder, the log continues and its file grows."""
        if self._clock() < self._rotate_at:
            return
        try:
            for number in range(FILES_KEPT, 0, -1):
                before = Path(f"{self._path}.{number - 1}") if number > 1 else self._path
                with contextlib.suppress(FileNotFoundError):
                    before.replace(f"{self._path}.{number}")
        except OSError as error:
            self._rotate_at = self._clock() + ROTATE_RETRY_S
            log.warning("%s cannot be rotated (%s), and grows: let this user write in its folder", self._path, error)
        else:
            self._close_file()

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
        self._descriptor = os.open(self._path, flags, 0o600)
        ours = os.fstat(self._descriptor)
        has_content = stat.S_ISREG(ours.st_mode) and ours.st_size > 0
        self._torn = has_content and os.pread(self._descriptor, 1, ours.st_size - 1) != b"\n"

    def _close_file(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
