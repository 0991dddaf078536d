"""How the services of a server answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import grpc

from wiresum import join
from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.service.effects import Effects

T = TypeVar("T")


async def refuse(context: Any, refusal: Refusal) -> NoReturn:
    await context.abort(grpc.StatusCode[refusal.code], refusal.text, ((join.REFUSED_KEY, "1"),))
    raise AssertionError("abort raises")


async def granted(context: Any, effects: Effects, action: Callable[[], T]) -> T:
    """Tells `Jobs` what a caller wants, and carries out what follows. A `Refusal` is the caller's answer."""
    try:
        result = action()
    except Refusal as refusal:
        await refuse(context, refusal)
    effects.carry_out()
    return result
