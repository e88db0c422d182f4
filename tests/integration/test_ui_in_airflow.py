"""The pages in Airflow's own API server: its login, its roles, its base URL, and DAG runs as the user."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sample_status import sample_status

from waybill.config import load_valid_streams
from waybill.names import status_key
from waybill.store import Store

pytestmark = [pytest.mark.integration, pytest.mark.deep]

PROJECT = Path(__file__).parents[2]
USERS = {"vic": "viewer", "ulf": "user", "otto": "op", "ada": "admin"}
BASE = "/team"
CONFIG = """
version: 1
storage: {bucket: waybill, prefix: ui}
zookeeper: {root: ui}
streams:
  flights:
    topics: [ui-flights]
    parser: {name: json, event_time: {field: at, format: epoch_ms}}
    table: ui.flights
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Server:
    """An API server without a scheduler: what it triggers stays queued."""

    def __init__(self, home: Path) -> None:
        self.port = free_port()
        self.origin = f"http://127.0.0.1:{self.port}"
        self.root = f"{self.origin}{BASE}"
        config = home / "streams.yaml"
        config.write_text(CONFIG)
        passwords = home / "passwords.json"
        passwords.write_text(json.dumps({user: f"password-of-{user}" for user in USERS}))
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__")}
        self.environment = {
            **kept,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(PROJECT / "include"),
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
            "WAYBILL_CONFIG": str(config),
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(PROJECT / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{user}:{role}" for user, role in USERS.items()),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.root,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of the test, which is long enough for its algorithm, HS512: 64+",
        }
        self.log = home / "api-server.log"

    def airflow(self, *arguments: str) -> None:
        """Run a command of Airflow to its end."""
        command = [sys.executable, "-m", "airflow", *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    def browser(self, user: str | None = None) -> httpx.Client:
        """Return a browser, signed in with the user's password as Airflow's login page does it."""
        client = httpx.Client(base_url=self.root, trust_env=False, timeout=60)
        if user is not None:
            credentials = {"username": user, "password": f"password-of-{user}"}
            answer = httpx.post(f"{self.root}/auth/token", json=credentials, trust_env=False, timeout=60)
            answer.raise_for_status()
            client.cookies.set("_token", answer.json()["access_token"])
        return client


@pytest.fixture(scope="module")
def server(stack: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("airflow"))
    made.airflow("db", "migrate")
    made.airflow("dags", "reserialize")
    with made.log.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow", "api-server"],
            env=made.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait(made, process)
            yield made
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx.get(f"{server.root}/api/v2/version", trust_env=False).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise AssertionError(server.log.read_text()[-3000:])


def _store_sample() -> None:
    with Store.of(load_valid_streams().storage) as store:
        store.replace(status_key(store.prefix), sample_status().content())


def token_of(page: httpx.Response) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', page.text)
    assert found is not None, page.text[:500]
    return found[1]


def test_the_pages_work_with_airflows_login_roles_and_base_url(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYBILL_CONFIG", server.environment["WAYBILL_CONFIG"])
    _store_sample()
    with server.browser() as anonymous:
        answer = anonymous.get("/waybill/ui/", headers={"sec-fetch-dest": "document"})
        assert (answer.status_code, answer.headers["location"].split("?")[0]) == (302, f"{BASE}/auth/login")
        assert anonymous.get("/waybill/ui/api/status").status_code == 401
        assert anonymous.post("/waybill/ui/actions/pause").status_code == 401

    roles = {}
    for user in USERS:
        with server.browser(user) as browser:
            page = browser.get("/waybill/ui/")
            assert page.status_code == 200, page.text
            assert f'href="{BASE}/waybill/ui/streams/flights"' in page.text
            roles[user] = re.search(rf"{user} \((\w+)\)", page.text)[1]  # type: ignore[index]
            plugins = browser.get("/api/v2/plugins")
            if plugins.is_success:
                [ours] = [each for each in plugins.json()["plugins"] if each["name"] == "waybill_ui"]
                assert ours["external_views"][0]["href"] == "waybill/ui/"
    assert roles == {"vic": "viewer", "ulf": "operator", "otto": "admin", "ada": "admin"}


def test_a_click_triggers_a_dag_as_the_user_and_a_viewer_cannot(server: Server) -> None:
    form = {"stream": "flights", "reason": "the parser was corrected", "kind": "not_json"}
    with server.browser("ulf") as browser:
        token = token_of(browser.get("/waybill/ui/streams/flights"))
        headers = {"origin": server.origin}
        answer = browser.post("/waybill/ui/actions/retry", data={**form, "csrf": token}, headers=headers)
        assert answer.status_code == 200, answer.text
        assert f'href="{BASE}/dags/quarantine_retry/runs/' in answer.text
        forged = browser.post(
            "/waybill/ui/actions/retry", data={**form, "csrf": token}, headers={"origin": "https://evil.example.net"}
        )
        assert forged.status_code == 403
        runs = browser.get("/api/v2/dags/quarantine_retry/dagRuns").json()["dag_runs"]
    assert [(run["triggering_user_name"], run["conf"]["reasons"]) for run in runs] == [("ulf", ["not_json"])]
    with server.browser("vic") as browser:
        answer = browser.post("/waybill/ui/actions/retry", data={**form, "csrf": "x"}, headers=headers)
        assert answer.status_code == 403
