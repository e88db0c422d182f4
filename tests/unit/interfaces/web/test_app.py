"""The pages as a browser sees them: who may see and do what, forged requests, injected scripts, services away."""

from __future__ import annotations

import logging
import re
from dataclasses import replace

import orjson
import pytest
from fastapi.testclient import TestClient
from httpx import Response
from pages_under_test import HOST, PREFIX, SECRET, Pages
from sample_status import NOW_MS, flights, sample_status

from waybill.base.errors import StoreUnavailable
from waybill.interfaces.operations.catalogue import PAGE_OPERATIONS
from waybill.interfaces.operations.declaration import OperationName, Role
from waybill.interfaces.web.csrf import COOKIE, csrf_token, new_page_key, page_key_of
from waybill.interfaces.web.frame import Links
from waybill.interfaces.web.trace_page import TracePage, TraceQuery

ALL = ("/", "/streams/flights", "/trace", "/incidents", "/kafka", "/replays", "/cost")
FRAGMENTS = ("streams", "streams/flights", "incidents", "kafka", "replays", "cost")


def token_of(client: TestClient) -> str:
    """Return a token like that of the pages that the browser opens. Those of a viewer have no form, and so none."""
    client.get(f"{PREFIX}/")
    return csrf_token(SECRET, client.cookies[COOKIE], client.headers["x-user"], new_page_key(NOW_MS))


def tokens_in(answer: Response) -> set[str]:
    return set(re.findall(r'name="csrf" value="([^"]+)"', answer.text))


def test_the_token_of_a_form_is_the_one_that_the_app_takes_and_each_page_has_its_own(pages: Pages) -> None:
    client = pages.client()
    [first], [second] = tokens_in(client.get(f"{PREFIX}/")), tokens_in(client.get(f"{PREFIX}/"))
    assert first != second
    keys = [page_key_of(token, SECRET, client.cookies[COOKIE], "ada", NOW_MS) for token in (first, second)]
    assert None not in keys
    assert page_key_of(first, SECRET, client.cookies[COOKIE], "ada", NOW_MS + 25 * 3_600_000) is None


def send(client: TestClient, action: str, headers: dict[str, str] | None = None, **form: str):  # type: ignore[no-untyped-def]
    return client.post(f"{PREFIX}/actions/{action}", data=form, headers={"origin": HOST, **(headers or {})})


@pytest.mark.parametrize("path", ALL)
def test_every_page_answers_with_headers_that_keep_scripts_out(pages: Pages, path: str) -> None:
    answer = pages.client().get(f"{PREFIX}{path}")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe-inline" not in policy
    assert answer.headers["x-frame-options"] == "SAMEORIGIN"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "private, no-store"


@pytest.mark.parametrize("path", [*ALL, "/fragments/streams", "/fragments/streams/flights", "/api/status"])
def test_without_a_login_nothing_is_told(pages: Pages, path: str) -> None:
    answer = TestClient(pages.app).get(f"{PREFIX}{path}", follow_redirects=False)
    assert answer.status_code in (302, 401)
    assert "flights" not in answer.text.replace(path, "")


def test_a_page_without_a_login_leads_to_the_login_page_unless_it_is_in_a_frame(pages: Pages) -> None:
    browser = TestClient(pages.app)
    answer = browser.get(f"{PREFIX}/cost", headers={"sec-fetch-dest": "document"}, follow_redirects=False)
    assert answer.headers["location"] == f"/auth/login?next={HOST}{PREFIX}/cost"
    in_frame = browser.get(f"{PREFIX}/cost", headers={"sec-fetch-dest": "iframe"}, follow_redirects=False)
    assert in_frame.status_code == 401
    assert f'<a href="/auth/login?next={HOST}{PREFIX}/cost">Sign in</a>' in in_frame.text


def test_behind_a_proxy_the_login_leads_back_to_the_address_that_the_browser_knows() -> None:
    browser = TestClient(Pages(base_url="https://airflow.example.net:8443").app)
    answer = browser.get(f"{PREFIX}/cost?a=b", headers={"sec-fetch-dest": "document"}, follow_redirects=False)
    assert answer.headers["location"] == f"/auth/login?next=https://airflow.example.net:8443{PREFIX}/cost?a=b"


@pytest.mark.parametrize("name", FRAGMENTS)
def test_a_fragment_that_has_not_changed_is_not_sent_again(pages: Pages, name: str) -> None:
    client = pages.client()
    client.get(f"{PREFIX}/")
    first = client.get(f"{PREFIX}/fragments/{name}")
    assert first.status_code == 200
    again = client.get(f"{PREFIX}/fragments/{name}", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    pages.now_ms += 60_000
    assert client.get(f"{PREFIX}/fragments/{name}", headers={"if-none-match": first.headers["etag"]}).status_code == 200


def test_names_from_kafka_and_from_people_cannot_become_scripts(pages: Pages) -> None:
    script = '"><script>alert(1)</script>'
    pages.status = sample_status(replace(flights(), name="evil", table=script, window_alert=script))
    pages.status = replace(pages.status, broken={script: script})
    client = pages.client(user=script)
    for path in (*ALL, "/streams/evil", f"/trace?topic={script}", f"/streams/{script}", "/fragments/streams/evil"):
        text = client.get(f"{PREFIX}{path}").text
        assert "<script>alert" not in text, path


def test_an_unknown_stream_and_an_unknown_page_are_not_found(pages: Pages) -> None:
    assert pages.client().get(f"{PREFIX}/streams/none").status_code == 404
    assert pages.client().get(f"{PREFIX}/none").status_code == 404
    assert pages.client().get(f"{PREFIX}/fragments/none").status_code == 404


def test_a_form_does_what_it_says_and_is_recorded_with_user_reason_and_outcome(pages: Pages) -> None:
    client = pages.client("ada")
    answer = send(client, "pause", csrf=token_of(client), stream="flights", reason=" Kafka is  moved ", other="x")
    assert answer.status_code == 200
    assert "pause is done" in answer.text
    [(name, order)] = pages.orders
    assert (name, order.fields, order.decision.by, order.decision.reason) == (
        OperationName.PAUSE,
        {"stream": "flights"},
        "ada",
        "Kafka is moved",
    )
    record, outcome = (orjson.loads(each) for each in pages.store.objects.values())
    assert (record["by"], record["action"], record["reason"]) == ("ada", "pause", "Kafka is moved")
    assert record["command"] == "waybill pause flights --reason 'Kafka is moved' --by ada"
    assert (outcome["is_done"], outcome["text"]) == (True, "pause is done")


def test_a_form_that_is_sent_twice_is_one_action(pages: Pages) -> None:
    client = pages.client()
    form = {"csrf": token_of(client), "stream": "flights", "reason": "why"}
    first = send(client, "pause", **form)
    assert (first.history[0].status_code, first.status_code) == (303, 200)
    pages.now_ms += 1000
    again = send(client, "pause", **form)
    assert again.url == first.url
    assert client.get(str(first.url)).text.count("pause is done") == 1
    assert len(pages.orders) == 1
    send(client, "pause", **{**form, "reason": "another"})
    send(client, "pause", **{**form, "csrf": token_of(client)})
    assert len(pages.orders) == 3, "another reason, or another page, is another action"
    assert len({order.run for _, order in pages.orders}) == 3


@pytest.mark.parametrize(
    ("state", "title", "is_polled"),
    [
        ("queued", "Ordered", True),
        ("running", "At work", True),
        ("success", "Done", False),
        ("failed", "Failed", False),
        ("", "Ordered", True),
    ],
)
def test_what_a_dag_run_does_is_ordered_until_airflow_knows_how_it_ended(
    pages: Pages, state: str, title: str, is_polled: bool
) -> None:
    pages.run, pages.run_state = "r1", state
    client = pages.client()
    back = f"{PREFIX}/streams/flights"
    answer = send(client, "promote", csrf=token_of(client), stream="flights", reason="why", back=back)
    assert f"<h1>{title}</h1>" in answer.text
    assert '<a href="/dags/d/runs/r1">' in answer.text
    assert f'<a href="{back}">Back</a>' in answer.text
    [fragment] = re.findall(r'data-fragment="([^"]*)"', answer.text)
    assert bool(fragment) is is_polled
    if is_polled:
        pages.run_state = "failed"
        assert "<h1>Failed</h1>" in client.get(fragment).text


def test_an_action_that_was_interrupted_has_no_outcome_yet_and_an_unknown_one_is_not_found(pages: Pages) -> None:
    client = pages.client()
    taken = str(send(client, "pause", csrf=token_of(client), stream="flights", reason="why").url)
    pages.store.objects = {key: data for key, data in pages.store.objects.items() if "outcome" not in key}
    other_process = Pages(store=pages.store).client("eve", Role.VIEWER)
    assert "<h1>No outcome yet</h1>" in other_process.get(taken).text
    for place in ("0000000000000-000000000000000000000000", "x", "..%2f.."):
        assert client.get(f"{PREFIX}/actions/taken/{place}").status_code == 404
    pages.store.is_away = True
    assert other_process.get(taken).status_code == 503


@pytest.mark.parametrize("action", list(PAGE_OPERATIONS))
@pytest.mark.parametrize("role", list(Role))
def test_each_role_takes_its_actions_and_no_others(pages: Pages, action: OperationName, role: Role) -> None:
    client = pages.client(role=role)
    answer = send(client, action, csrf=token_of(client), stream="flights", reason="why")
    assert answer.status_code == (200 if role >= PAGE_OPERATIONS[action].role else 403)
    assert bool(pages.orders) == (role >= PAGE_OPERATIONS[action].role)


def test_a_form_of_another_site_is_refused(pages: Pages) -> None:
    client = pages.client()
    token = token_of(client)
    for headers in (
        {"origin": "https://evil.example.net"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        assert send(client, "pause", headers, csrf=token, stream="flights", reason="why").status_code == 403, headers
    client.headers.pop("origin", None)
    without = client.post(f"{PREFIX}/actions/pause", data={"csrf": token, "stream": "flights", "reason": "why"})
    assert without.status_code == 403
    assert not pages.orders
    assert not pages.store.objects


def test_a_form_needs_the_token_of_its_own_user(pages: Pages) -> None:
    ada, eve = pages.client("ada"), pages.client("eve")
    of_eve = token_of(eve)
    for token in ("", "x", of_eve):
        token_of(ada)
        assert send(ada, "pause", csrf=token, stream="flights", reason="why").status_code == 403
    # Even with the cookie of the other browser, the token belongs to a user.
    ada.cookies = eve.cookies
    assert send(ada, "pause", csrf=of_eve, stream="flights", reason="why").status_code == 403
    assert not pages.orders


def test_get_changes_nothing(pages: Pages) -> None:
    client = pages.client(role=Role.ADMIN)
    for action in PAGE_OPERATIONS:
        assert client.get(f"{PREFIX}/actions/{action}?stream=flights&reason=why").status_code in (404, 405)
    assert not pages.orders


def test_an_action_without_a_reason_or_without_a_record_is_not_taken(pages: Pages) -> None:
    client = pages.client()
    token = token_of(client)
    assert send(client, "pause", csrf=token, stream="flights", reason="  ").status_code == 422
    pages.store.is_away = True
    answer = send(client, "pause", csrf=token, stream="flights", reason="why")
    assert answer.status_code == 503
    assert "cannot be recorded" in answer.text
    assert not pages.orders


def test_a_refused_action_says_why_and_is_recorded(pages: Pages) -> None:
    pages.refusal = "DAG backfill is paused in Airflow"
    client = pages.client()
    answer = send(client, "promote", csrf=token_of(client), stream="flights", backfill="20260921_7f3a", reason="why")
    assert "<h1>Not done</h1>" in answer.text
    assert "is paused in Airflow" in answer.text
    assert orjson.loads(list(pages.store.objects.values())[1])["is_done"] is False


@pytest.mark.parametrize("back", ["https://evil.example.net", "//evil.example.net", "/\\evil", f"{PREFIX}//evil", ""])
def test_an_action_leads_back_to_pages_of_this_app_only(pages: Pages, back: str) -> None:
    client = pages.client()
    answer = send(client, "pause", csrf=token_of(client), stream="flights", reason="why", back=back)
    assert f'<a href="{PREFIX}/">Back</a>' in answer.text


def test_while_s3_is_away_the_last_state_is_shown_with_its_age_and_the_reason(pages: Pages) -> None:
    client = pages.client()
    assert client.get(f"{PREFIX}/").status_code == 200
    pages.error = StoreUnavailable("archive", "connection refused", "start it")
    pages.clock += 60
    pages.now_ms = NOW_MS + 600_000
    answer = client.get(f"{PREFIX}/")
    assert answer.status_code == 200
    assert "flights" in answer.text
    assert "StoreUnavailable" in answer.text
    assert "10 min" in answer.text


def test_a_service_that_the_watch_could_not_reach_is_named(pages: Pages) -> None:
    assert "the catalog" in pages.client().get(f"{PREFIX}/fragments/streams").text


def test_without_a_status_document_a_page_says_what_to_start(pages: Pages) -> None:
    pages.status = None
    answer = pages.client().get(f"{PREFIX}/")
    assert "waybill watch" in answer.text


def test_many_requests_read_the_document_once(pages: Pages) -> None:
    client = pages.client()
    for _ in range(20):
        client.get(f"{PREFIX}/")
    assert pages.reads == 1


def test_the_document_is_given_as_json_with_an_etag(pages: Pages) -> None:
    answer = pages.client().get(f"{PREFIX}/api/status")
    assert answer.json()["streams"][0]["name"] == "flights"
    again = pages.client().get(f"{PREFIX}/api/status", headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304


def test_the_bytes_of_a_message_are_a_download_for_operators_and_never_a_page(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Found:
        def __call__(self, query: TraceQuery, links: Links, streams: tuple[str, ...]) -> TracePage:
            del links
            return TracePage(query, streams, (), "", "")

        def value(self, query: TraceQuery) -> bytes:
            if query.offset != "7":
                raise LookupError("the archive has no value there")
            return b"<script>alert(1)</script>"

    pages = Pages(tracer=Found())
    client = pages.client()
    caplog.set_level(logging.INFO, "waybill.interfaces.web.app")
    answer = client.get(f"{PREFIX}/trace/value?topic=flights&partition=0&offset=7")
    assert answer.content == b"<script>alert(1)</script>"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "ada downloads the value of flights/0@7" in caplog.text
    assert client.get(f"{PREFIX}/trace/value?topic=flights&partition=0&offset=8").status_code == 404
    viewer = pages.client(role=Role.VIEWER)
    assert viewer.get(f"{PREFIX}/trace/value?topic=flights&partition=0&offset=7").status_code == 403
