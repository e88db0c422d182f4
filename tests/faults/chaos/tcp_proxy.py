"""A TCP proxy in front of ZooKeeper or of one Kafka broker: it cuts connections, or delays bytes."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from chaos.loop import ProxyLoop, reset

_CHUNK_BYTES = 64 << 10


@dataclass(eq=False)
class _Connection:
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    session: tuple[int, bytes] | None = None
    """ZooKeeper's: id and password."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class TcpProxy:
    """Listens on a separate port and forwards to `(host, port)`, until a fault is ordered."""

    def __init__(self, proxies: ProxyLoop, host: str, port: int) -> None:
        self._proxies = proxies
        self._upstream = (host, port)
        self._connections: set[_Connection] = set()
        self._flowing = asyncio.Event()
        self._bytes_until_cut: int | None = None
        self._on_cut: Callable[[], None] = lambda: None
        self.held = 0
        """Pieces of answers that are being held back now."""
        self._server: asyncio.Server | None = None
        self.port = proxies.run(self._start())

    async def _start(self) -> int:
        self._flowing.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Stop listening, and reset all connections."""
        self._proxies.run(self._close())

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        self._flowing.set()
        await self.cut()

    async def cut(self) -> int:
        """Reset every connection. Returns how many there were. In the loop."""
        cut = list(self._connections)
        for connection in cut:
            reset(connection.client)
            reset(connection.server)
        return len(cut)

    def cut_after(self, count: int, on_cut: Callable[[], None]) -> None:
        """Reset the connection on which the server's bytes, counted from now over all, pass `count`. In the loop."""
        self._bytes_until_cut, self._on_cut = count, on_cut

    def heal(self) -> None:
        """Let everything through again. In the loop."""
        self._bytes_until_cut = None
        self._flowing.set()

    def hold(self) -> None:
        """Hold back every byte until `heal`. In the loop."""
        self._flowing.clear()

    async def freeze(self, seconds: float) -> int:
        """Hold back every byte for so long, and then let them flow. Returns how many connections there were."""
        self._flowing.clear()
        held = len(self._connections)
        await asyncio.sleep(seconds)
        self._flowing.set()
        return held

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream, server = await asyncio.open_connection(*self._upstream)
        except OSError:
            reset(writer)
            return
        except asyncio.CancelledError:
            reset(writer)
            raise
        connection = _Connection(writer, server)
        self._connections.add(connection)
        up = asyncio.create_task(self._pump(reader, server, connection, downstream=False))
        down = asyncio.create_task(self._pump(upstream, writer, connection, downstream=True))
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel()
            down.cancel()
            self._connections.discard(connection)
            for end in (writer, server):
                end.transport.abort()

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, connection: _Connection, *, downstream: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK_BYTES):
                self.held += downstream
                await self._flowing.wait()
                self.held -= downstream
                if downstream:
                    self._see(connection, data)
                    if self._must_cut(len(data)):
                        target.write(data[: len(data) // 2])
                        reset(target)
                        return
                target.write(data)
                await target.drain()

    def _see(self, connection: _Connection, data: bytes) -> None:
        """Look at what the server sends."""

    def _must_cut(self, count: int) -> bool:
        if self._bytes_until_cut is None:
            return False
        self._bytes_until_cut -= count
        if self._bytes_until_cut > 0:
            return False
        self._bytes_until_cut = None
        self._on_cut()
        return True


class ZooKeeperProxy(TcpProxy):
    """Knows the sessions that go through it, and can end them from outside."""

    _RESPONSE = struct.Struct(">iiiq")  # length, protocol version, timeout, session id; then the password
    _REQUEST = struct.Struct(">iqiqi16sB")
    _CLOSE_SESSION = struct.pack(">iii", 8, 1, -11)

    def _see(self, connection: _Connection, data: bytes) -> None:
        if connection.session is None and len(data) >= self._RESPONSE.size + 20:
            session_id = self._RESPONSE.unpack_from(data)[3]
            start = self._RESPONSE.size + 4
            connection.session = (session_id, data[start : start + 16])

    async def expire(self) -> int:
        """Close every session at the server, as if it had expired, and cut its connection. How many there were."""
        sessions = [c.session for c in self._connections if c.session is not None and c.session[0]]
        expired = sum([await self._close_session(*session) for session in sessions])
        await self.cut()
        return expired

    async def _close_session(self, session_id: int, password: bytes) -> bool:
        """By a connection of our own that takes the session over (ZooKeeper's `ConnectRequest`)."""
        try:
            reader, writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            return False
        body = self._REQUEST.pack(0, 0, 2000, session_id, 16, password, 0)
        try:
            writer.write(struct.pack(">i", len(body)) + body)
            answer = await asyncio.wait_for(reader.read(_CHUNK_BYTES), 5.0)
            if len(answer) < self._RESPONSE.size or self._RESPONSE.unpack_from(answer)[3] != session_id:
                return False
            writer.write(self._CLOSE_SESSION)
            return bool(await asyncio.wait_for(reader.read(_CHUNK_BYTES), 5.0))
        except (OSError, TimeoutError):
            return False
        finally:
            writer.transport.abort()
