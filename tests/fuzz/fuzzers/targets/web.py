"""What browsers and other programs send: addresses, queries and forms of the pages, and requests of the replay API."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from fastapi import FastAPI, Header, HTTPException
from fastapi.testclient import TestClient
from pages_under_test import HOST, PREFIX, Pages
from starlette.testclient import httpx

from fuzzers.engine import Target
from fuzzers.mutation import Mutator, edge, text
from waybill.config.connections import find_connection
from waybill.config.connections.database import DatabaseEndpoint
from waybill.config.models import load_config
from waybill.interfaces.operations.declaration import Role
from waybill.replay.requests.api import Caller, create_app
from waybill.replay.requests.database import Database
from waybill.replay.requests.migrations import migrate

_NOW_MS = 1_700_000_000_000
_PARTS = [
    "/",
    "/streams/flights",
    "/trace",
    "/trace/value",
    "/incidents",
    "/kafka",
    "/replays",
    "/cost",
    "/api/status",
    "/static/x",
]
_PARTS += [
    "/fragments/streams",
    "/fragments/streams/flights",
    "/fragments/taken/x",
    "/actions/taken/x",
    "/fragments/x",
    "/x",
    "/streams/",
]
_QUERIES = [
    "page",
    "stream",
    "topic",
    "partition",
    "offset",
    "id",
    "tp",
    "sort",
    "filter",
    "state",
    "of",
    "q",
    "show",
    "from",
    "at",
]
_VALUES = [
    "0",
    "1",
    "-1",
    "99999999999999999999",
    "9" * 4_301,
    "1e9",
    "٣",
    "",
    " ",
    "flights",
    "flights/0",
    "nan",
    "%",
    "\0",
    "\ud7ff",
    "a" * 5_000,
]


def _query(chance: random.Random, names: Sequence[str]) -> str:
    values = [*_VALUES, str(edge(chance)), text(chance)]
    pairs = [(chance.choice(names), chance.choice(values)) for _ in range(chance.choice([0, 1, 1, 2, 4]))]
    return "&".join(f"{name}={quote(value, safe='' if chance.random() < 0.9 else '%=&/')}" for name, value in pairs)


def _make_page(chance: random.Random) -> bytes:
    """Return a method, an address, an origin and a form, each on a line."""
    path = chance.choice(_PARTS)
    if chance.random() < 0.2:
        path += quote(text(chance), safe=chance.choice(["", "/", "/%"]))
    address = f"{path}?{_query(chance, _QUERIES)}" if chance.random() < 0.8 else path
    if chance.random() < 0.15:
        address = f"/actions/{chance.choice(['accept', 'pause', 'release', 'x', '%2e%2e'])}"
    method = "POST" if address.startswith("/actions/") and chance.random() < 0.9 else "GET"
    origin = chance.choice(
        [HOST, HOST, "null", "", "http://[", "http://[::1", "http://x:99999999", "ä", "http://testserver:80:80"]
    )
    form = _query(chance, ["csrf", "reason", "stream", "topic_partition", "run", "offset", "until"])
    lines = "\n".join([method, address, origin, form]).encode()
    return (
        lines
        if chance.random() < 0.8
        else Mutator([lines], [b"%", b"%00", b"%ff", b"\n", b"?", b"#", b"//", b";"]).changed(lines, chance)
    )


@cache
def _browser() -> TestClient:
    return Pages().client(role=Role.ADMIN)


def _check_pages(inputs: Sequence[bytes]) -> None:
    """Invariants: every request has an answer below 500, and none shows the traceback or a script of the request.

    3,000 inputs in `make test-deep`: a request takes 2 to 10 ms through Starlette's test client.
    """
    browser = _browser()
    for each in inputs:
        method, address, origin, form = (each.decode("latin-1").split("\n") + [""] * 4)[:4]
        if method not in ("GET", "POST") or not address.startswith("/"):
            continue
        headers = {"content-type": "application/x-www-form-urlencoded"}
        try:
            if origin:
                headers["origin"] = (
                    origin.encode("latin-1").decode("ascii", "replace").encode("ascii", "replace").decode()
                )
            answer = browser.request(
                method,
                PREFIX + address,
                headers=headers,
                content=form.encode() if method == "POST" else None,
                follow_redirects=False,
            )
        except (httpx.InvalidURL, UnicodeError):
            continue  # the client itself refuses the address
        assert answer.status_code < 500, f"{answer.status_code}: {answer.text[:500]}"
        assert "Traceback" not in answer.text
        assert "<script>alert" not in answer.text


# --- the replay API ---------------------------------------------------------------------------------------------------

_CONFIG = """
version: 1
storage: {bucket: archive}
replay: {quotas: {open_requests_per_requester: 100000, open_requests: 100000}}
streams:
  flights:
    topics: [flights]
    parser: {name: json, event_time: {field: at, format: epoch_ms}}
    table: analytics.flights
"""
_VALID = {
    "stream": "flights", "keys": ["AA1", {"base64": "/wA="}], "from": "2023-11-14T20:00:00Z", "to": "2023-11-14T21:00:00Z",
    "target": {"type": "webhook", "url": "https://example.org/missed"}, "priority": 1,
}  # fmt: skip
_JSON = [
    "null",
    "[]",
    "{}",
    '""',
    "-1",
    "1e999",
    "NaN",
    "true",
    '"x"',
    "[[]]",
    '{"a":1}',
    "9" * 30,
    "9" * 5000,
    '"\\ud800"',
    '"\\u0000"',
]
_JSON += [
    '"2023-13-01"',
    '"2023-11-14"',
    '"0001-01-01T00:00:00Z"',
    '"9999-12-31T23:59:59+00:01"',
    '"http://["',
    '"https://ä/"',
    '"file:///x"',
]
_JSON += [
    '"https://169.254.169.254/"',
    '"https://x:99999/"',
    '{"base64":"="}',
    '{"base64":1}',
    '["a","a"]',
    '"' + "a" * 70_000 + '"',
]


def _make_request(chance: random.Random) -> bytes:
    """Return a method and an address on a line, and the body behind it."""
    if chance.random() < 0.5:
        path = chance.choice(
            [
                "/requests",
                "/requests",
                "/requests/x",
                "/requests/%00",
                "/requests/x/rejected",
                f"/requests/{quote(text(chance), safe='')}",
            ]
        )
        query = _query(chance, ["state", "requester", "before", "limit", "topic", "partition", "offset", "reason"])
        return f"{chance.choice(['GET', 'GET', 'DELETE'])} {path}?{query}\n".encode()
    document = dict(_VALID)
    for _ in range(chance.choice([0, 1, 1, 2])):
        at = chance.choice(list(document))
        inner = document[at]
        if isinstance(inner, dict) and chance.random() < 0.7:
            document[at] = {**inner, chance.choice([*inner, "new"]): "@@"}
        else:
            document[at] = "@@"
    body = json.dumps(document)
    while '"@@"' in body:
        body = body.replace('"@@"', chance.choice(_JSON), 1)
    found = f"POST /requests\n{body}".encode()
    return (
        found
        if chance.random() < 0.8
        else Mutator([found], [each.encode() for each in _JSON[:12]]).changed(found, chance)
    )


def _authenticate(authorization: Annotated[str | None, Header()] = None) -> Caller:
    if authorization is None:
        raise HTTPException(401, {"field": "", "message": "log in"})
    return Caller(authorization, sees_all=False)


@cache
def _replay_api() -> TestClient:
    folder = Path(tempfile.mkdtemp(prefix="waybill-fuzz-"))
    (folder / "streams.yaml").write_text(_CONFIG)
    config = load_config(folder / "streams.yaml")
    conn = find_connection(
        "replay", {"AIRFLOW_CONN_REPLAY": json.dumps({"conn_type": "sqlite", "host": str(folder / "replay.db")})}
    )
    database = Database(DatabaseEndpoint.of(conn))
    migrate(database)
    app: FastAPI = create_app(lambda: config, database, _authenticate, now_ms=lambda: _NOW_MS)
    return TestClient(app, headers={"Authorization": "ada"})


def _check_requests(inputs: Sequence[bytes]) -> None:
    """Invariants: every request has an answer below 500, which is JSON; what was accepted can be read again.

    3,000 inputs in `make test-deep`: a request takes 3 to 20 ms, with its transaction in SQLite.
    """
    browser = _replay_api()
    for each in inputs:
        line, _, body = each.partition(b"\n")
        method, _, address = line.decode("latin-1").partition(" ")
        if method not in ("GET", "POST", "DELETE") or not address.startswith("/requests"):
            continue
        try:
            answer = browser.request(
                method,
                address,
                content=body if method == "POST" else None,
                headers={"content-type": "application/json"},
            )
        except (httpx.InvalidURL, UnicodeError):
            continue
        assert answer.status_code < 500, f"{answer.status_code}: {answer.text[:500]}"
        assert len(answer.content) < 200_000 or method == "GET"
        if answer.status_code == 202:
            document = answer.json()
            assert browser.get(answer.headers["Location"]).json() == document


PAGES = Target("pages", _make_page, _check_pages, batch=50, deep=3_000, smoke=100)
REPLAY_API = Target("replay_api", _make_request, _check_requests, batch=50, deep=3_000, smoke=100)
