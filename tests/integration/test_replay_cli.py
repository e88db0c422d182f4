"""`waybill replay`, from the migration to the cancellation, on SQLite."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import replay_databases as helpers

from waybill.interfaces import cli
from waybill.replay.requests.states import RequestEvent
from waybill.replay.requests.stored import Progress, RejectedMessage

CONFIG = """\
version: 1
storage: {bucket: archive}
replay: {quotas: {open_requests_per_requester: 3}, kafka: {connections: [kafka_default]}}
streams:
  flights:
    topics: [flights]
    parser: {name: json, event_time: {field: at, format: epoch_ms}}
    table: analytics.flights
"""
END = datetime.now(UTC).replace(microsecond=0)
RANGE = ("--from", (END - timedelta(hours=1)).isoformat(), "--to", END.isoformat())


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Run `waybill replay` in this process, with a SQLite database that has no tables."""
    for name in list(os.environ):
        if name.startswith(("AIRFLOW_", "WAYBILL_")):
            monkeypatch.delenv(name)
    config = tmp_path / "streams.yaml"
    config.write_text(CONFIG)
    monkeypatch.setenv("WAYBILL_CONFIG", str(config))
    connection = helpers.sqlite_connection(tmp_path / "replay.db")
    monkeypatch.setenv(connection.variable, connection.to_environment())

    def run(*arguments: str) -> Ran:
        with pytest.raises(SystemExit) as ended:
            cli.run(("replay", *arguments))
        out, err = capfdbinary.readouterr()
        return Ran(int(ended.value.code or 0), out.decode(), err.decode())

    return run


def test_a_request_from_the_migration_to_the_cancellation(command: Run, tmp_path: Path) -> None:
    refused = command("ls")
    assert (refused.code, "run `waybill replay migrate`" in refused.err) == (1, True)
    assert command("migrate").out == f"sqlite:///{tmp_path}/replay.db: migrated from nothing to r0001\n"
    assert command("migrate").out.endswith("has revision r0001 already\n")
    assert command("ls").err == "there is no replay request\n"

    made = command(
        "create", "flights", "--key", "AA1", "--key-base64", "/wA=", *RANGE, "--s3", "zstd", "--json"
    ).document
    assert made["created_now"]
    assert made["request"]["keys"] == ["AA1", {"base64": "/wA="}]
    assert made["request"]["target"] == {"type": "s3", "compression": "zstd"}
    assert made["request"]["to"] == END.strftime("%Y-%m-%dT%H:%M:%S.000Z")

    [listed] = command("ls", "--state", "open", "--json").document
    assert listed["id"] == made["id"]
    assert made["id"] in command("ls").out
    shown = command("show", made["id"].lower()).out
    assert shown.startswith(f"{made['id']} open\nrequested by ")
    assert "0% of the range is read: 0 found, 0 delivered, 0 rejected" in shown

    cancelled = command("cancel", made["id"], "--reason", "a mistake", "--by", "ada")
    assert cancelled.out.startswith(f"{made['id']} cancelled: cancelled by ada: a mistake\n")


def test_progress_and_rejected_messages_are_shown(command: Run, tmp_path: Path) -> None:
    command("migrate")
    made = command("create", "flights", "--key", "AA1", *RANGE, "--webhook", "https://example.org/x", "--json").document
    assert command("show", made["id"], "--rejected").err == "the target rejected no message\n"
    now = helpers.NOW
    with helpers.open_database(helpers.sqlite_connection(tmp_path / "replay.db")) as database:
        claims = helpers.claims_of(database)
        claim = claims.claim("worker-7", now)
        assert claim is not None
        claims.record_progress(
            claim, now, Progress({"next": 1}, 1_200, 1_100, 0.5), [RejectedMessage("flights", 0, 7, "400: no")]
        )
        shown = command("show", made["id"])
        assert "50% of the range is read" in shown.out
        assert "1,200 found, 1,100 delivered, 1 rejected" in shown.out
        assert "served by worker-7 (claim 1, last heartbeat" in shown.out
        claims.finish(claim, now, RequestEvent.COMPLETE)
    document = command("show", made["id"], "--json").document
    assert (document["state"], document["progress"]["percent"]) == ("completed", 100.0)
    assert command("show", made["id"], "--rejected", "--json").document == [
        {"topic": "flights", "partition": 0, "offset": 7, "reason": "400: no"}
    ]
    assert command("show", made["id"], "--rejected").out.split()[-2:] == ["400:", "no"]
    refused = command("cancel", made["id"], "--reason", "x")
    assert (refused.code, "is completed already, and cannot be cancelled" in refused.err) == (1, True)


def test_a_repeated_creation_and_a_reached_quota(command: Run) -> None:
    command("migrate")
    arguments = ("create", "flights", "--key", "AA1", *RANGE, "--kafka", "kafka_default/missed", "--by", "ada")
    first = command(*arguments, "--idempotency-key", "k")
    again = command(*arguments, "--idempotency-key", "k")
    assert first.out.splitlines()[0].removeprefix("created ") == again.out.splitlines()[0].removeprefix(
        "exists already: "
    )
    for _ in range(2):
        assert command(*arguments).code == 0
    refused = command(*arguments)
    assert (refused.code, "ada has 3 open requests" in refused.err) == (1, True)
    assert len(command("ls", "--by", "ada", "--limit", "2", "--json").document) == 2
    assert "There may be more: waybill replay ls --before" in command("ls", "--limit", "2").err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create", "flights", "--key", "a", *RANGE), "give one of --webhook URL, --kafka CONNECTION/TOPIC and --s3"),
        (("create", "flights", "--key", "a", *RANGE, "--s3", "gzip", "--kafka", "a/b"), "not --kafka and --s3"),
        (("create", "flights", "--key", "a", *RANGE, "--kafka", "missed"), "'missed' is not of the form CONNECTION/"),
        (("create", "flights", *RANGE, "--s3", "gzip"), "keys: must be a list of 1 to 100 message keys"),
        (("create", "flight", "--key", "a", *RANGE, "--s3", "gzip"), "stream: no stream 'flight'; did you mean"),
        (("create", "flights", "--key", "a", *RANGE[:2], "--to", "now", "--s3", "gzip"), "to: 'now' is no ISO 8601"),
        (("ls", "--state", "sleeping"), "--state: 'sleeping' is no state; there are: open, started, ongoing"),
        (("ls", "--limit", "0"), "limit: 0 must be from 1 to 1,000"),
        (("show", "7"), "id: '7' is no id of a replay request"),
        (("cancel", "0" * 26, "--reason", "x"), "there is no replay request 000"),
    ],
)
def test_a_refusal_is_one_line_with_the_remedy(command: Run, arguments: tuple[str, ...], message: str) -> None:
    command("migrate")
    refused = command(*arguments)
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("error: ")
    assert message in refused.err
    assert len(refused.err.splitlines()) == 1
