"""How the services of a server answer, and how they end."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import grpc

from wiresum import join
from wiresum.controller.jobs.refusal import Refusal


async def refuse(context: Any, refusal: Refusal) -> NoReturn:
    await context.abort(grpc.StatusCode[refusal.code], refusal.text, ((join.REFUSED_KEY, "1"),))
    raise AssertionError("abort raises")


async def let_calls_end(s_max: float = 1.0) -> None:
    """What is left of calls once the server has stopped: gRPC prints a stack for each that its loop cuts off."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    if rest:
        await asyncio.wait(rest, timeout=s_max)
