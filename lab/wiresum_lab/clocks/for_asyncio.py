"""An event loop with virtual time: a test in this loop does not wait, or depend on the load of the machine.

    def test_it_ends_after_a_minute() -> None:
        async def run(loop: VirtualLoop) -> None:
            ...
            await asyncio.sleep(60)  # takes no time

        in_virtual_time(run)

The tested code uses the loop's timers, or gets `loop.time` as its clock. Time moves to the next timer when nothing else
is left to do. For code with sockets, whose bytes may still be on their way, time can stand still until a test moves it:

    in_virtual_time(run, stands_still=True)
    await loop.pass_time(60)
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import time
from collections.abc import Awaitable, Callable
from typing import Any

from wiresum_lab.patience import PATIENCE_S, TimedOutError

BEGINS_AT = 1000.0
LATE_S = 1e-9
"""How late each timer fires. A timer that fired exactly in time could find its deadline not passed, by rounding."""
STEPS = 20
"""How many turns of the loop `pass_time` takes, so that work which timers start is done, unless it needs a socket."""


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, *, stands_still: bool) -> None:
        self.now = BEGINS_AT
        super().__init__(_Selector(self, stands_still=stands_still))

    def time(self) -> float:
        return self.now

    async def pass_time(self, seconds: float) -> None:
        """Moves time forward, and returns when all timers of that time have run."""
        self.now += seconds
        for _ in range(STEPS):
            await asyncio.sleep(0)

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Waits, in real time, for a condition that depends on sockets. A BlockingIOError of the condition (a socket
        has nothing to read) counts as false. `TimedOutError` after PATIENCE_S."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(BlockingIOError):
                if condition():
                    return
            if time.monotonic() > give_up_at:
                raise TimedOutError(f"after {PATIENCE_S:.0f} s this was still not so: {what}")
            await asyncio.sleep(0)


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop, *, stands_still: bool) -> None:
        super().__init__()
        self._loop, self._stands_still = loop, stands_still

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        skips = timeout is not None and timeout > 0 and not self._stands_still
        ready = super().select(0 if skips else timeout)
        if skips and not ready:
            assert timeout is not None, "it is a number"
            self._loop.now += timeout + LATE_S
        return ready


def in_virtual_time(run: Callable[[VirtualLoop], Awaitable[Any]], *, stands_still: bool = False) -> None:
    loop = VirtualLoop(stands_still=stands_still)
    try:
        loop.run_until_complete(run(loop))
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(task)
        loop.close()
