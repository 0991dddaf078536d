"""Calls without a first message: bounded in number and time; one too many ends the oldest."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from wiresum.switch.p4runtime.refusal import Refusal, exhausted, invalid


class SilentCalls:
    """Used from one event loop."""

    def __init__(self, calls_max: int, seconds_max: float) -> None:
        self._calls_max, self._seconds_max = calls_max, seconds_max
        self._reading: dict[asyncio.Future[Any], None] = {}
        """The oldest first."""

    async def first_message(self, context: Any) -> Any:
        """Raises a `Refusal` if none comes."""
        reading = asyncio.ensure_future(context.read())
        self._reading[reading] = None
        if len(self._reading) > self._calls_max:
            oldest = next(iter(self._reading))
            del self._reading[oldest]
            oldest.cancel()
        try:
            await asyncio.wait([reading], timeout=self._seconds_max)
            if reading not in self._reading:
                raise exhausted(f"this call has sent no message, and {self._calls_max} newer ones have come")
            if not reading.done():
                raise Refusal(
                    grpc.StatusCode.DEADLINE_EXCEEDED, f"no message came within {self._seconds_max:.0f} s of the call"
                )
            message = reading.result()
        finally:
            self._reading.pop(reading, None)
            reading.cancel()
        if message is grpc.aio.EOF:
            raise invalid("the call came without a message")
        return message
