"""The HTTP API of replay requests, with a fake authentication and SQLite."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
import replay_databases as helpers
from fastapi import FastAPI, Header, HTTPException
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replay_databases import NOW

from waybill.base.errors import ReplayUnavailable
from waybill.config.models import Config, load_config
from waybill.replay.requests.api import MAX_BODY_BYTES, Caller, create_app
from waybill.replay.requests.database import Database
from waybill.replay.requests.migrations import migrate
from waybill.replay.requests.states import RequestEvent
from waybill.replay.requests.stored import Progress, RejectedMessage

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
END = datetime.fromtimestamp(NOW / 1000, UTC)
VALID: dict[str, Any] = {
    "stream": "flights",
    "keys": ["AA1", {"base64": "/wA="}],
    "from": (END - timedelta(hours=1)).isoformat(),
    "to": END.isoformat(),
    "target": {"type": "webhook", "url": "https://example.org/missed"},
}


def authenticate(authorization: Annotated[str | None, Header()] = None) -> Caller:
    if authorization is None:
        raise HTTPException(401, {"field": "", "message": "log in"})
    return Caller(authorization, sees_all=authorization == "root")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with helpers.open_database(helpers.sqlite_connection(tmp_path / "replay.db")) as database:
        migrate(database)
        yield database


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "streams.yaml"
    path.write_text(CONFIG)
    return load_config(path)


@pytest.fixture
def app(database: Database, config: Config) -> FastAPI:
    return create_app(lambda: config, database, authenticate, now_ms=lambda: NOW)


@pytest.fixture
def client(app: FastAPI) -> TestClient:
    return TestClient(app, headers={"Authorization": "ada"})


def as_user(client: TestClient, name: str) -> TestClient:
    return TestClient(client.app, headers={"Authorization": name})


def test_a_request_is_accepted_found_and_cancelled(client: TestClient) -> None:
    made = client.post("/requests", json=VALID)
    assert made.status_code == 202
    document = made.json()
    assert made.headers["Location"] == f"/requests/{document['id']}"
    assert (document["state"], document["requester"]) == ("open", "ada")
    assert document["request"]["keys"] == VALID["keys"]
    assert document["request"]["target"] == VALID["target"]
    assert client.get(made.headers["Location"]).json() == document
    assert client.get("/requests").json() == {"requests": [document], "next": None, "unreadable": []}
    cancelled = client.delete(made.headers["Location"], params={"reason": "a mistake"})
    assert (cancelled.status_code, cancelled.json()["reason"]) == (200, "cancelled by ada: a mistake")
    assert client.delete(made.headers["Location"]).status_code == 200


def test_the_location_is_right_below_a_path_of_another_app(app: FastAPI) -> None:
    outer = FastAPI()
    outer.mount("/waybill", app)
    client = TestClient(outer, headers={"Authorization": "ada"})
    location = client.post("/waybill/requests", json=VALID).headers["Location"]
    assert location.startswith("/waybill/requests/")
    assert client.get(location).status_code == 200


def test_without_authentication_nothing_is_answered_or_stored(client: TestClient) -> None:
    made = client.post("/requests", json=VALID).json()
    stranger = TestClient(client.app)
    for answer in (
        stranger.post("/requests", json=VALID),
        stranger.get("/requests"),
        stranger.get(f"/requests/{made['id']}"),
        stranger.get(f"/requests/{made['id']}/rejected"),
        stranger.delete(f"/requests/{made['id']}"),
    ):
        assert (answer.status_code, answer.json()["detail"]["message"]) == (401, "log in")
    assert client.get("/requests").json()["requests"] == [made]


def test_a_caller_sees_and_cancels_their_own_requests_only_unless_they_see_all(client: TestClient) -> None:
    made = client.post("/requests", json=VALID).json()
    bob, root = as_user(client, "bob"), as_user(client, "root")
    for answer in (
        bob.get(f"/requests/{made['id']}"),
        bob.get(f"/requests/{made['id']}/rejected"),
        bob.delete(f"/requests/{made['id']}"),
        bob.get(f"/requests/{'0' * 26}"),
        bob.get("/requests/7"),
    ):
        assert (answer.status_code, answer.json()["detail"]["field"]) == (404, "id")
    assert bob.get("/requests", params={"requester": "ada"}).json()["requests"] == []
    assert root.get("/requests", params={"requester": "ada"}).json()["requests"] == [made]
    assert root.delete(f"/requests/{made['id']}").json()["reason"] == "cancelled by root"


def test_a_repeated_call_with_an_idempotency_key_creates_nothing(client: TestClient) -> None:
    headers = {"Idempotency-Key": "order-4711"}
    first = client.post("/requests", json=VALID, headers=headers)
    assert client.post("/requests", json=VALID, headers=headers).json() == first.json()
    other = client.post("/requests", json=VALID | {"keys": ["x"]}, headers=headers)
    assert (other.status_code, other.json()["detail"]["field"]) == (422, "idempotency_key")
    assert len(client.get("/requests").json()["requests"]) == 1


def test_a_reached_quota_is_429_with_the_time_to_wait(client: TestClient) -> None:
    for _ in range(3):
        assert client.post("/requests", json=VALID).status_code == 202
    refused = client.post("/requests", json=VALID)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "60")
    assert "ada has 3 open requests" in refused.json()["detail"]["message"]


def test_pages_follow_their_links(client: TestClient) -> None:
    ids = [client.post("/requests", json=VALID).json()["id"] for _ in range(3)]
    first = client.get("/requests", params={"limit": 2, "state": "open"}).json()
    second = client.get(first["next"]).json()
    assert sorted(each["id"] for page in (first, second) for each in page["requests"]) == sorted(ids)
    assert second["next"] is None


def test_rejected_messages_are_listed_by_pages_and_an_ended_request_is_not_cancelled(
    client: TestClient, database: Database
) -> None:
    made = client.post("/requests", json=VALID).json()
    claims = helpers.claims_of(database)
    claim = claims.claim("w1", NOW)
    assert claim is not None
    claims.record_progress(
        claim, NOW, Progress({"n": 1}, 3, 0, 0.5), [RejectedMessage("flights", 0, n, "400") for n in range(3)]
    )
    first = client.get(f"/requests/{made['id']}/rejected", params={"limit": 2}).json()
    second = client.get(first["next"]).json()
    assert [each["offset"] for page in (first, second) for each in page["messages"]] == [0, 1, 2]
    claims.finish(claim, NOW, RequestEvent.COMPLETE)
    shown = client.get(f"/requests/{made['id']}").json()
    assert (shown["state"], shown["progress"]) == (
        "completed",
        {
            "found": 3,
            "delivered": 0,
            "rejected": 3,
            "duplicates": 0,
            "percent": 100.0,
            "remaining_seconds": None,
        },
    )
    refused = client.delete(f"/requests/{made['id']}")
    assert (refused.status_code, refused.json()["detail"]["field"]) == (409, "state")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"{", 422),
        (b"[]", 422),
        (b"null", 422),
        (b'"text"', 422),
        (b"\x80", 400),
        (b"[" * 100_000, 400),
        (b'{"priority": ' + b"9" * 5_000 + b"}", 400),
        (b'{"\\ud800": 1}', 422),
        (json.dumps(VALID | {"stream": "x" * 500_000}).encode(), 422),
        (json.dumps(VALID | {"keys": ["k" * 500_000]}).encode(), 422),
        (json.dumps(VALID | {"keys": ["k"] * 100_000}).encode(), 422),
        (json.dumps(VALID | {"to": "NaN", "priority": float("nan")}).encode(), 422),
        (b" " * (MAX_BODY_BYTES + 1), 413),
    ],
    ids=lambda value: str(value)[:20],
)
def test_bad_bodies_are_refused_with_a_short_answer(client: TestClient, body: bytes, status: int) -> None:
    answer = client.post("/requests", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert len(answer.content) < 1_000
    assert set(answer.json()["detail"]) == {"field", "message"}
    assert client.get("/requests").json()["requests"] == []


def test_an_endless_body_is_refused_before_all_of_it_is_read(app: FastAPI) -> None:
    received = 0
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        nonlocal received
        received += 65_536
        return {"type": "http.request", "body": b" " * 65_536, "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/requests", "headers": [], "query_string": b""}
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 413
    assert received <= MAX_BODY_BYTES + 65_536


def test_what_the_api_does_not_have_is_refused_in_the_same_form(client: TestClient) -> None:
    for answer, status in ((client.get("/nothing"), 404), (client.put("/requests", json=VALID), 405)):
        assert (answer.status_code, set(answer.json()["detail"])) == (status, {"field", "message"})


@pytest.mark.parametrize("length", ["-1", "x", "9" * 50])
def test_a_length_that_is_none_is_refused(client: TestClient, length: str) -> None:
    answer = client.post("/requests", content=b"{}", headers={"Content-Length": length})
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "query",
    ["?limit=0", "?limit=1001", "?state=sleeping", "?limit=x", "?limit=" + "9" * 5_000, "?before=%00"],
)
def test_bad_queries_are_refused(client: TestClient, query: str) -> None:
    answer = client.get(f"/requests{query}")
    assert answer.status_code in (404, 422)
    assert set(answer.json()["detail"]) == {"field", "message"}


def test_a_database_that_does_not_answer_is_503_without_its_address(
    client: TestClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ReplayUnavailable("the database at db.internal did not answer")

    monkeypatch.setattr(database, "write", fail)
    answer = client.post("/requests", json=VALID)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "30")
    assert "db.internal" not in answer.text


def test_openapi_describes_every_operation_with_its_refusals(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    operations = {
        (method, path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert set(operations) == {
        ("post", "/requests"),
        ("get", "/requests"),
        ("get", "/requests/{request_id}"),
        ("get", "/requests/{request_id}/rejected"),
        ("delete", "/requests/{request_id}"),
    }
    assert {"202", "401", "413", "422", "429", "503"} <= set(operations["post", "/requests"]["responses"])
    schema = operations["post", "/requests"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"stream", "keys", "from", "to", "target"} == set(schema["required"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([*VALID, "priority"]), JSON)
def test_no_json_value_makes_an_error_of_the_server(client: TestClient, field: str, value: Any) -> None:
    body = json.dumps(VALID | {field: value})
    answer = client.post("/requests", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (202, 422, 429)
