from __future__ import annotations

import asyncio

import pytest
from finsy.proto import p4r

from wiresum.switch.p4runtime.mailbox import Mailbox
from wiresum.switch.p4runtime.refusal import Refusal, invalid

MESSAGES = [p4r.StreamMessageResponse(error=p4r.StreamError(canonical_code=number)) for number in range(4)]


def test_messages_are_read_in_order_before_the_end() -> None:
    async def read() -> list[p4r.StreamMessageResponse | None]:
        mailbox = Mailbox(2)
        mailbox.put(MESSAGES[0])
        mailbox.put(MESSAGES[1])
        mailbox.close()
        mailbox.put(MESSAGES[2])
        mailbox.close(invalid("too late"))
        return [await mailbox.get() for _ in range(3)]

    assert asyncio.run(read()) == [MESSAGES[0], MESSAGES[1], None]


def test_a_refusal_is_raised_after_the_messages_before_it() -> None:
    async def read() -> None:
        mailbox = Mailbox(2)
        mailbox.put(MESSAGES[0])
        mailbox.close(invalid("because"))
        assert await mailbox.get() == MESSAGES[0]
        await mailbox.get()

    with pytest.raises(Refusal, match="because"):
        asyncio.run(read())


def test_a_client_that_does_not_read_loses_its_stream() -> None:
    async def read() -> None:
        mailbox = Mailbox(2)
        for message in MESSAGES:
            mailbox.put(message)
        await mailbox.get()

    with pytest.raises(Refusal, match="nobody reads it") as refusal:
        asyncio.run(read())
    assert refusal.value.code.name == "RESOURCE_EXHAUSTED"
