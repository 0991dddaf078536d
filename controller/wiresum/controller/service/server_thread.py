"""A gRPC server in a thread of its own, which has an event loop of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from contextlib import AbstractAsyncContextManager

from wiresum.controller.security import OPTIONS as SECURITY_OPTIONS
from wiresum.join.constants import CONTROL_PORT

log = logging.getLogger(__name__)

OPTIONS = (
    *SECURITY_OPTIONS,
    # A second server at the same port must fail, not share the port's connections with the first.
    ("grpc.so_reuseport", 0),
)
CALLS_END_S_MAX = 1.0


class ServerThread:
    """Runs a gRPC server in a thread. Subclasses say in `_serving` what is served."""

    def __init__(self, name: str) -> None:
        """`name`: name of the thread."""
        self.port = 0
        """The TCP port that the server listens at, once started."""
        self._name = name
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    @property
    def runs(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, host: str = "127.0.0.1", port: int = CONTROL_PORT) -> int:
        """Starts the server. Returns the TCP port, which is a free one for port 0. Raises what `_serving` raises."""
        if self._thread is not None:
            raise RuntimeError("this server was started before: make a new one")
        bound: concurrent.futures.Future[int] = concurrent.futures.Future()

        def run() -> None:
            try:
                asyncio.run(self._run(f"{host}:{port}", bound))
            except Exception as error:  # without file descriptors there is no loop
                if bound.done():
                    raise
                bound.set_exception(error)

        self._thread = threading.Thread(target=run, name=self._name, daemon=True)
        self._thread.start()
        self.port = bound.result()
        return self.port

    def _end(self, s_max: float) -> None:
        """Ends the server. Idempotent. The port is free on return, unless the server hangs for `s_max`."""
        if self._thread is None or self._loop is None or self._stop is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(s_max)
        if self._thread.is_alive():
            log.error("the service did not end in %.0f s; the process will end without it", s_max)

    def _serving(self, listen: str) -> AbstractAsyncContextManager[int]:
        """Listens at host:port, gives the TCP port, and serves until the context ends. Raises `OSError` if the server
        cannot listen there, `CredentialsError` if it must not."""
        raise NotImplementedError

    async def _run(self, listen: str, bound: concurrent.futures.Future[int]) -> None:
        async with self._serving(listen) as port:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            bound.set_result(port)
            await self._stop.wait()
        # gRPC prints a stack for each call that the end of the loop cuts off.
        if calls := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(calls, timeout=CALLS_END_S_MAX)
