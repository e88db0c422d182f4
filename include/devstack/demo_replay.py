"""`make demo-replay`: a service misses an hour of its messages, asks for it, and gets exactly that hour.

The service is a webhook receiver in this process, written as docs/replay-webhooks.md says. Its messages are a week of
real flights. It follows the aircraft that departed within one hour, and was down in that hour. When it asks, the first
half of the hour is archived, and the second half is only in Kafka. Airflow runs the DAGs and answers the HTTP request,
on a stack of its own that is removed at the end.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from devstack.airflow import AirflowClient, RunState
from devstack.demo import stage
from devstack.flights import FlightEvent, flight_events
from devstack.produce import create_topic, produce
from devstack.stack import Stack
from waybill.base.errors import StackError

TOPIC = "flights"
HOUR = datetime(2013, 7, 1, 21, tzinfo=UTC)
"""17:00 to 18:00 in New York."""
_WEEK = (HOUR - timedelta(days=6, hours=21), HOUR + timedelta(hours=3))
_MAX_KEYS = 100
_RUN_SECONDS = 300.0
_REQUESTS = "/waybill/replay/requests"

_CONFIG = """\
version: 1
storage: {bucket: waybill, prefix: replay}
zookeeper: {root: replay}
replay:
  webhooks: {allow_http: true, allowed_networks: [127.0.0.0/8]}
streams:
  flights:
    topics: [flights]
    key_partitioner: other # the demo's producers are librdkafka's
    upload: {max_age: 0s}
    parser:
      event_time: {field: time.scheduled, format: iso8601}
      message_id: id
    table: demo.flights
"""


@dataclass
class Receiver:
    """The service: it checks signatures, answers the challenge, and keeps each message."""

    key: bytes
    url: str = ""
    flights: list[dict[str, Any]] = field(default_factory=list)
    refused: int = 0

    def answer(self, headers: Any, body: bytes) -> tuple[int, dict[str, str]]:
        """Return the status and the answer to a request."""
        if not self._is_signed(headers.get("Waybill-Signature", ""), body):
            self.refused += 1
            return 401, {}
        document = json.loads(body)
        if document["type"] == "challenge":
            proven = f"waybill-challenge-2:{document['token']}:{self.url}".encode()
            return 200, {"proof": hmac.new(self.key, proven, hashlib.sha256).hexdigest()}
        self.flights += [json.loads(message["value"]) for message in document["messages"]]
        return 200, {}

    def _is_signed(self, header: str, body: bytes) -> bool:
        parts = dict(part.split("=", 1) for part in header.split(",") if "=" in part)
        at = parts.get("t", "")
        expected = hmac.new(self.key, at.encode() + b"." + body, hashlib.sha256).hexdigest()
        is_recent = at.isdecimal() and abs(time.time() - int(at)) < 300
        return is_recent and hmac.compare_digest(parts.get("v1", ""), expected)


@contextmanager
def running(receiver: Receiver) -> Iterator[Receiver]:
    """Serve the receiver on a free port, and set its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, answer = receiver.answer(self.headers, self.rfile.read(int(self.headers["Content-Length"])))
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}/missed"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main(console: Console, on_progress: Callable[[str], None]) -> int:
    """Run the demo, and return the exit code."""
    receiver = Receiver(secrets.token_bytes(32).hex().encode())
    with tempfile.TemporaryDirectory(prefix="waybill-replay-") as folder, running(receiver):
        directory = Path(folder)
        with Stack.start(directory / "stack", on_progress=on_progress) as stack:
            environment = _prepare(directory, stack, receiver)
            stack.start_airflow(environment)
            with stack.airflow.client() as airflow:
                return _play(stack, airflow, receiver, console)


def _prepare(directory: Path, stack: Stack, receiver: Receiver) -> dict[str, str]:
    """Write the config, create the database of the requests, and return Airflow's environment."""
    config = directory / "streams.yaml"
    config.write_text(_CONFIG)
    database = {"conn_type": "sqlite", "host": str(directory / "requests.db")}
    webhooks = {"conn_type": "http", "password": receiver.key.decode()}
    environment = {
        "WAYBILL_CONFIG": str(config),
        "AIRFLOW_CONN_WAYBILL_REPLAY": json.dumps(database),
        "AIRFLOW_CONN_WAYBILL_WEBHOOKS": json.dumps(webhooks),
    }
    migrated = subprocess.run(
        [sys.executable, "-m", "waybill.interfaces.cli", "replay", "migrate"],
        env=os.environ | stack.environment() | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if migrated.returncode:
        raise StackError(f"`waybill replay migrate` failed:\n{migrated.stderr.strip()}")
    return environment


def _play(stack: Stack, airflow: AirflowClient, receiver: Receiver, console: Console) -> int:
    begin_ms, end_ms = (round(at.timestamp() * 1000) for at in _WEEK)
    events = [event for event in flight_events() if begin_ms <= event.timestamp_ms < end_ms]
    events.sort(key=lambda event: event.timestamp_ms)
    missed = [event for event in events if _is_in_hour(event) and event.key]
    keys = sorted({event.key for event in missed if event.key})[:_MAX_KEYS]
    missed = [event for event in missed if event.key in keys]
    half = next(
        number for number, event in enumerate(events) if event.timestamp_ms >= _ms(HOUR + timedelta(minutes=30))
    )

    create_topic(stack.bootstrap_servers, TOPIC, 6)
    with stage(console, f"{half:,} flights to Kafka; Airflow archives them"):
        produce(stack.bootstrap_servers, TOPIC, events[:half], lambda _: None)
        _run(airflow, "ingest")
    with stage(console, f"{len(events) - half:,} more flights to Kafka, which are not archived yet"):
        produce(stack.bootstrap_servers, TOPIC, events[half:], lambda _: None)
    with stage(console, "Airflow indexes which keys are where in the archive"):
        _run(airflow, "replay_index")
    with stage(console, f"the service asks over HTTP for {HOUR:%H:%M} to {HOUR + timedelta(hours=1):%H:%M} UTC"):
        address = _request(airflow, [key.decode() for key in keys], receiver.url)
    with stage(console, "Airflow serves the request"):
        _run(airflow, "replay")
        stored = airflow.call_plugin("GET", address).json()
    return _print_result(console, events, missed, receiver, stored)


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _is_in_hour(event: FlightEvent) -> bool:
    return _ms(HOUR) <= event.timestamp_ms < _ms(HOUR + timedelta(hours=1))


def _run(airflow: AirflowClient, dag_id: str) -> None:
    airflow.wait_for_dag(dag_id)
    airflow.unpause(dag_id)
    try:
        run_id = airflow.trigger(dag_id)
        run = airflow.wait_for_run(dag_id, run_id, seconds=_RUN_SECONDS)
    finally:
        airflow.pause(dag_id)
    if run.state is not RunState.SUCCESS:
        raise StackError(airflow.failure_report(dag_id, run_id))


def _request(airflow: AirflowClient, keys: list[str], url: str) -> str:
    """Create the request, and return its address."""
    wanted = {
        "stream": "flights",
        "keys": keys,
        "from": HOUR.isoformat(),
        "to": (HOUR + timedelta(hours=1)).isoformat(),
        "target": {"type": "webhook", "url": url},
    }
    answer = airflow.call_plugin("POST", _REQUESTS, wanted)
    if answer.status_code != 202:
        raise StackError(f"POST {_REQUESTS} was answered with {answer.status_code}: {answer.text[:500]}")
    return answer.headers["Location"]


def _print_result(
    console: Console, events: list[FlightEvent], missed: list[FlightEvent], receiver: Receiver, stored: dict[str, Any]
) -> int:
    expected = sorted(json.loads(event.value or b"")["id"] for event in missed)
    got = sorted(flight["id"] for flight in receiver.flights)
    is_exact = got == expected
    table = Table(title="The missed hour", title_justify="left")
    table.add_column("")
    table.add_column("flights", justify="right")
    table.add_row("in the topic", f"{len(events):,}")
    table.add_row(f"missed: of {len({event.key for event in missed})} aircraft, in one hour", f"{len(expected):,}")
    table.add_row("the service got", f"{len(got):,}", style="green" if is_exact else "red")
    table.add_row("missing", f"{len(set(expected) - set(got)):,}")
    table.add_row("not asked for, or twice", f"{len(got) - len(set(got) & set(expected)):,}")
    table.add_row("requests without a right signature", f"{receiver.refused:,}")
    console.print(table)
    console.print(
        f"The request {stored['id']} is {stored['state']}, {stored['progress']['percent']:.0f} % of its range is read."
    )
    return 0 if is_exact and stored["state"] == "completed" else 1
