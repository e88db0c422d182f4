"""kafka-python's connections with fewer copies, errors that are final, and sockets that are closed.

Fewer copies: kafka-python 3.0 reads a socket in pieces of 4 KiB, joins them, and copies the result several times
before it decodes a fetch response: half of the CPU time that a lane would use (docs/decisions/0003). Here the kernel
writes the bytes of a large response directly into one buffer, which is reused, and which the parser decodes. Requests,
correlation ids, timeouts, TLS and SASL remain kafka-python's own.

Final errors: kafka-python retries a refused password until the connection timeout, and has no timeout for a server
that does not answer a TLS handshake. Here a refusal is kept and raised at once, and the connection timeout includes
the handshake.

Silent brokers: if any broker can answer, kafka-python chooses at random, so it may repeatedly choose a hanging broker;
and the first connection can use the whole time. Here the next choice is another broker, and the first connection gets a
fourth of the time if several servers are known.

Closed sockets: kafka-python leaves some sockets to the garbage collector: the socket of a refused connection, of a
connection that is in progress when the client closes, and of a connection that is closed before its last request was
sent. Here a connection attempt that fails closes its socket, and `DirectConnectionManager.close_sockets` closes the
others.

This module uses names that kafka-python may change in any version: `KafkaConnectionManager._build_transport`,
`_connect`, `_auth_failures`, `get_connection` and `least_loaded_node`, `KafkaConnection._reauth`, `KafkaNetSocket`,
`KafkaTCPTransport._read_from_sock`, `_read_task`, `_sock`, `_write` and `_writing`, and `_receiving`, `_rbuffer` and
`_max_frame_size` of `KafkaProtocol`.
Therefore the version is pinned, and tests/integration/test_source_kafka.py and test_security.py read through this
module.
"""

from __future__ import annotations

import random
import selectors
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from typing import Any

from kafka import errors as kafka_errors
from kafka.net.connection import KafkaConnection
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

_LENGTH = struct.Struct(">i")
_LARGE_BYTES = 64 << 10
_AVOIDED_SECONDS = 30.0
_BOOTSTRAP_ATTEMPTS = 4
_WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_TLS_ALERT = b"\x15\x03"  # the first bytes of a TLS alert record; a response's length never begins with them


class TlsRefused(kafka_errors.KafkaError):  # type: ignore[misc]
    """The server's certificate is not trusted, or the server does not speak TLS. Retries cannot help."""


class TlsExpected(kafka_errors.KafkaError):  # type: ignore[misc]
    """The server answers a plaintext connection with TLS."""


_REFUSALS = (
    TlsExpected,
    TlsRefused,
    kafka_errors.AuthorizationError,
    kafka_errors.IllegalSaslStateError,
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
)


class DirectConnectionManager(KafkaConnectionManager):  # type: ignore[misc]
    """kafka-python's connection manager, with the transports of this module."""

    def __init__(self, net: Any, **configs: Any) -> None:
        super().__init__(net, **configs)
        self.last_failure: BaseException | None = None
        """The error of the last connection that failed."""
        self._open_sockets: list[socket.socket] = []
        self._silent: dict[Any, float] = {}
        """When a request to a broker failed last, for brokers that have not answered since."""
        servers = self.cluster.bootstrap_brokers
        # The bootstrap chooses at random, too.
        self.cluster.bootstrap_brokers = lambda: (
            [each for each in servers() if not self._is_silent(each.node_id)] or servers()
        )

    def note_answer(self, node_id: Any, *, answered: bool) -> None:
        """Store whether a broker answered a request. Call it in the IO thread."""
        if answered:
            self._silent.pop(node_id, None)
        elif node_id is not None:
            self._silent[node_id] = time.monotonic()

    def least_loaded_node(self) -> Any:
        """Return the broker for a request that any broker can answer.

        If possible, one without a failure in the last 30 s.

        kafka-python chooses at random among brokers without a connection, and a broker that hangs accepts connections.
        So it may repeatedly choose the same broker.
        """
        found = super().least_loaded_node()
        if not self._is_silent(found):
            return found
        others = [
            broker.node_id
            for broker in self.cluster.brokers()
            if not self._is_silent(broker.node_id) and self.connection_delay(broker.node_id) <= 0
        ]
        return random.choice(others) if others else found

    def get_connection(self, node_id: Any, timeout_ms: float | None = None, **options: Any) -> Any:
        """Return the connection to a broker, and connect if there is none. `timeout_ms`: of the first connection."""
        if timeout_ms is not None and len(self.cluster.bootstrap_brokers()) > 1:
            timeout_ms = min(timeout_ms, self.config["socket_connection_setup_timeout_ms"] / _BOOTSTRAP_ATTEMPTS)
        return super().get_connection(node_id, timeout_ms=timeout_ms, **options)

    def _is_silent(self, node_id: Any) -> bool:
        return node_id in self._silent and time.monotonic() - self._silent[node_id] < _AVOIDED_SECONDS

    def close_sockets(self) -> None:
        """Close every socket that is still open. To be called last, when the event loop has ended."""
        for sock in self._open_sockets:
            sock.close()
        self._open_sockets.clear()

    async def open_socket(self, node_id: int) -> socket.socket:
        """Connect to a broker, authenticate, and return the socket, which kafka-python uses no more.

        To be called in the IO thread. Raises kafka-python's errors, and those of `_connect` that are final.
        """
        self.maybe_raise_auth_failure(node_id)
        node = self.cluster.broker_metadata(node_id)
        if node is None or self.closed:
            raise kafka_errors.NodeNotReadyError(node_id)
        conn = KafkaConnection(self._net, node_id, self.broker_version_data, **self.config)
        timeout_seconds = self.config["socket_connection_setup_timeout_ms"] / 1000
        await self._connect(node, conn, timeout_at=time.monotonic() + timeout_seconds)
        if self.closed:
            raise kafka_errors.KafkaConnectionError("the client is closed")
        await conn.init_future
        conn._reauth.cancel()
        transport = conn.transport
        transport.pause_reading()
        self._net.cancel(transport._read_task)
        sock: socket.socket = transport._sock
        transport._sock = transport._read_task = None
        return sock

    async def _connect(self, node: Any, conn: Any, *args: Any, **kwargs: Any) -> None:
        await super()._connect(node, conn, *args, **kwargs)
        if conn.init_future.failed():
            self.last_failure = conn.init_future.exception
            self.note_answer(node.node_id, answered=False)
            if isinstance(self.last_failure, _REFUSALS):
                # The manager raises this error to every caller that asks for a connection to this broker. kafka-python
                # intends the same, but catches the error at a place where it is never raised.
                self._auth_failures[node.node_id] = self.last_failure

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        sock = await create_connection(self._net, node.host, node.port, self.config["socket_options"], timeout_at)
        transport = self._new_transport(sock, node.host)
        if isinstance(transport, _DirectSSLTransport):
            try:
                await transport.handshake_until(timeout_at)
            except Exception as error:
                transport.abort()
                raise _handshake_error(error, f"{node.host}:{node.port}") from error
        return transport

    def _new_transport(self, sock: socket.socket, host: str) -> _DirectTCPTransport | _DirectSSLTransport:
        transport: _DirectTCPTransport | _DirectSSLTransport
        try:
            if self.ssl_enabled:
                options = {key: value for key, value in self.config.items() if key.startswith("ssl_")}
                transport = _DirectSSLTransport(self._net, sock, host=host, **options)
            else:
                transport = _DirectTCPTransport(self._net, sock, host=host)
        except Exception:
            sock.close()
            raise
        self._open_sockets = [each for each in self._open_sockets if each.fileno() >= 0]
        self._open_sockets.append(transport._sock)
        return transport


async def create_connection(
    net: Any, host: str, port: int, options: Sequence[tuple[int, int, int]], timeout_at: float | None
) -> socket.socket:
    """Connect to the first address of a host that accepts, and return the socket.

    This does what kafka-python's function of the same name does without a proxy, and closes the socket of each attempt
    that fails. `timeout_at` is a time of the monotonic clock. Raises `KafkaConnectionError`.
    """
    connector = KafkaNetSocket()
    failure = kafka_errors.KafkaConnectionError("DNS resolution failed")
    for family, kind, protocol, _, address in connector.dns_lookup(host, port):
        sock = connector.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            for option in options:
                sock.setsockopt(*option)
            return await connector.sock_connect(net, sock, address, timeout_at=timeout_at)  # type: ignore[no-any-return]
        except BaseException as error:  # also when the event loop ends this task
            sock.close()
            if isinstance(error, kafka_errors.KafkaTimeoutError):
                raise kafka_errors.KafkaConnectionError("the connection timed out") from error
            if isinstance(error, OSError):
                failure = kafka_errors.KafkaConnectionError(f"unable to connect: {error}")
            elif isinstance(error, kafka_errors.KafkaConnectionError):
                failure = error
            else:
                raise
    raise failure


class QuickSelector(selectors.DefaultSelector):
    """The default selector, whose `get_key` does not describe a socket that is not registered.

    kafka-python's event loop looks up each socket before it waits for it. Python's own lookup then formats an error
    with the addresses of both ends, four system calls: 40 % of the IO thread's time while many small requests are sent
    (docs/decisions/0026-restore.md).
    """

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if number < 0:  # a closed socket, which the default lookup finds by its identity
            return super().get_key(fileobj)
        return self.get_map()[number]


class _Frame:
    """The bytes of a response, in a buffer that is reused. kafka-python's parser reads them as its own `KafkaBytes`."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._length = 0
        self._position = 0

    def begin(self, length: int) -> None:
        """Make room for a response. Views of the last response must not be used from now on."""
        if len(self._buffer) < length:
            self._buffer = bytearray(length)
        self._length = length
        self._position = 0

    def rest(self, keep_back: int = 0) -> memoryview:
        """Return the part of the buffer that is still to be filled or read, without the last `keep_back` bytes."""
        return memoryview(self._buffer)[self._position : self._length - keep_back]

    def advance(self, count: int) -> None:
        self._position += count

    def __len__(self) -> int:
        return self._length

    def write(self, data: bytes) -> None:
        self.rest()[: len(data)] = data
        self._position += len(data)

    def read(self, count: int | None = None) -> bytes | memoryview:
        rest = self.rest()
        if count is None:
            self._position = self._length
            return rest
        self._position += len(rest[:count])
        return bytes(rest[:count])

    def seek(self, position: int) -> None:
        self._position = position

    def tell(self) -> int:
        return self._position


class _Direct:
    """A mixin for kafka-python's transports that replaces how they read."""

    _net: Any
    _sock: Any
    _protocol: Any
    _read: bool
    _write: bool
    _writing: bool
    _closed: bool
    last_read: float
    last_write: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._prefix = b""
        self._frame = _Frame()

    def write(self, data: bytes) -> None:
        """Send at once the bytes that the socket accepts; the event loop sends the rest.

        kafka-python waits until the socket can be written, which costs more than the call itself, and it nearly always
        can.
        """
        if self._closed or self._writing or not self._write or not data:
            super().write(data)  # type: ignore[misc]
            return
        try:
            sent = self._sock.send(data)
        except (*_WOULD_BLOCK, OSError):  # the event loop meets the same error, and handles it
            sent = 0
        self.last_write = time.monotonic()
        if sent < len(data):
            super().write(memoryview(data)[sent:])  # type: ignore[misc]

    async def _read_from_sock(self) -> None:
        while self._read and not self._closed:
            await self._net.wait_read(self._sock)
            try:
                self._receive()
            except (OSError, kafka_errors.KafkaProtocolError, TlsExpected) as error:
                self.abort(error=_reading_error(error))  # type: ignore[attr-defined]
                return

    def _receive(self) -> None:
        """Read the available bytes of the socket, up to the end of a response."""
        parser = self._protocol.parser
        try:
            while not self._closed:
                if not parser._receiving:
                    self._receive_length(parser)
                elif self._receive_body(parser) and not self._pending():
                    return
        except _WOULD_BLOCK:
            return

    def _pending(self) -> int:
        """Return the number of bytes that were read from the socket, so that the selector does not report them."""
        return 0

    def _receive_length(self, parser: Any) -> None:
        self._prefix += self._check_received(self._sock.recv(_LENGTH.size - len(self._prefix)))
        if len(self._prefix) < _LENGTH.size:
            return
        prefix, self._prefix = self._prefix, b""
        if prefix.startswith(_TLS_ALERT):
            raise TlsExpected("the server answers with TLS")
        (length,) = _LENGTH.unpack(prefix)
        if _LARGE_BYTES <= length <= parser._max_frame_size:
            self._frame.begin(length)
            parser._rbuffer = self._frame
            parser._receiving = True
        else:
            self._protocol.data_received(prefix)

    def _receive_body(self, parser: Any) -> bool:
        """Return whether the response is complete. Its last byte goes through the parser, which then decodes it."""
        frame = parser._rbuffer
        left = len(frame) - frame.tell()
        if frame is self._frame and left > 1:
            with frame.rest(keep_back=1) as target:
                count = self._sock.recv_into(target)
            self._check_received(count)
            frame.advance(count)
            return False
        self._protocol.data_received(self._check_received(self._sock.recv(left)))
        return not parser._receiving

    def _check_received(self, received: Any) -> Any:
        if not received:
            raise kafka_errors.KafkaProtocolError("socket disconnected")
        self.last_read = time.monotonic()
        return received


class _DirectTCPTransport(_Direct, KafkaTCPTransport):  # type: ignore[misc]
    pass


class _DirectSSLTransport(_Direct, KafkaSSLTransport):  # type: ignore[misc]
    def _pending(self) -> int:
        # One TLS record may hold the end of a response and the beginning of the next.
        return 0 if self._closed else int(self._sock.pending())

    async def handshake_until(self, timeout_at: float | None) -> None:
        """Do the TLS handshake. Raises `KafkaTimeoutError` at `timeout_at`, a time of the monotonic clock."""
        while True:
            try:
                self._sock.do_handshake()
                return
            except ssl.SSLWantReadError:
                await self._net.wait_read(self._sock, timeout_at)
            except ssl.SSLWantWriteError:
                await self._net.wait_write(self._sock, timeout_at)


def _handshake_error(error: Exception, server: str) -> kafka_errors.KafkaError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsRefused(f"the certificate of {server} is not trusted: {error.verify_message}")
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return TlsRefused(f"{server} does not speak TLS")
    if _is_about_our_certificate(error):
        return TlsRefused(f"{server} refuses our certificate, or the lack of one: {error}")
    reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else error
    return kafka_errors.KafkaConnectionError(f"the TLS handshake with {server} failed: {reason}")


def _reading_error(error: Exception) -> kafka_errors.KafkaError:
    if isinstance(error, TlsExpected):
        return error
    if _is_about_our_certificate(error):  # in TLS 1.3 the server checks it after our side of the handshake has ended
        return TlsRefused(f"the server refuses our certificate, or the lack of one: {error}")
    return kafka_errors.KafkaConnectionError(error)


def _is_about_our_certificate(error: Exception) -> bool:
    reason = (isinstance(error, ssl.SSLError) and error.reason) or ""
    return "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)
