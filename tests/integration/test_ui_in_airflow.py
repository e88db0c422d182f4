"""The pages in Airflow's own API server: its login, its roles, its base URL, and DAG runs as the user."""

from __future__ import annotations

import re
import time

import httpx
import pytest
from airflow_pages import BASE, USERS, Server
from sample_status import sample_status

from waybill.config import load_valid_streams
from waybill.names import status_key
from waybill.store import Store

pytestmark = [pytest.mark.integration, pytest.mark.deep]


def _store_sample() -> None:
    with Store.of(load_valid_streams().storage) as store:
        store.replace(status_key(store.prefix), sample_status().content())


def token_of(page: httpx.Response) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', page.text)
    assert found is not None, page.text[:500]
    return found[1]


def test_the_pages_work_with_airflows_login_roles_and_base_url(
    airflow_pages: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYBILL_CONFIG", airflow_pages.environment["WAYBILL_CONFIG"])
    _store_sample()
    with airflow_pages.browser() as anonymous:
        answer = anonymous.get("/waybill/ui/", headers={"sec-fetch-dest": "document"})
        assert (answer.status_code, answer.headers["location"].split("?")[0]) == (302, f"{BASE}/auth/login")
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


def test_a_click_triggers_a_dag_as_the_user_and_a_viewer_cannot(airflow_pages: Server) -> None:
    form = {"stream": "flights", "reason": "the parser was corrected", "kind": "not_json"}
    with airflow_pages.browser("ulf") as browser:
        token = token_of(browser.get("/waybill/ui/streams/flights"))
        headers = {"origin": airflow_pages.origin}
        answer = browser.post("/waybill/ui/actions/retry", data={**form, "csrf": token}, headers=headers)
        assert answer.status_code == 200, answer.text
        assert f'href="{BASE}/dags/quarantine_retry/runs/' in answer.text
        forged = browser.post(
            "/waybill/ui/actions/retry", data={**form, "csrf": token}, headers={"origin": "https://evil.example.net"}
        )
        assert forged.status_code == 403
        runs = browser.get("/api/v2/dags/quarantine_retry/dagRuns").json()["dag_runs"]
    assert [(run["triggering_user_name"], run["conf"]["reasons"]) for run in runs] == [("ulf", ["not_json"])]
    with airflow_pages.browser("vic") as browser:
        answer = browser.post("/waybill/ui/actions/retry", data={**form, "csrf": "x"}, headers=headers)
        assert answer.status_code == 403
