"""Requests as a hostile client sends them: bytes that no browser and no client library would send, to each route.

`requests_to` makes them for every route of an app, so a route that is added is tested, too. They are given to the app
as an ASGI server gives them: the path decoded with replacement characters, query and headers as bytes.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote_from_bytes, unquote

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

HOSTILE: Sequence[bytes] = (
    b"",
    b"0",
    b"-1",
    b"9" * 20,
    b"9" * 5_000,
    b"-" + b"9" * 5_000,
    b"1e400",
    b"NaN",
    "٣".encode(),
    "²".encode(),
    b"\x00",
    b"a\x00b",
    b"\xff\xfe",
    b"\xed\xa0\x80",  # a surrogate
    b"\r\nSet-Cookie: a=b",
    b"[",
    b"http://[",
    b"http://[::1",
    b"https://a:99999999/",
    b"//evil.example",
    b"\\\\evil.example",
    b"../../etc/passwd",
    b"%",
    b"%zz",
    b"{{7*7}}",
    b"'\"><script>alert(1)</script>",
    b"' OR 1=1 --",
    b"a" * 20_000,
    "\u202e\u2028\U0001f600".encode(),
    b"{",
    b'{"a":' * 2_000,
)
"""Values for each place of a request."""
_HEADERS = (
    b"host",
    b"origin",
    b"referer",
    b"cookie",
    b"sec-fetch-site",
    b"sec-fetch-dest",
    b"content-type",
    b"content-length",
    b"content-encoding",
    b"if-none-match",
    b"accept",
    b"idempotency-key",
    b"x-forwarded-proto",
    b"x-forwarded-host",
)


@dataclass(frozen=True)
class HostileRequest:
    """A request."""

    method: str
    path: str
    """Percent-encoded."""
    query: bytes = b""
    headers: Mapping[bytes, bytes] = ()  # type: ignore[assignment]
    body: bytes = b""

    def __str__(self) -> str:
        return f"{self.method} {self.path[:80]}?{self.query[:80]!r} {dict(self.headers)!r:.200} {self.body[:80]!r}"


@dataclass(frozen=True)
class Answer:
    """What the app answered."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


def ask(runner: asyncio.Runner, app: Any, request: HostileRequest) -> Answer:
    """Return the answer of an ASGI app. Raises what the app raises, which a server answers with 500.

    `runner`: one for all requests, so that the app keeps its threads.
    """
    sent: list[Any] = []
    parts = iter([{"type": "http.request", "body": request.body, "more_body": False}])

    async def receive() -> Any:
        return next(parts, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(request.path),
        "raw_path": request.path.encode(),
        "root_path": "",
        "query_string": request.query,
        "headers": list(dict(request.headers).items()),
        "client": ("203.0.113.1", 1234),
        "server": ("testserver", 80),
    }
    runner.run(app(scope, receive, send))
    begin = sent[0]
    body = b"".join(each.get("body", b"") for each in sent[1:])
    return Answer(begin["status"], tuple(begin["headers"]), body)


def requests_to(
    routes: Iterable[BaseRoute], prefix: str, parameters: Iterable[bytes], sound: HostileRequest
) -> Iterator[HostileRequest]:
    """Yield requests to each route and method: each hostile value at each place, and all others sound.

    All of them with `WAYBILL_DEEP=1`, else each seventh: of each place every seventh value, and of others other ones.

    `parameters`: the names of query parameters and form fields. `sound`: a request with what every route needs, such as
    the user, a form and its headers.
    """
    step = 1 if os.environ.get("WAYBILL_DEEP") == "1" else 7
    yield from itertools.islice(_all_requests(routes, prefix, tuple(parameters), sound), 0, None, step)


def _all_requests(
    routes: Iterable[BaseRoute], prefix: str, parameters: Iterable[bytes], sound: HostileRequest
) -> Iterator[HostileRequest]:
    for route in _flat(routes):
        for method in sorted(route.methods):
            path = prefix + route.path
            filled = re.sub(r"\{[^}]*\}", "x", path)
            base = replace(sound, method=method, path=filled, body=sound.body if method == "POST" else b"")
            yield from _in_path(base, path)
            for value in HOSTILE:
                encoded = quote_from_bytes(value).encode()
                for name in parameters:
                    field = name + b"=" + encoded
                    yield replace(base, query=field)
                    if method == "POST":
                        yield replace(base, body=sound.body + b"&" + field)
                yield replace(base, query=value)
                yield replace(base, query=encoded + b"=" + encoded)
                if method == "POST":
                    yield replace(base, body=value)
                for header in _HEADERS:
                    yield replace(base, headers={**sound.headers, header: value})


def _in_path(base: HostileRequest, path: str) -> Iterator[HostileRequest]:
    if "{" in path:
        for value in HOSTILE:
            quoted = quote_from_bytes(value, safe="")
            yield replace(base, path=re.sub(r"\{[^}]*\}", lambda _, text=quoted: text, path))  # type: ignore[misc]


def _flat(routes: Iterable[BaseRoute]) -> Iterator[APIRoute]:
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
        elif hasattr(route, "routes"):
            yield from _flat(route.routes)
