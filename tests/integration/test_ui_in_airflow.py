"""The pages in Airflow's own API server: its login, its roles, its base URL, and DAG runs as the user."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from functools import partial
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest
from airflow_pages import BASE, USERS, Server
from sample_status import sample_status

from waybill.config.models import load_valid_streams
from waybill.config.names import status_key
from waybill.interfaces.operations.catalogue import PAGE_OPERATIONS
from waybill.interfaces.operations.declaration import OperationName
from waybill.interfaces.web.csrf import csrf_token, new_page_key
from waybill.services.store import Store

pytestmark = [pytest.mark.integration, pytest.mark.deep]


def _store_sample() -> None:
    with Store.of(load_valid_streams().storage) as store:
        store.replace(status_key(store.prefix), sample_status().content())


def token_of(browser: httpx.Client, user: str, server: Server) -> str:
    """Return a good token of a user, made as the server makes it: pages of a viewer have no form, and so no token."""
    browser.get("/waybill/ui/")
    own = server.environment["AIRFLOW__API_AUTH__JWT_SECRET"].encode()
    secret = hmac.new(own, b"waybill-ui-csrf", hashlib.sha256).digest()
    return csrf_token(secret, browser.cookies["waybill_csrf"], user, new_page_key(time.time_ns() // 1_000_000))


def test_the_pages_work_with_airflows_login_roles_and_base_url(
    airflow_pages: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYBILL_CONFIG", airflow_pages.environment["WAYBILL_CONFIG"])
    _store_sample()
    with airflow_pages.browser() as anonymous:
        answer = anonymous.get("/waybill/ui/", headers={"sec-fetch-dest": "document"})
        assert (answer.status_code, answer.headers["location"].split("?")[0]) == (302, f"{BASE}/auth/login")
        back = dict(parse_qsl(urlsplit(answer.headers["location"]).query))["next"]
        assert back == f"{airflow_pages.root}/waybill/ui/"
        assert anonymous.get("/waybill/ui/api/status").status_code == 401
        assert anonymous.post("/waybill/ui/actions/pause").status_code == 401

    with airflow_pages.browser("ada") as browser:  # the first page comes while the status document is read
        end = time.monotonic() + 30
        while "has not answered yet" in browser.get("/waybill/ui/").text and time.monotonic() < end:
            time.sleep(0.5)
    roles = {}
    for user in USERS:
        with airflow_pages.browser(user) as browser:
            page = browser.get("/waybill/ui/")
            assert page.status_code == 200, page.text
            assert f'href="{BASE}/waybill/ui/streams/flights"' in page.text
            roles[user] = re.search(rf"{user}, (\w+)<", page.text)[1]  # type: ignore[index]
            plugins = browser.get("/api/v2/plugins")
            if plugins.is_success:
                [ours] = [each for each in plugins.json()["plugins"] if each["name"] == "waybill_ui"]
                assert ours["external_views"][0]["href"] == "waybill/ui/"
    assert roles == {"vic": "viewer", "ulf": "operator", "otto": "admin", "ada": "admin"}


def test_a_click_triggers_a_dag_once_as_the_user(airflow_pages: Server) -> None:
    form = {"stream": "flights", "reason": "the parser was corrected", "kind": "not_json"}
    headers = {"origin": airflow_pages.origin}
    with airflow_pages.browser("ulf") as browser:
        found = re.search(r'name="csrf" value="([^"]+)"', browser.get("/waybill/ui/streams/flights").text)
        assert found is not None
        send = partial(browser.post, "/waybill/ui/actions/retry", follow_redirects=True)
        runs_of_dag = "/api/v2/dags/quarantine_retry/dagRuns"
        before = {run["dag_run_id"] for run in browser.get(runs_of_dag).json()["dag_runs"]}
        answer = send(data={**form, "csrf": found[1]}, headers=headers)
        assert (answer.history[0].status_code, answer.status_code) == (303, 200), answer.text
        assert f'href="{BASE}/dags/quarantine_retry/runs/' in answer.text
        assert "<h1>Ordered</h1>" in answer.text, "no scheduler is there to run it"
        again = send(data={**form, "csrf": found[1]}, headers=headers)
        assert again.url == answer.url, "a reload and a double click do nothing more"
        forged = send(data={**form, "csrf": found[1]}, headers={"origin": "https://evil.example.net"})
        assert forged.status_code == 403
        runs = [run for run in browser.get(runs_of_dag).json()["dag_runs"] if run["dag_run_id"] not in before]
        assert [(run["triggering_user_name"], run["conf"]["reasons"]) for run in runs] == [("ulf", ["not_json"])]
        address = f"/api/v2/dags/quarantine_retry/dagRuns/{runs[0]['dag_run_id']}"
        assert browser.patch(address, json={"state": "failed"}).status_code == 200
        assert "<h1>Failed</h1>" in browser.get(answer.url).text
    with airflow_pages.browser("vic") as browser:
        assert "<h1>Failed</h1>" in browser.get(answer.url).text, "a viewer sees what others did"


def test_a_good_token_does_not_replace_the_role(airflow_pages: Server) -> None:
    headers = {"origin": airflow_pages.origin}
    form = {"stream": "flights", "reason": "why", "topic": "ui-flights", "partition": "0", "within": "0-1"}
    form |= {"backfill": "20260101_0000", "plan": "p"}
    refused = {}
    for user, needed in (("vic", "operator"), ("ulf", "admin")):
        with airflow_pages.browser(user) as browser:
            token = token_of(browser, user, airflow_pages)
            for action in PAGE_OPERATIONS:
                if PAGE_OPERATIONS[action].role.name.lower() == needed:
                    data = {**form, "csrf": token}
                    answer = browser.post(f"/waybill/ui/actions/{action}", data=data, headers=headers)
                    refused[user, action] = answer.status_code
                    assert f"this needs the role {needed}" in answer.text, answer.text
            assert browser.get("/waybill/ui/trace/value?topic=t&partition=0&offset=0").status_code == (
                403 if user == "vic" else 503
            )
    assert set(refused.values()) == {403}
    assert {action for user, action in refused if user == "ulf"} == {OperationName.UNDO, OperationName.ACCEPT_GAP}
    with airflow_pages.browser("ulf") as browser:  # the token is good: what his role allows is done
        token = token_of(browser, "ulf", airflow_pages)
        answer = browser.post("/waybill/ui/actions/promote", data={**form, "csrf": token}, headers=headers)
        assert answer.status_code == 303, answer.text
    with airflow_pages.browser("ada") as browser:
        token = token_of(browser, "ada", airflow_pages)
        answer = browser.post("/waybill/ui/actions/undo", data={**form, "csrf": token}, headers=headers)
        assert answer.status_code == 303, answer.text
        assert f"{BASE}/dags/backfill_undo/runs/" in browser.get(answer.headers["location"].removeprefix(BASE)).text
        runs = browser.get("/api/v2/dags/backfill_undo/dagRuns").json()["dag_runs"]
    assert [(run["triggering_user_name"], run["conf"]["backfill"]) for run in runs] == [("ada", "20260101_0000")]
