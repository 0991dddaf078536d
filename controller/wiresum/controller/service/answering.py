"""How the services of a server answer: only while no other controller serves, and, for what a caller changes, only once
the change is on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import grpc

from wiresum import join
from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.service.effects import Effects

T = TypeVar("T")


async def check_serves(context: Any, effects: Effects) -> None:
    """Aborts the call if another controller serves, whatever this one would answer: the caller then asks the other
    one."""
    if why := await effects.why_silent():
        await turn_away(context, effects, why)


async def turn_away(context: Any, effects: Effects, why: str) -> NoReturn:
    """Aborts the call as if this controller were unreachable, not with a refusal, so that the caller tries the next
    endpoint."""
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
    """Returns what `Jobs` answers to `question`. A `Refusal` is the caller's answer."""
    await check_serves(context, effects)
    try:
        return question()
    except Refusal as refusal:
        await refuse(context, effects, refusal)


async def granted(context: Any, effects: Effects, action: Callable[[], T], *, on_disk: bool = False) -> T:
    """Tells `Jobs` what a caller wants, and carries out what follows. `on_disk`: it is an error if the disk does not
    take the change in time; otherwise the caller is answered then anyway, as workers are told how their jobs end
    (effects.py)."""
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
