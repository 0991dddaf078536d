"""Messages of a session's socket, a line for each.

A line is a word and fields `name=value`, with tabs between them. In values, a backslash stands before what would end
the field or the line: `\\\\`, `\\t`, `\\n`. The other end is in host_agent/src/session/line.cpp; whatever does not
read so is a bug of ours or somebody else's socket, and ends the conversation.
"""

from __future__ import annotations

import re
import socket
import threading
from dataclasses import dataclass, field

from wiresum.join.constants import SIDECAR_FIELDS_MAX, SIDECAR_LINE_BYTES_MAX

_NAME = re.compile(r"[a-z][a-z0-9_.-]*|[A-Z][A-Z0-9_]*")
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n"}
_ESCAPED = {escape: character for character, escape in _ESCAPES.items()}


class LineError(ValueError):
    """The received text is no line of this format."""


@dataclass(frozen=True)
class Line:
    word: str
    fields: dict[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str:
        try:
            return self.fields[name]
        except KeyError:
            raise LineError(f"'{self.word}' came without its {name}") from None

    def number(self, name: str, most: int = 2**32 - 1) -> int:
        text = self.text(name)
        if not (text.isascii() and text.isdigit()) or int(text) > most:
            raise LineError(f"'{self.word}' came with {name}={text!r}, where a number up to {most} must be")
        return int(text)


def encode(word: str, **fields: object) -> bytes:
    parts = [word, *(f"{name}={_escape(str(value))}" for name, value in fields.items())]
    line = "\t".join(parts).encode(errors="replace")
    if len(line) >= SIDECAR_LINE_BYTES_MAX:
        raise LineError(f"'{word}' is too long to be sent")
    return line + b"\n"


def decode(line: bytes) -> Line:
    """Decodes a line without its end. Bytes that are no UTF-8 are as in `os.environ`. Raises LineError."""
    word, *parts = line.decode(errors="surrogateescape").split("\t")
    if not _NAME.fullmatch(word) or len(parts) > SIDECAR_FIELDS_MAX:
        raise LineError("a line is none of ours")
    fields: dict[str, str] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or not _NAME.fullmatch(name) or name in fields:
            raise LineError(f"a field of '{word}' is none of ours")
        fields[name] = _unescape(value)
    return Line(word, fields)


class Channel:
    """One end of a session's socket. Any thread may send, one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._lock = threading.Lock()
        self._received = b""

    def send(self, word: str, **fields: object) -> bool:
        """Returns False if the other end is closed."""
        line = encode(word, **fields)
        try:
            with self._lock:
                self._socket.sendall(line)
        except OSError:
            return False
        return True

    def receive(self) -> Line | None:
        """Returns the next message; None when the other end is closed. Raises LineError."""
        while (end := self._received.find(b"\n")) < 0:
            if len(self._received) >= SIDECAR_LINE_BYTES_MAX:
                raise LineError("a line does not end")
            try:
                more = self._socket.recv(4096)
            except OSError:
                more = b""
            if not more:
                return None
            self._received += more
        line, self._received = self._received[:end], self._received[end + 1 :]
        return decode(line)

    def hang_up(self) -> None:
        """Ends the conversation for both ends. Idempotent."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        self._socket.close()


def _escape(text: str) -> str:
    return re.sub(r"[\\\t\n]", lambda match: _ESCAPES[match[0]], text)


def _unescape(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        try:
            return _ESCAPED[match[0]]
        except KeyError:
            raise LineError(f"{match[0]!r} stands for nothing") from None

    return re.sub(r"\\.?", character, text)
