"""Each route of the replay API, with hostile values at each place of a request: 4xx, never an error of the server."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import replay_databases as helpers
from fastapi import FastAPI, Header
from hostile_requests import HOSTILE, HostileRequest, ask, requests_to
from replay_databases import NOW

from waybill.config.models import load_config
from waybill.interfaces.airflow.replay_api import ReplayApi
from waybill.replay.requests.api import Caller, create_app
from waybill.replay.requests.migrations import migrate

CONFIG = """\
version: 1
storage: {bucket: archive}
replay: {quotas: {open_requests_per_requester: 3}}
streams:
  flights:
    topics: [flights]
    parser: {name: json, event_time: {field: at, format: epoch_ms}}
    table: analytics.flights
"""
PARAMETERS = tuple(b"state requester before limit topic partition offset reason".split())
SOUND: dict[str, Any] = {
    "stream": "flights",
    "keys": ["AA1"],
    "from": "2026-09-21T10:00:00Z",
    "to": "2026-09-21T11:00:00Z",
    "target": {"type": "webhook", "url": "https://example.org/missed"},
    "priority": 1,
}


def authenticate(authorization: Annotated[str, Header()]) -> Caller:
    return Caller(authorization, sees_all=authorization == "root")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[FastAPI]:
    path = tmp_path / "streams.yaml"
    path.write_text(CONFIG)
    config = load_config(path)
    with helpers.open_database(helpers.sqlite_connection(tmp_path / "replay.db")) as database:
        migrate(database)
        yield create_app(lambda: config, database, authenticate, now_ms=lambda: NOW)


def sound_request(user: bytes) -> HostileRequest:
    headers = {b"host": b"testserver", b"authorization": user, b"content-type": b"application/json"}
    return HostileRequest("GET", "", headers=headers, body=json.dumps(SOUND).encode())


@pytest.mark.parametrize("user", [b"ada", b"root"])
def test_no_value_at_no_place_of_a_request_to_any_route_is_an_error_of_the_server(api: FastAPI, user: bytes) -> None:
    app, asked = ReplayApi(lambda _: api), Counter[int]()
    with asyncio.Runner() as runner:
        for request in requests_to(api.routes, "", PARAMETERS, sound_request(user)):
            answer = ask(runner, app, request)
            assert answer.status in (200, 202, 307) or 400 <= answer.status < 500, str(request)
            asked[answer.status] += 1
    assert asked.total() > 200
    assert asked[200] > 10, "the sound parts were refused already"


def test_no_json_value_at_any_place_of_a_request_is_an_error_of_the_server(api: FastAPI) -> None:
    app = ReplayApi(lambda _: api)
    values: list[Any] = [
        None,
        True,
        -1,
        10**30,
        1.5,
        float("nan"),
        float("inf"),
        [],
        {},
        [[]],
        "\ud800",
        "\x00",
        *[each.decode("utf-8", "replace") for each in HOSTILE],
    ]
    with asyncio.Runner() as runner:
        for document in _replaced(SOUND, values):
            body = json.dumps(document).encode()
            request = HostileRequest("POST", "/requests", headers=sound_request(b"ada").headers, body=body)
            answer = ask(runner, app, request)
            assert answer.status == 202 or 400 <= answer.status < 500, str(request)


def _replaced(document: Any, values: list[Any]) -> Iterator[Any]:
    """Yield the document with each part of it replaced by each value."""
    yield from values
    if isinstance(document, dict):
        for name, inner in document.items():
            for each in _replaced(inner, values):
                yield {**document, name: each}
        yield from ({**document, str(value)[:100]: value} for value in values)
    elif isinstance(document, list):
        yield from ([each] for each in _replaced(document[0], values))
