"""The messages that wait for one controller's stream, and how the stream ends."""

from __future__ import annotations

import asyncio

from finsy.proto import p4r

from wiresum.switch.p4runtime.refusal import Refusal, exhausted


class Mailbox:
    """A bounded mailbox for one event loop: a controller that does not read loses its stream."""

    def __init__(self, messages_max: int) -> None:
        self._messages: asyncio.Queue[p4r.StreamMessageResponse | Refusal | None] = asyncio.Queue()
        self._messages_max = messages_max
        self._closed = False

    def put(self, message: p4r.StreamMessageResponse) -> None:
        if self._closed:
            return
        if self._messages.qsize() < self._messages_max:
            self._messages.put_nowait(message)
            return
        while not self._messages.empty():  # nobody reads the messages that wait there
            self._messages.get_nowait()
        self.close(exhausted(f"{self._messages_max} messages wait on this stream, and nobody reads it: read it"))

    def close(self, refusal: Refusal | None = None) -> None:
        """Ends the stream after the messages before, with an error if one is given."""
        if not self._closed:
            self._closed = True
            self._messages.put_nowait(refusal)

    async def get(self) -> p4r.StreamMessageResponse | None:
        """The next message; None at the end. Raises the `Refusal` that ends the stream."""
        message = await self._messages.get()
        if isinstance(message, Refusal):
            raise message
        return message
