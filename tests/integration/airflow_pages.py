"""Airflow's API server with Waybill's pages, without a scheduler, and a browser that is signed in."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

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
    upload: {max_age: 0s}
    parser: {name: json, event_time: {field: at, format: epoch_ms}}
    table: ui.flights
"""


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Server:
    """An API server without a scheduler: what it triggers stays queued."""

    def __init__(self, home: Path) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
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


@contextmanager
def serving(home: Path) -> Iterator[Server]:
    """Start an API server, and yield it when it answers."""
    made = Server(home)
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
            made.process = process
            yield made
        finally:
            os.killpg(process.pid, signal.SIGCONT)
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
