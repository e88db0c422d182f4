"""A proxy in front of Kinesis that injects faults into calls: bad answers, missing answers, and refusals of Kinesis."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

_TIMEOUT_SECONDS = 60.0
_AT_ONCE = struct.pack("ii", 1, 0)


class KinesisEffect(StrEnum):
    """What happens to a call."""

    EXPIRED_ITERATOR = "ExpiredIteratorException"
    THROTTLED = "ProvisionedThroughputExceededException"
    ACCESS_DENIED = "AccessDeniedException"
    ERROR_500 = "InternalFailure"
    NO_BODY_500 = "500 without a body"
    CUT = "connection cut half way through the body"
    TRUNCATED = "half of the body, as if it were all"
    EMPTY_BODY = "200 without a body"
    NO_ANSWER = "connection closed without an answer"
    RESET = "connection reset without an answer"
    EMPTY_BELOW_TIP = "no records below the tip"
    NO_NEXT_ITERATOR = "the field NextShardIterator is lost"
    UNKNOWN_FIELDS = "fields that no version had"
    REPEATED = "the first answer of GetRecords again"


_REFUSALS = frozenset({KinesisEffect.EXPIRED_ITERATOR, KinesisEffect.THROTTLED, KinesisEffect.ACCESS_DENIED})


class KinesisProxy:
    """A context manager. It forwards every call, unless an effect is planned for its action, such as `GetRecords`."""

    def __init__(self, endpoint_url: str) -> None:
        self._upstream = urlsplit(endpoint_url).netloc
        self._effects: dict[str, deque[KinesisEffect]] = defaultdict(deque)
        self._first_records: list[Any] = []
        self._lock = threading.Lock()
        self.calls: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()
        """How often each effect happened."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                proxy._serve(self)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint_url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="kinesis-proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def hurt(self, action: str, *effects: KinesisEffect) -> None:
        """Inject one effect into each of the next calls of an action."""
        with self._lock:
            self._effects[action] += effects

    def heal(self) -> None:
        """No more effects."""
        with self._lock:
            self._effects.clear()

    @property
    def pending(self) -> int:
        """How many effects have not happened yet."""
        with self._lock:
            return sum(map(len, self._effects.values()))

    # --- one call ---

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        action = (handler.headers.get("X-Amz-Target") or "").rpartition(".")[2]
        with self._lock:
            self.calls[action] += 1
            effect = self._effects[action].popleft() if self._effects[action] else None
            if effect is not None:
                self.injected[effect] += 1
        if effect in (KinesisEffect.NO_ANSWER, KinesisEffect.RESET):
            self._leave(handler, reset=effect is KinesisEffect.RESET)
        elif effect in _REFUSALS:
            self._send(handler, 400, _error(str(effect)))
        elif effect is KinesisEffect.ERROR_500:
            self._send(handler, 500, _error(str(effect)))
        elif effect is KinesisEffect.NO_BODY_500:
            self._send(handler, 500, b"")
        else:
            self._forward(handler, action, body, effect)

    def _forward(self, handler: BaseHTTPRequestHandler, action: str, body: bytes, effect: KinesisEffect | None) -> None:
        upstream = http.client.HTTPConnection(self._upstream, timeout=_TIMEOUT_SECONDS)
        try:
            upstream.request("POST", handler.path, body, dict(handler.headers.items()))
            answer = upstream.getresponse()
            status, content = answer.status, answer.read()
        finally:
            upstream.close()
        if action == "GetRecords" and status == 200:
            content = self._change(effect, json.loads(body), content)
        if effect is KinesisEffect.EMPTY_BODY:
            content = b""
        elif effect is KinesisEffect.TRUNCATED:
            content = content[: len(content) // 2]
        self._send(handler, status, content, cut=effect is KinesisEffect.CUT)

    def _change(self, effect: KinesisEffect | None, request: dict[str, Any], content: bytes) -> bytes:
        """Return another answer of GetRecords."""
        answer = json.loads(content)
        if not self._first_records:
            self._first_records = answer["Records"]
        changes: dict[KinesisEffect, Callable[[], dict[str, Any]]] = {
            KinesisEffect.EMPTY_BELOW_TIP: lambda: {
                "Records": [],
                "MillisBehindLatest": 5000,
                "NextShardIterator": request["ShardIterator"],
            },
            KinesisEffect.NO_NEXT_ITERATOR: lambda: {k: v for k, v in answer.items() if k != "NextShardIterator"},
            KinesisEffect.UNKNOWN_FIELDS: lambda: {
                **answer,
                "Future": {"a": [1]},
                "Records": [{**record, "Future": 1.5} for record in answer["Records"]],
            },
            KinesisEffect.REPEATED: lambda: {
                "Records": self._first_records,
                "MillisBehindLatest": 5000,
                "NextShardIterator": request["ShardIterator"],
            },
        }
        return json.dumps(changes[effect]()).encode() if effect in changes else content

    def _send(self, handler: BaseHTTPRequestHandler, status: int, content: bytes, *, cut: bool = False) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", "application/x-amz-json-1.1")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self._leave(handler, reset=False)

    def _leave(self, handler: BaseHTTPRequestHandler, *, reset: bool) -> None:
        handler.close_connection = True
        if reset:
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)


def _error(code: str) -> bytes:
    return json.dumps({"__type": code, "message": "injected"}).encode()
