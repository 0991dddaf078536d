"""Which of the connected controllers may write: sections 5.3 and 5.4 of the P4Runtime specification, version 1.4.

A controller is a stream that has sent its election id. The primary is the controller with the highest id that any
stream has ever sent: when this one leaves there is no primary, until a stream comes with the highest id or a higher
one. The default role is the only one, and may do everything. Ids above ELECTION_ID_MAX, which no controller of ours
has, are refused: no controller could bid above such an id.
"""

from __future__ import annotations

from collections.abc import Callable

from finsy.proto import U128, p4r, rpc_code

from wiresum.controller.p4runtime.connection import ELECTION_ID_MAX
from wiresum.switch.p4runtime.refusal import exhausted, invalid, not_found, too_early, unimplemented

STREAMS_MAX = 16

ElectionId = tuple[int, int]
"""The upper and the lower 64 bits of an id: compares as the id does."""


DEFAULT_ROLE_ONLY = "this switch has the default role only: leave the role unset"


class Stream:
    """The stream of one controller; `send` queues a notification for it."""

    def __init__(self, send: Callable[[p4r.MasterArbitrationUpdate], None]) -> None:
        self.send = send
        self.election_id: ElectionId | None = None
        self.live = False
        """True if the stream has sent an arbitration message."""


class Arbitration:
    def __init__(self, device_id: int) -> None:
        self._device_id = device_id
        self._streams: list[Stream] = []
        self._highest: ElectionId | None = None

    def may_write(self, election_id: p4r.Uint128) -> bool:
        primary = self._primary()
        return primary is not None and primary.election_id == _number(election_id)

    def open(self, stream: Stream) -> None:
        """Counts a stream before its first message, so that streams that never send one are bounded too."""
        if len(self._streams) >= STREAMS_MAX:
            raise exhausted(f"this switch serves {STREAMS_MAX} controllers, and as many are connected: close one first")
        self._streams.append(stream)

    def update(self, stream: Stream, message: p4r.MasterArbitrationUpdate) -> None:
        """Handles a stream's message. A `Refusal` ends the stream."""
        self._check(stream, message)
        before = self._primary()
        stream.live = True
        stream.election_id = _number(message.election_id) if message.HasField("election_id") else None
        if stream.election_id is not None and (self._highest is None or stream.election_id >= self._highest):
            self._highest = stream.election_id
        if self._primary() is stream or before is stream:
            self._notify_all(stream)
        else:
            stream.send(self._notification(stream))

    def close(self, stream: Stream) -> None:
        """Removes a stream. Idempotent."""
        if stream not in self._streams:
            return
        was_primary = stream is self._primary()
        self._streams.remove(stream)
        if was_primary:
            self._notify_all(stream)

    def _check(self, stream: Stream, message: p4r.MasterArbitrationUpdate) -> None:
        if message.device_id != self._device_id:
            text = f"this switch is device {self._device_id}, not {message.device_id}"
            raise too_early(text) if stream.live else not_found(text)
        if message.HasField("role") and message.role != p4r.Role():
            raise unimplemented(DEFAULT_ROLE_ONLY)
        if message.HasField("election_id"):
            if U128.decode(message.election_id) > ELECTION_ID_MAX:
                raise invalid(f"this switch takes election ids of up to {ELECTION_ID_MAX}: choose a lower one")
            wanted = _number(message.election_id)
            if any(other.election_id == wanted for other in self._streams if other is not stream):
                raise invalid("another controller has this election id: choose a higher one")

    def _primary(self) -> Stream | None:
        if self._highest is None:
            return None
        return next((stream for stream in self._streams if stream.election_id == self._highest), None)

    def _notify_all(self, last: Stream) -> None:
        """Notifies all streams. `last`: a new primary, notified after all others."""
        for stream in sorted(self._streams, key=lambda stream: stream is last):
            if stream.live:
                stream.send(self._notification(stream))

    def _notification(self, stream: Stream) -> p4r.MasterArbitrationUpdate:
        primary = self._primary()
        message = p4r.MasterArbitrationUpdate(device_id=self._device_id)
        if self._highest is not None:
            message.election_id.high, message.election_id.low = self._highest
        if stream is primary:
            message.status.code, message.status.message = rpc_code.OK, "you are the primary controller"
        elif primary is not None:
            message.status.code, message.status.message = rpc_code.ALREADY_EXISTS, "another controller is the primary"
        else:
            message.status.code, message.status.message = rpc_code.NOT_FOUND, "no primary controller is connected"
        return message


def _number(election_id: p4r.Uint128) -> ElectionId:
    return election_id.high, election_id.low
