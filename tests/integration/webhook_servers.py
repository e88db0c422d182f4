"""Webhook receivers in the test's process: a correct one, and hostile ones that speak raw TCP.

`Receiver` is written from docs/replay-webhooks.md alone, and imports nothing of Waybill: it verifies signatures,
answers challenges and keeps what it got by `Idempotency-Key`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Respond = Callable[[dict[str, Any]], tuple[int, dict[str, str], bytes]]


def _accept(_body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, b"{}"


@dataclass
class Receiver:
    """What a receiver has got, and how it answers."""

    key: bytes
    respond: Respond = _accept
    """Answers a batch; it is not asked for one whose key was accepted before."""
    messages: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    """How often each message was taken over."""
    values: list[bytes | None] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    """The `Idempotency-Key` of each request, in order."""
    hosts: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    challenges: int = 0
    forgeries: int = 0
    url: str = ""
    own_url: str = ""
    """The URL that it believes to have; '': `url`."""
    is_old: bool = False
    """Whether it answers the challenge as earlier versions of the documentation said."""
    _accepted: set[str] = field(default_factory=set)

    def handle(self, headers: Any, raw: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return the answer to a request."""
        if not self._is_signed(headers.get("Waybill-Signature", ""), raw):
            self.forgeries += 1
            return 401, {}, b"bad signature"
        body = json.loads(raw)
        self.hosts.append(headers["Host"])
        if body["type"] == "challenge":
            self.challenges += 1
            proven = f"waybill-challenge-2:{body['token']}:{self.own_url or self.url}"
            if self.is_old:
                proven = f"waybill-challenge:{body['token']}"
            proof = hmac.new(self.key, proven.encode(), hashlib.sha256).hexdigest()
            return 200, {}, json.dumps({"proof": proof}).encode()
        key = headers["Idempotency-Key"]
        self.keys.append(key)
        self.sizes.append(len(body["messages"]))
        if key in self._accepted:
            return 200, {}, b"{}"
        answer = self.respond(body)
        if 200 <= answer[0] < 300:
            self._accepted.add(key)
            for message in body["messages"]:
                self.messages[(message["topic"], message["partition"], message["offset"])] += 1
                self.values.append(_bytes(message["value"]))
        return answer

    def _is_signed(self, header: str, raw: bytes) -> bool:
        parts = [part.split("=", 1) for part in header.split(",") if "=" in part]
        [at] = [value for name, value in parts if name == "t"] or ["0"]
        expected = hmac.new(self.key, at.encode() + b"." + raw, hashlib.sha256).hexdigest()
        return abs(time.time() - int(at)) < 300 and any(
            hmac.compare_digest(value, expected) for name, value in parts if name == "v1"
        )


def _bytes(value: Any) -> bytes | None:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return None if value is None else str(value).encode()


@contextmanager
def receiving(receiver: Receiver, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Iterator[Receiver]:
    """Run the receiver, and set its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # head and body in one segment, so that no delayed acknowledgement is waited for

        def do_POST(self) -> None:
            status, headers, body = receiver.handle(self.headers, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    receiver.url = f"{'http' if tls is None else 'https'}://{host}:{server.server_port}/hook"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def read_request(connection: socket.socket) -> bytes:
    """Return a whole request, as far as it comes."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += (chunk := connection.recv(65_536))
        if not chunk:
            return data
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        body += (chunk := connection.recv(65_536))
        if not chunk:
            break
    return head + b"\r\n\r\n" + body


@contextmanager
def hostile_server(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """Run a server that gives every connection to `behave`, and yield its URL. Connections are closed at the end."""
    listener = socket.create_server(("127.0.0.1", 0))
    is_over = threading.Event()
    connections: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket) -> None:
        # The client hangs up: that is what most of these tests are for.
        with connection, contextlib.suppress(OSError, ValueError):
            behave(connection)

    def listen() -> None:
        while not is_over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            threads.append(threading.Thread(target=serve, args=(connection,), daemon=True))
            threads[-1].start()

    accepting = threading.Thread(target=listen, daemon=True)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/hook"
    finally:
        is_over.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join(10)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(10)
