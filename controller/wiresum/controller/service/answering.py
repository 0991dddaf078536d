"""How the services of a server answer: only while no other one serves, and what a caller changes only once it is on
disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import grpc

from wiresum import join
from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.service.effects import Effects

T = TypeVar("T")


async def check_serves(context: Any, effects: Effects) -> None:
    """Another controller may know otherwise, whatever this one would say: then the caller asks that one."""
    if why := await effects.why_silent():
        await turn_away(context, effects, why)


async def turn_away(context: Any, effects: Effects, why: str) -> NoReturn:
    """As one that cannot be reached, and not as a refusal, so that the caller tries the next endpoint."""
    text = f"{join.STANDS_BY}: {why}" if effects.deposed else f"this controller cannot answer: {why}"
    await context.abort(grpc.StatusCode.UNAVAILABLE, text)
    raise AssertionError("abort raises")


async def refuse(context: Any, effects: Effects, refusal: Refusal) -> NoReturn:
    await check_serves(context, effects)
    trailers = [(join.REFUSED_KEY, "1")]
    if refusal.retry_s is not None:
        trailers.append((join.RETRY_KEY, str(max(1, int(1000 * refusal.retry_s)))))
    await context.abort(grpc.StatusCode[refusal.code], refusal.text, tuple(trailers))
    raise AssertionError("abort raises")


async def found(context: Any, effects: Effects, question: Callable[[], T]) -> T:
    """What `Jobs` says. A `Refusal` is the caller's answer."""
    await check_serves(context, effects)
    try:
        return question()
    except Refusal as refusal:
        await refuse(context, effects, refusal)


async def granted(context: Any, effects: Effects, action: Callable[[], T], *, on_disk: bool = False) -> T:
    """Tells `Jobs` what a caller wants, and carries out what follows. `on_disk`: it is an error if the disk does not
    take it in time; otherwise the caller hears of it then as workers hear how their jobs end (effects.py)."""
    result = await found(context, effects, action)
    why_not = await effects.carried_out()
    if why_not and effects.deposed:
        await turn_away(context, effects, why_not)
    if why_not and on_disk:
        await context.abort(
            grpc.StatusCode.INTERNAL,
            f"this is not on disk: {why_not}. It may yet be carried out, or be lost with this controller: look "
            f"(`wiresum jobs`) before you tell it again",
        )
    if why_not and effects.halted:
        await turn_away(context, effects, why_not)
    return result
