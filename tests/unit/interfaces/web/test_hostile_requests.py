"""Each route of the pages, with hostile values at each place of a request: 4xx, never an error of the server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote_from_bytes

import pytest
from hostile_requests import HOSTILE, Answer, HostileRequest, ask, requests_to
from hypothesis import given
from hypothesis import strategies as st
from pages_under_test import HOST, PREFIX, SECRET, Pages
from sample_status import NOW_MS

from waybill.config.models import load_config
from waybill.interfaces.operations.catalogue import PAGE_OPERATIONS
from waybill.interfaces.operations.declaration import OperationName, Role
from waybill.interfaces.web.csrf import COOKIE, csrf_token, is_own_origin, new_page_key
from waybill.interfaces.web.topic_partition_rows import TopicPartitionFilter
from waybill.interfaces.web.trace import PageTracer

CONFIG = """\
version: 1
storage: {bucket: archive, connection: not_there}
streams:
  flights:
    topics: [flights]
    parser: {name: json, event_time: {field: at, format: epoch_ms}}
    table: analytics.flights
"""
PARAMETERS = tuple(
    b"stream topic partition offset id tp page back csrf reason incident plan kind backfill within v".split()
)
COOKIE_VALUE = "c" * 32


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    path = tmp_path / "streams.yaml"
    path.write_text(CONFIG)
    made = Pages(tracer=PageTracer(lambda: load_config(path)))
    yield made
    made.reader.close()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def sound_request(role: Role) -> HostileRequest:
    headers = {
        b"host": b"testserver",
        b"origin": HOST.encode(),
        b"x-user": b"ada",
        b"x-role": role.name.encode(),
        b"cookie": f"{COOKIE}={COOKIE_VALUE}".encode(),
        b"content-type": b"application/x-www-form-urlencoded",
    }
    token = csrf_token(SECRET, COOKIE_VALUE, "ada", new_page_key(NOW_MS))
    return HostileRequest("GET", "", headers=headers, body=f"csrf={token}&reason=why&stream=flights".encode())


def check(request: HostileRequest, answer: Answer) -> None:
    # 503: the status document or the archive cannot be read, which the answer tells.
    assert answer.status in (200, 302, 303, 304, 307, 503) or 400 <= answer.status < 500, str(request)
    for name, value in answer.headers:
        assert b"\n" not in value, (name, str(request))
    assert b"<script>alert" not in answer.body, str(request)


@pytest.mark.parametrize("role", [Role.VIEWER, Role.ADMIN])
def test_no_value_at_no_place_of_a_request_to_any_route_is_an_error_of_the_server(
    pages: Pages, runner: asyncio.Runner, role: Role
) -> None:
    asked: Counter[int] = Counter()
    for request in requests_to(pages.pages.routes, PREFIX, PARAMETERS, sound_request(role)):
        answer = ask(runner, pages.app, request)
        check(request, answer)
        asked[answer.status] += 1
    assert asked.total() > 900
    assert asked[200] > 50, "the sound parts were refused already"


@pytest.mark.parametrize("action", PAGE_OPERATIONS)
def test_actions_take_any_text_in_their_fields(pages: Pages, runner: asyncio.Runner, action: OperationName) -> None:
    sound = sound_request(Role.ADMIN)
    for value in HOSTILE:
        for name in PARAMETERS:
            body = name + b"=" + quote_from_bytes(value).encode() + b"&" + sound.body
            request = replace(sound, method="POST", path=f"{PREFIX}/actions/{action}", body=body)
            check(request, ask(runner, pages.app, request))


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"/trace?stream=flights&topic=flights&partition=0&offset={'9' * 20}", 422),
        (f"/trace?stream=flights&topic=flights&partition={'9' * 11}&offset=1", 422),
        (f"/trace/value?stream=flights&topic=flights&partition=0&offset={'9' * 20}", 422),
        ("/trace/value?stream=flights&topic=a%20b&partition=0&offset=1", 422),
        (f"/streams/flights?page={'9' * 4_300}", 200),
        (f"/streams/flights?page={'9' * 5_000}", 200),
    ],
)
def test_numbers_that_no_topic_has_are_told_before_a_server_is_asked(
    pages: Pages, runner: asyncio.Runner, path: str, status: int
) -> None:
    path, _, query = path.partition("?")
    request = replace(sound_request(Role.ADMIN), path=f"{PREFIX}{path}", query=query.encode(), body=b"")
    answer = ask(runner, pages.app, request)
    assert answer.status == status
    if path == "/trace":
        assert b"give a whole number up to" in answer.body


@given(st.text(max_size=40))
def test_an_origin_is_own_or_not_and_never_an_error(text: str) -> None:
    assert is_own_origin(text, None, {"testserver"}) in (True, False)
    assert TopicPartitionFilter.of({"page": text}).page >= 1
    assert is_own_origin(f"http://[{text}", None, {"testserver"}) is False
