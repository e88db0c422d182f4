"""kafka-python's connections with fewer copies: large responses are received straight into one buffer that is reused.

kafka-python 3.0 reads a socket in pieces of 4 KiB, joins them, and copies the result several times before a fetch
response is decoded: half of what a lane would spend on CPU (docs/decisions/0003). Here the bytes of a large response go
from the kernel into the frame that the parser decodes. Everything else (requests, correlation, time-outs, TLS, SASL) is
kafka-python's own.

And connections that fail for good: kafka-python tries a refused password again until the time for connecting is up, and
waits without end for a server that says nothing to a TLS handshake. Here a refusal is remembered, and raised at once.

This module uses names that kafka-python does not promise to keep: `KafkaConnectionManager._build_transport`, `_connect`
and `_auth_failures`, `KafkaTCPTransport._read_from_sock` and `_sock`, `_receiving`, `_rbuffer` and `_max_frame_size`
of `KafkaProtocol`. The version is locked, and tests/integration/test_source_kafka.py and test_security.py read through
it.
"""

from __future__ import annotations

import ssl
import struct
import time
from typing import Any

from kafka import errors as kafka_errors
from kafka.net.inet import create_connection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

__all__ = ["DirectConnectionManager", "TlsExpected", "TlsRefused"]

_LENGTH = struct.Struct(">i")
_LARGE_BYTES = 64 << 10
_WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_TLS_ALERT = b"\x15\x03"  # how TLS says that it does not understand: no length of a response begins like that


class TlsRefused(kafka_errors.KafkaError):  # type: ignore[misc]
    """The server's certificate is not to be trusted, or it speaks no TLS: trying again cannot help."""


class TlsExpected(kafka_errors.KafkaError):  # type: ignore[misc]
    """The server answers with TLS, which was not asked for."""


_REFUSALS = (
    TlsExpected,
    TlsRefused,
    kafka_errors.AuthorizationError,
    kafka_errors.IllegalSaslStateError,
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
)


class _Frame:
    """A response's bytes as kafka-python's parser reads them (`KafkaBytes`), in a buffer that is kept."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._length = 0
        self._position = 0

    def begin(self, length: int) -> None:
        """Make room for a response. What was read out of the last one must not be in use any more."""
        if len(self._buffer) < length:
            self._buffer = bytearray(length)
        self._length = length
        self._position = 0

    def rest(self, keep_back: int = 0) -> memoryview:
        """Where the next bytes go."""
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
    """Mixed into a transport of kafka-python's: how it reads."""

    _net: Any
    _sock: Any
    _protocol: Any
    _read: bool
    _closed: bool
    last_read: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._prefix = b""
        self._frame = _Frame()

    async def _read_from_sock(self) -> None:
        while self._read and not self._closed:
            await self._net.wait_read(self._sock)
            try:
                self._receive()
            except (OSError, kafka_errors.KafkaProtocolError, TlsExpected) as error:
                self.abort(error=_reading_error(error))  # type: ignore[attr-defined]
                return

    def _receive(self) -> None:
        """Take what the socket has, up to the end of a response."""
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
        """Bytes that were taken from the socket already, of which the selector knows nothing."""
        return 0

    def _receive_length(self, parser: Any) -> None:
        self._prefix += self._some(self._sock.recv(_LENGTH.size - len(self._prefix)))
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
        """True at the end of a response. Its last byte goes through the parser, which then decodes it."""
        frame = parser._rbuffer
        left = len(frame) - frame.tell()
        if frame is self._frame and left > 1:
            with frame.rest(keep_back=1) as target:
                count = self._sock.recv_into(target)
            self._some(count)
            frame.advance(count)
            return False
        self._protocol.data_received(self._some(self._sock.recv(left)))
        return not parser._receiving

    def _some(self, received: Any) -> Any:
        if not received:
            raise kafka_errors.KafkaProtocolError("socket disconnected")
        self.last_read = time.monotonic()
        return received


class _DirectTCPTransport(_Direct, KafkaTCPTransport):  # type: ignore[misc]
    pass


class _DirectSSLTransport(_Direct, KafkaSSLTransport):  # type: ignore[misc]
    def _pending(self) -> int:
        # A TLS record may hold the end of one response and the beginning of the next.
        return 0 if self._closed else int(self._sock.pending())

    async def handshake_until(self, timeout_at: float | None) -> None:
        """The handshake, given up at that time (of the monotonic clock)."""
        while True:
            try:
                self._sock.do_handshake()
                return
            except ssl.SSLWantReadError:
                await self._net.wait_read(self._sock, timeout_at)
            except ssl.SSLWantWriteError:
                await self._net.wait_write(self._sock, timeout_at)


class DirectConnectionManager(KafkaConnectionManager):  # type: ignore[misc]
    """kafka-python's connection manager, with the transports of this module."""

    def __init__(self, net: Any, **configs: Any) -> None:
        super().__init__(net, **configs)
        self.last_failure: BaseException | None = None
        """Why the last connection that failed did."""

    async def _connect(self, node: Any, conn: Any, *args: Any, **kwargs: Any) -> None:
        await super()._connect(node, conn, *args, **kwargs)
        if conn.init_future.failed():
            self.last_failure = conn.init_future.exception
            if isinstance(self.last_failure, _REFUSALS):
                # Whoever asks for a connection to this broker gets it raised. kafka-python means to do so itself, but
                # looks for it where it never arrives.
                self._auth_failures[node.node_id] = self.last_failure

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        sock = await create_connection(
            self._net,
            node.host,
            node.port,
            self.config["socket_options"],
            proxy_url=self.config["proxy_url"],
            timeout_at=timeout_at,
        )
        if not self.ssl_enabled:
            return _DirectTCPTransport(self._net, sock, host=node.host)
        options = {key: value for key, value in self.config.items() if key.startswith("ssl_")}
        transport = _DirectSSLTransport(self._net, sock, host=node.host, **options)
        try:
            await transport.handshake_until(timeout_at)
        except Exception as error:
            transport.abort()
            raise _handshake_error(error, f"{node.host}:{node.port}") from error
        return transport


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
    if _is_about_our_certificate(error):  # in TLS 1.3 the server looks at it after our handshake is done
        return TlsRefused(f"the server refuses our certificate, or the lack of one: {error}")
    return kafka_errors.KafkaConnectionError(error)


def _is_about_our_certificate(error: Exception) -> bool:
    reason = (isinstance(error, ssl.SSLError) and error.reason) or ""
    return "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)
