"""One POST at a time to one webhook: to a checked address, within a total time, with a bounded answer.

httpcore sends the requests. It follows no redirects, uses no proxy of the environment and decompresses nothing, so an
answer is never larger than what came over the network. Its network backend is replaced by one that

- looks the host up once for a connection, checks its addresses, and connects to one of these. The URL keeps the name,
  so the header `Host`, the server name of TLS and the check of the certificate are those of the name;
- limits the total time of one request, from the name lookup to the last byte of the answer. httpcore's own timeouts
  apply to each read, so a receiver that sends one byte per second would never exceed them.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpcore
import httpx

from waybill.base.errors import ReplayRefused
from waybill.replay.requests.delivery.addresses import HostUnknown, Lookup, Network, find_addresses

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class ReceiverAnswer:
    """The answer of a receiver, read up to a limit."""

    status: int
    headers: Mapping[str, str]
    """Names are in lower case; of a repeated header, the last value."""
    body: bytes
    is_cut: bool
    """Whether the body is longer than the limit; the rest was not read."""


class NoAnswer(Exception):
    """The receiver was not reached, or its answer is incomplete. It is unknown whether it got the request."""


class _Deadline:
    """The end of the time for one request."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at = clock()

    def start(self, seconds: float) -> None:
        self._at = self._clock() + seconds

    def remaining(self) -> float:
        """Return the seconds left. Raises `httpcore.ReadTimeout` if there are none."""
        left = self._at - self._clock()
        if left <= 0:
            raise httpcore.ReadTimeout("the time for the request is over")
        return left


class _TimedStream(httpcore.NetworkStream):
    """A connection on which every wait ends at the deadline."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: _Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - httpcore passes it
        return self._stream.read(max_bytes, self._deadline.remaining())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - httpcore passes it
        # Send in pieces: the timeout of a write applies to each call of send, and a large buffer needs many calls.
        view = memoryview(buffer)
        for start in range(0, len(view), 1 << 16):
            self._stream.write(bytes(view[start : start + (1 << 16)]), self._deadline.remaining())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002 - httpcore passes it
    ) -> httpcore.NetworkStream:
        # Python's handshake counts its timeout from its beginning, not for each read.
        secured = self._stream.start_tls(ssl_context, server_hostname, self._deadline.remaining())
        return _TimedStream(secured, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _CheckedNetwork(httpcore.NetworkBackend):
    """Connects to checked addresses only."""

    def __init__(self, allowed: Iterable[Network], deadline: _Deadline, lookup: Lookup | None) -> None:
        self._allowed = tuple(allowed)
        self._deadline = deadline
        self._lookup = lookup
        self._network = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - httpcore passes it
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        found = find_addresses(host, port, self._allowed, self._deadline.remaining(), self._lookup)
        failures: list[str] = []
        for position, address in enumerate(found):
            # Each address gets a part of the time, so that a silent address does not prevent the use of the next one.
            seconds = self._deadline.remaining() / (len(found) - position)
            try:
                stream = self._network.connect_tcp(str(address), port, seconds, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failures.append(f"{address}: {error}")
            else:
                return _TimedStream(stream, self._deadline)
        raise httpcore.ConnectError("; ".join(failures))


class WebhookClient:
    """Posts to one URL. Connections are kept between requests. Not thread-safe."""

    def __init__(
        self,
        url: str,
        *,
        allowed: Iterable[Network] = (),
        timeout_seconds: float,
        max_answer_bytes: int,
        tls: ssl.SSLContext | None = None,
        lookup: Lookup | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        """`allowed`: private networks that are not refused. `tls`: by default, the CAs of the system.

        Raises `ReplayRefused` if `url` is none of http or https.
        """
        parsed = _parse(url)
        self.url = url
        """The URL as the replay request has it."""
        self._url = httpcore.URL(
            scheme=parsed.raw_scheme, host=parsed.raw_host, port=parsed.port, target=parsed.raw_path
        )
        self._host_header = parsed.netloc
        self._server_name = parsed.raw_host.decode("ascii").rstrip(".")
        self._timeout_seconds = timeout_seconds
        self._max_answer_bytes = max_answer_bytes
        self._deadline = _Deadline(clock)
        self._pool = httpcore.ConnectionPool(
            ssl_context=tls or _system_tls(),
            max_connections=1,
            keepalive_expiry=30,
            network_backend=_CheckedNetwork(allowed, self._deadline, lookup),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def post(self, body: bytes, headers: Mapping[str, str]) -> ReceiverAnswer:
        """Send a request with this body, and return the answer.

        Raises `NoAnswer` if there is no complete answer in time; `ReplayRefused` if the host has an address that is not
        allowed.
        """
        self._deadline.start(self._timeout_seconds)
        fields = [
            (b"Host", self._host_header),
            (b"Content-Length", str(len(body)).encode()),
            (b"Accept-Encoding", b"identity"),
            *((name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()),
        ]
        try:
            with self._pool.stream(
                b"POST",
                self._url,
                headers=fields,
                content=body,
                extensions={"sni_hostname": self._server_name},
            ) as response:
                content, is_cut = self._read(response)
                return ReceiverAnswer(
                    response.status,
                    {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers},
                    content,
                    is_cut,
                )
        except httpcore.TimeoutException as error:
            raise NoAnswer(f"no whole answer within {self._timeout_seconds:g} s ({_text(error)})") from None
        except (httpcore.NetworkError, httpcore.ProtocolError, HostUnknown, ssl.SSLError) as error:
            raise NoAnswer(_text(error)) from None

    def _read(self, response: httpcore.Response) -> tuple[bytes, bool]:
        found = bytearray()
        for chunk in response.iter_stream():
            found += chunk
            if len(found) > self._max_answer_bytes:
                # Leaving the context closes the connection, also if there are unread bytes.
                return bytes(found[: self._max_answer_bytes]), True
        return bytes(found), False


def _parse(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ReplayRefused(f"is no URL: {error}", "target.url") from None
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo:
        raise ReplayRefused("must begin with https://, and name a host and no user", "target.url")
    return parsed


def _system_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
