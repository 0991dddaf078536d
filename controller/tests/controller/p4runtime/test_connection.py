from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from finsy.proto import p4r

from wiresum.controller.p4runtime import Pipeline
from wiresum.controller.p4runtime.connection import Connection, Runs

DEVICE = 64 * os.getpid() + 62
T = TypeVar("T")


def with_connection(address: str, use: Callable[[Connection], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Connection(address, DEVICE, None) as connection:
            return await use(connection)

    return asyncio.run(run())


def test_the_loaded_program_is_identified_by_its_cookie(server: str, pipeline: Pipeline) -> None:
    async def use(connection: Connection) -> None:
        assert await connection.runs(pipeline) is Runs.NOTHING
        await connection.bid(2)
        assert (await connection.standing()).primary
        await connection.load(pipeline)
        assert await connection.runs(pipeline) is Runs.OURS
        for other in ({"device_config": pipeline.device_config + b" "}, {"keys": b"of another sequence"}):
            assert await connection.runs(dataclasses.replace(pipeline, **other)) is Runs.ANOTHER  # type: ignore[arg-type]

    with_connection(server, use)


def test_a_program_loaded_without_a_cookie_counts_as_another_program(server: str, pipeline: Pipeline) -> None:
    async def use(connection: Connection) -> None:
        await connection.bid(2)
        await connection.standing()
        config = p4r.ForwardingPipelineConfig(p4info=pipeline.p4info, p4_device_config=pipeline.device_config)
        request = p4r.SetForwardingPipelineConfigRequest(
            device_id=DEVICE, action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT, config=config
        )
        request.election_id.low = 2
        await connection._client.request(request)
        assert await connection.runs(pipeline) is Runs.ANOTHER

    with_connection(server, use)
