"""An HTTP proxy in front of S3 whose answers are wrong, late or missing, before or after S3 has executed the call.

The signature covers the Host header, so that goes through as it came. The proxy takes one request a connection.

With `guard=False` it takes `If-None-Match` out of every request and signs it again: S3 then overwrites objects,
with the product unchanged. With this, the tests show that they detect a protocol without its guard.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import parse_qs, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config as BotoConfig
from botocore.credentials import Credentials

from chaos.loop import ProxyLoop, reset

SLOW_SECONDS = 0.7
_GUARD = "if-none-match"
_READ_BYTES = 256 << 10


class S3Call(StrEnum):
    """The kind of call of a request."""

    PUT_OBJECT = "PutObject"
    CREATE_MULTIPART_UPLOAD = "CreateMultipartUpload"
    UPLOAD_PART = "UploadPart"
    COMPLETE_MULTIPART_UPLOAD = "CompleteMultipartUpload"
    ABORT_MULTIPART_UPLOAD = "AbortMultipartUpload"
    HEAD_OBJECT = "HeadObject"
    GET_OBJECT = "GetObject"
    LIST_OBJECTS = "ListObjectsV2"
    OTHER = "other"


class Effect(StrEnum):
    """The effects on a call, or triggered by it."""

    ERROR_500 = "500"
    ERROR_503 = "503"
    SLOW = "slow"
    RESET = "reset"
    """Half of the request is read, and it is not sent to S3."""
    APPLIED_500 = "500 after it was applied"
    APPLIED_RESET = "reset after it was applied"
    NO_ANSWER = "no answer after it was applied"
    """Until the client gives up."""
    CUT_BODY = "body cut half way"
    CUT_ZOOKEEPER = "ZooKeeper connections cut"
    FREEZE_ZOOKEEPER = "ZooKeeper connections frozen"
    EXPIRE_SESSION = "ZooKeeper session expired"
    DELETE_NODES = "ZooKeeper nodes deleted"
    CUT_KAFKA = "Kafka connections cut"
    FREEZE_KAFKA = "Kafka connections frozen"
    CUT_FETCH = "Kafka response cut half way"


_APPLIED = frozenset({Effect.APPLIED_500, Effect.APPLIED_RESET, Effect.NO_ANSWER, Effect.CUT_BODY})
_STATUS = {Effect.ERROR_500: (500, "InternalError"), Effect.ERROR_503: (503, "SlowDown")}


@dataclass(frozen=True)
class CallFault:
    """From the `nth` call of a kind on, faults are injected into `times` calls of that kind."""

    call: S3Call
    effect: Effect
    nth: int = 1
    times: int = 1


@dataclass(frozen=True)
class _Request:
    method: str
    target: str
    headers: list[tuple[str, str]]

    @classmethod
    def parse(cls, head: bytes) -> _Request:
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        return cls(method, target, headers)

    def header(self, wanted: str) -> str:
        return next((value for name, value in self.headers if name.lower() == wanted), "")

    @property
    def key(self) -> str:
        """Bucket and key."""
        return urlsplit(self.target).path.lstrip("/")

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.target).query, keep_blank_values=True)

    @property
    def call(self) -> S3Call:
        query = self.query
        if "uploadId" in query:
            return _OF_UPLOAD.get(self.method, S3Call.OTHER)
        if "uploads" in query:
            return S3Call.CREATE_MULTIPART_UPLOAD if self.method == "POST" else S3Call.OTHER
        if "list-type" in query:
            return S3Call.LIST_OBJECTS
        return _OF_OBJECT.get(self.method, S3Call.OTHER) if "/" in self.key else S3Call.OTHER

    def head(self) -> bytes:
        """For the server. `Expect` was answered here."""
        kept = [(n, v) for n, v in self.headers if n.lower() not in ("expect", "connection")] + [
            ("Connection", "close")
        ]
        lines = [f"{self.method} {self.target} HTTP/1.1", *(f"{name}: {value}" for name, value in kept)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


_OF_UPLOAD = {
    "PUT": S3Call.UPLOAD_PART,
    "POST": S3Call.COMPLETE_MULTIPART_UPLOAD,
    "DELETE": S3Call.ABORT_MULTIPART_UPLOAD,
}
_OF_OBJECT = {"PUT": S3Call.PUT_OBJECT, "HEAD": S3Call.HEAD_OBJECT, "GET": S3Call.GET_OBJECT}


class S3Proxy:
    """One scenario's way to S3. `elsewhere` executes effects on other services."""

    def __init__(
        self,
        proxies: ProxyLoop,
        endpoint_url: str,
        credentials: Credentials,
        faults: Sequence[CallFault] = (),
        *,
        guard: bool = True,
        elsewhere: Callable[[Effect], Awaitable[int]] | None = None,
    ) -> None:
        url = urlsplit(endpoint_url)
        assert url.hostname is not None
        assert url.port is not None
        self._upstream = (url.hostname, url.port)
        self._credentials = credentials
        self._faults = [[fault, fault.nth - 1, fault.times] for fault in faults]
        self._guard = guard
        self._elsewhere = elsewhere
        self._proxies = proxies
        self.injected: Counter[str] = Counter()
        """How often each fault happened."""
        self.calls: Counter[S3Call] = Counter()
        self.created: dict[str, set[str]] = defaultdict(set)
        """By which uploads S3 said that it created an object of that key: by one at most, says the protocol."""
        self._server: asyncio.Server | None = None
        self.port = proxies.run(self._start())

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pending(self) -> int:
        """How many faults have not happened yet."""
        return len(self._faults)

    def hurt(self, *faults: CallFault) -> None:
        """More faults, counted from now on."""
        self._faults += [[fault, fault.nth - 1, fault.times] for fault in faults]

    def heal(self) -> None:
        """No more faults."""
        self._faults.clear()

    def close(self) -> None:
        self._proxies.run(self._close())

    async def _start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()

    # --- one request ---

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await self._exchange(reader, writer)
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = _Request.parse(await reader.readuntil(b"\r\n\r\n"))
        call, length = request.call, int(request.header("content-length") or 0)
        self.calls[call] += 1
        effect = self._effect(call)
        if request.header("expect"):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if effect is Effect.RESET:
            await reader.readexactly(length // 2)
            self._count(call, effect)
            reset(writer)
            return
        chunked = "chunked" in request.header("transfer-encoding")
        body = await _read_chunks(reader) if chunked else await reader.readexactly(length)
        if effect in _STATUS:
            self._count(call, effect)
            await self._refuse(request, writer, *_STATUS[effect])
            return
        await self._beforehand(call, effect)
        answer = await self._ask(request, body)
        if effect is Effect.NO_ANSWER:
            self._note_creation(request, answer)
            self._count(call, effect)
            await reader.read(-1)
            return
        await self._answer(request, writer, effect, answer)

    async def _beforehand(self, call: S3Call, effect: Effect | None) -> None:
        if effect is None or effect in _APPLIED:
            return
        if effect is Effect.SLOW:
            self._count(call, effect)
            await asyncio.sleep(SLOW_SECONDS)
        elif self._elsewhere is not None and await self._elsewhere(effect):
            self.injected[f"{effect}, at a {call}"] += 1

    async def _answer(
        self, request: _Request, writer: asyncio.StreamWriter, effect: Effect | None, answer: bytes
    ) -> None:
        applied = self._note_creation(request, answer)
        if effect in _APPLIED and applied:
            self._count(request.call, effect)
            if effect is Effect.APPLIED_RESET:
                reset(writer)
                return
            if effect is Effect.APPLIED_500:
                await self._refuse(request, writer, *_STATUS[Effect.ERROR_500])
                return
            head, separator, body = answer.partition(b"\r\n\r\n")
            answer = head + separator + body[: len(body) // 2]
        writer.write(answer)
        await writer.drain()

    def _note_creation(self, request: _Request, answer: bytes) -> bool:
        """Whether the call was applied; an object that it created is noted."""
        applied = 200 <= int(answer[9:12] or 0) < 300
        if applied and request.call in (S3Call.PUT_OBJECT, S3Call.COMPLETE_MULTIPART_UPLOAD):
            # A completion that is tried again is answered as before: it is the same upload.
            self.created[request.key].add(request.query.get("uploadId", [f"call {self.calls.total()}"])[0])
        return applied

    async def _refuse(self, request: _Request, writer: asyncio.StreamWriter, status: int, code: str) -> None:
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
        body = b"" if request.method == "HEAD" else text
        head = f"HTTP/1.1 {status} Injected\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        await writer.drain()

    async def _ask(self, request: _Request, body: bytes) -> bytes:
        if not self._guard and request.header(_GUARD):
            request = self._unguarded(request)
        loop = asyncio.get_running_loop()
        with socket.socket() as upstream:
            upstream.setblocking(False)
            await loop.sock_connect(upstream, self._upstream)
            # S3 refuses some requests before it has read their body, and resets the connection behind its answer. A
            # stream of asyncio would drop that answer, and without it a client would retry for ever without a reason.
            with contextlib.suppress(ConnectionError):
                await loop.sock_sendall(upstream, request.head() + body)
            return _closing(await _read_to_the_end(upstream))

    def _unguarded(self, request: _Request) -> _Request:
        """The request without its condition, signed again."""
        signed = ("authorization", "x-amz-date", _GUARD, "expect", "content-length", "connection", "accept-encoding")
        headers = {name: value for name, value in request.headers if name.lower() not in signed}
        url = f"http://{request.header('host')}{request.target}"
        made = AWSRequest(method=request.method, url=url, headers=headers)
        made.context["client_config"] = BotoConfig(s3={"payload_signing_enabled": False})
        region = re.search(r"Credential=[^/]+/\d+/([^/]+)/", request.header("authorization"))
        S3SigV4Auth(self._credentials, "s3", region.group(1) if region else "us-east-1").add_auth(made)
        length = [("Content-Length", request.header("content-length") or "0")]
        return _Request(request.method, request.target, [*((n, str(v)) for n, v in made.headers.items()), *length])

    # --- which fault ---

    def _effect(self, call: S3Call) -> Effect | None:
        """The effect that is due at this call, if any: at most one a call."""
        for entry in self._faults:
            fault, waits, times = entry
            if fault.call is not call:
                continue
            if waits:
                entry[1] -= 1
                continue
            entry[2] = times - 1
            if not entry[2]:
                self._faults.remove(entry)
            return fault.effect
        return None

    def _count(self, call: S3Call, effect: Effect) -> None:
        self.injected[f"S3 {call}: {effect}"] += 1


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    """A body of unknown length, as Arrow's client sends it, with the framing of HTTP around it."""
    body = b""
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        body += line + await reader.readexactly(size + 2)
        if not size:
            return body


async def _read_to_the_end(upstream: socket.socket) -> bytes:
    """All that comes. A reset is an end like any other, once something came."""
    answer = b""
    while True:
        try:
            chunk = await asyncio.get_running_loop().sock_recv(upstream, _READ_BYTES)
        except ConnectionError:
            if not answer:
                raise
            return answer
        if not chunk:
            return answer
        answer += chunk


def _closing(answer: bytes) -> bytes:
    """Say in the answer's head that the connection ends here."""
    head, separator, body = answer.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([*lines, b"Connection: close"]) + separator + body
