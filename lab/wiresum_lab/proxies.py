"""TCP proxies on loopback, which tests can cut, silently or with a reset. Each has an address of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from wiresum_lab.patience import PATIENCE_S

HOST = "127.0.0.1"


class TcpProxy:
    """A TCP proxy to a port, for use in the thread of `Proxies`. It connects from `source`: to the same address if
    `source` is an IPv6 address, otherwise to HOST."""

    def __init__(self, target: int, source: str) -> None:
        self.target, self.source = target, source
        self.port = 0
        self.open = asyncio.Event()
        self.open.set()
        self.streams: set[asyncio.StreamWriter] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.streams.add(writer)
        try:
            await self.open.wait()
            far = self.source if ":" in self.source else HOST
            far_reader, far_writer = await asyncio.open_connection(far, self.target, local_addr=(self.source, 0))
            self.streams.add(far_writer)
            await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))
        except OSError:
            writer.transport.abort()
        finally:
            self.streams.discard(writer)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self.open.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
        self.streams.discard(writer)


class Proxies:
    """The proxies of a test, in an event loop of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def make(self, target: int, source: str = HOST) -> TcpProxy:
        async def start() -> TcpProxy:
            proxy = TcpProxy(target, source)
            server = await asyncio.start_server(proxy.accept, HOST, 0)
            proxy.port = int(server.sockets[0].getsockname()[1])
            return proxy

        return asyncio.run_coroutine_threadsafe(start(), self._loop).result(PATIENCE_S)

    def cut(self, proxy: TcpProxy) -> None:
        """Cuts a proxy silently: data waits until `mend`."""
        self._loop.call_soon_threadsafe(proxy.open.clear)

    def mend(self, proxy: TcpProxy) -> None:
        self._loop.call_soon_threadsafe(proxy.open.set)

    def reset(self, proxy: TcpProxy) -> None:
        def abort() -> None:
            for writer in list(proxy.streams):
                writer.transport.abort()

        self._loop.call_soon_threadsafe(abort)
