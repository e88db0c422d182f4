"""The watch on the real stack: what it finds, what it sends, and what becomes of it when services are away."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alert_servers import AlertServers, alert_servers
from archived_stream import ArchivedStream, remove_rows
from ingest_scenes import Cluster

from devstack import Stack
from waybill.archive.ingest import plan_lanes, run_lane
from waybill.config.models import Config
from waybill.watch.incidents.finding import Finding, Verdict
from waybill.watch.incidents.incident import Incident
from waybill.watch.promises.watch_run import WatchReport, run_watch

pytestmark = pytest.mark.integration

MINUTE = 60_000
START_MS = 1_800_000_000_000
CHANNELS = """\
alerts:
  airflow_url: https://airflow.example.com
  dead_man: dead_man
  channels:
    team: {type: email, connection: mail, to: [ann@example.com, bob@example.com]}
    chat: {type: slack, connection: slack_hook}
    room: {type: slack, connection: slack_api, channel: "#data"}
    hook: {type: webhook, connection: hook}
    pager: {type: webhook, connection: pagerduty, format: pagerduty}
"""


class Watched(ArchivedStream):
    """A stream that is watched at times that the test chooses: `now_ms` goes on with each watch."""

    def __init__(self, directory: Path, topic: str, **options: Any) -> None:
        super().__init__(directory, topic, **options)
        self.directory = directory
        self.now_ms = START_MS

    def configure(self, alerts: str = "", promises: str = "") -> None:
        """Add the section `alerts`, and the promises of the stream."""
        text = self.file.read_text().replace("streams:\n", f"{alerts}streams:\n", 1)
        self.file.write_text(f"{text}    promises: {promises}\n" if promises else text)

    def watch(self, minutes: int = 1, config: Config | None = None) -> WatchReport:
        """Watch once, some minutes after the watch before."""
        self.now_ms += minutes * MINUTE
        return run_watch(config or self.config, now_ms=lambda: self.now_ms, directory=self.directory)

    def watch_for(self, minutes: int) -> WatchReport:
        """Watch each minute for a while, and return the last report."""
        return [self.watch() for _ in range(minutes)][-1]


@pytest.fixture
def watched(stack: Stack, tmp_path: Path, topic_name: str) -> Watched:
    return Watched(tmp_path, topic_name)


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AlertServers]:
    with alert_servers(tmp_path) as servers:
        for name, value in servers.environment.items():
            monkeypatch.setenv(name, value)
        yield servers


def found(report: WatchReport, promise: str) -> Finding:
    [finding] = [each for each in report.findings if each.promise == promise and each.stream]
    return finding


def broken(report: WatchReport) -> list[str]:
    return sorted(each.subject if each.promise == "reachable" else each.promise for each in report.broken)


def incident(report: WatchReport) -> Incident:
    [incident] = report.open
    return incident


def test_sound_stream_breaks_no_promise_before_and_after_its_first_run(watched: Watched) -> None:
    assert broken(watched.watch()) == []
    watched.produce_events(10)
    watched.ingest()
    assert broken(watched.watch()) == []
    watched.partition()
    report = watched.watch()
    assert broken(report) == []
    assert {each.subject for each in report.findings if each.verdict is not Verdict.KEPT} <= {"the catalog"}, (
        "tables are not read each minute"
    )
    assert report.open == []


def test_topic_that_is_not_archived_is_one_incident_that_is_told_on_all_channels_and_told_when_it_is_over(
    watched: Watched, servers: AlertServers
) -> None:
    watched.configure(CHANNELS, "{archive_lag: 10m}")
    watched.watch()
    watched.produce_events(30)
    watched.watch_for(11)
    assert servers.mails == []
    opened = incident(watched.watch())
    assert (opened.stream, opened.promise, opened.figure) == ("events", "archive_lag", "11 min")
    watched.watch_for(5)
    [mail] = servers.mails
    assert mail["Subject"] == "[critical] events: archive lag 11 min (at most 10 min)"
    assert mail["To"] == "ann@example.com, bob@example.com"
    assert mail["From"] == "waybill@example.com"
    plain, html = mail.get_body(("plain",)), mail.get_body(("html",))
    assert plain is not None
    assert html is not None
    for body in (plain.get_content(), html.get_content()):
        for part in (
            "1 topic-partition, at most 30 messages",
            "New messages reach neither the archive nor the table.",
            "waybill offsets --stream events",
            "docs/runbooks/archive-lag.md",
            "https://airflow.example.com/dags",
            opened.id,
        ):
            assert part in body
    assert [body["text"] for body in servers.bodies("/services/T0/B0/x")] == [mail["Subject"]]
    assert [body["channel"] for body in servers.bodies("/api/chat.postMessage")] == ["#data"]
    [document] = servers.bodies("/hook")
    assert (document["kind"], document["incident"]["id"]) == ("opened", opened.id)
    [event] = servers.bodies("/v2/enqueue")
    assert (event["event_action"], event["dedup_key"], event["routing_key"]) == ("trigger", opened.id, "routing-key")

    watched.ingest()
    watched.watch_for(5)
    assert len(servers.mails) == 1
    report = watched.watch()
    assert report.open == []
    assert servers.mails[1]["Subject"] == "[resolved] events: archive lag, after 7 min"
    assert [each["event_action"] for each in servers.bodies("/v2/enqueue")] == ["trigger", "resolve"]
    watched.watch_for(3)
    assert len(servers.mails) == 2
    assert servers.pings == 27


def test_named_stop_a_pause_and_a_late_table_are_incidents(
    watched: Watched, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.configure("", "{table_lag: 30m, paused: 1h}")
    watched.produce_events(20)
    watched.ingest()
    watched.produce_events(20, first=20)
    cluster.delete_records(watched.tp(), 30)
    for lane in plan_lanes(watched.config, watched.name):
        run_lane(watched.config, lane)
    report = watched.watch()
    assert broken(report) == ["named_stop", "retention_runway"]
    assert "RetentionGap" in found(report, "named_stop").detail
    assert found(report, "retention_runway").figure == "messages are deleted already"

    monkeypatch.setenv("WAYBILL_CONFIG", str(watched.file))
    assert watched.waybill("pause", "events", "--reason", "a test").code == 0
    watched.watch(29)
    assert "table_lag" not in broken(watched.watch())
    assert "table_lag" in broken(watched.watch())
    watched.partition()
    assert "table_lag" not in broken(watched.watch())


@pytest.mark.deep  # clients wait for servers that do not answer
def test_service_that_is_away_is_one_incident_and_changes_no_other(
    watched: Watched, servers: AlertServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.configure(CHANNELS, "{archive_lag: 5m}")
    watched.watch()
    watched.produce_events(5)
    watched.watch_for(7)
    assert incident(watched.watch()).promise == "archive_lag"
    for name in ("AWS_DEFAULT", "ZOOKEEPER_DEFAULT", "KAFKA_DEFAULT"):
        with monkeypatch.context() as away:
            connection = json.loads(os.environ[f"AIRFLOW_CONN_{name}"])
            if name == "AWS_DEFAULT":
                connection["extra"]["endpoint_url"] = "http://127.0.0.1:9"
            elif name == "KAFKA_DEFAULT":
                connection["extra"]["bootstrap.servers"] = "127.0.0.1:9"
            else:
                connection["host"], connection["port"] = "127.0.0.1", 9
            away.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))
            report = watched.watch()
            services = {"AWS_DEFAULT": "S3", "ZOOKEEPER_DEFAULT": "ZooKeeper", "KAFKA_DEFAULT": "Kafka"}
            assert services[name] in broken(report)
            assert {each.promise for each in report.open} == {"archive_lag", "reachable"}
            [offline] = [each for each in report.findings if each.promise == "kafka_offline_partitions"]
            expected = Verdict.UNKNOWN if name == "KAFKA_DEFAULT" else Verdict.KEPT
            assert offline.verdict is expected, "promises about Kafka need neither ZooKeeper nor S3"
            mails = len(servers.mails)
            watched.watch()
            assert len(servers.mails) == mails, "it is told once"
        for _ in range(7):
            report = watched.watch()
        assert [each.promise for each in report.open] == ["archive_lag"], "it is over"
    subjects = [str(mail["Subject"]) for mail in servers.mails]
    assert sum("archive lag" in subject for subject in subjects) == 1


def test_airflow_that_is_away_is_one_incident_and_the_lags_that_follow_open_none(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.configure("airflow: {connection: waybill_airflow}\n", "{archive_lag: 5m}")
    away = {"conn_type": "http", "host": "http://127.0.0.1:9", "login": "admin", "password": "s3cret"}
    monkeypatch.setenv("AIRFLOW_CONN_WAYBILL_AIRFLOW", json.dumps(away))
    watched.watch()
    watched.produce_events(5)
    report = watched.watch_for(7)
    assert broken(report) == ["Airflow"]
    assert found(report, "archive_lag").verdict is Verdict.UNKNOWN
    assert (incident(report).subject, incident(report).figure) == ("Airflow", "no answer")
    monkeypatch.delenv("AIRFLOW_CONN_WAYBILL_AIRFLOW")
    report = watched.watch()
    # A connection that is missing ends no watch: what needs it is the same incident, and the alert leaves.
    assert broken(report) == ["Airflow"]
    assert (incident(report).figure, "waybill_airflow" in incident(report).detail) == (
        "cannot be used: ConnectionMissing",
        True,
    )


def test_two_watches_at_once_send_one_message(watched: Watched, servers: AlertServers) -> None:
    watched.configure(CHANNELS, "{archive_lag: 5m}")
    watched.watch()
    watched.produce_events(5)
    watched.watch_for(5)
    watched.now_ms += 2 * MINUTE
    with ThreadPoolExecutor(2) as pool:
        both = [
            pool.submit(run_watch, watched.config, now_ms=lambda: watched.now_ms, directory=watched.directory)
            for _ in range(2)
        ]
        reports = [each.result() for each in both]
    assert sorted(report.sent for report in reports) == [0, 5]
    assert len(servers.mails) == 1


@pytest.mark.deep
def test_channel_that_refuses_is_tried_again_and_told_on_the_others(watched: Watched, servers: AlertServers) -> None:
    watched.configure(CHANNELS, "{archive_lag: 5m}")
    watched.watch()
    watched.produce_events(5)
    servers.is_refusing = True
    watched.watch_for(10)
    assert {str(mail["Subject"]).split("]")[1].split(":")[0].strip() for mail in servers.mails} == {
        "events", "chat", "room", "hook", "pager",
    }  # fmt: skip
    assert servers.posts == []
    servers.is_refusing = False
    watched.watch_for(60)
    assert len(servers.bodies("/v2/enqueue")) >= 1


def test_wrong_password_is_named_by_the_test_of_the_channel(watched: Watched, servers: AlertServers) -> None:
    watched.configure(CHANNELS.replace("connection: mail,", "connection: mail_wrong_password,"))
    ran = watched.waybill("watch", "--test", "team")
    assert ran.code == 1
    assert "connection 'mail_wrong_password': SMTPAuthenticationError" in ran.err
    assert watched.waybill("watch", "--test", "chat").out == "sent to chat: look whether it has arrived\n"
    assert watched.waybill("watch", "--test", "phone").code == 1


def test_commands_list_show_and_acknowledge_incidents(watched: Watched, servers: AlertServers) -> None:
    watched.configure(CHANNELS.replace("dead_man: dead_man", "escalate_to: [pager]"), "{archive_lag: 5m}")
    watched.watch()
    watched.produce_events(5)
    watched.watch_for(7)
    [listed] = watched.waybill("incidents", "ls", "--json").document
    assert listed["promise"] == "archive_lag"
    shown = watched.waybill("incidents", "show", listed["id"]).out
    assert "Run:            waybill offsets --stream events" in shown
    assert watched.waybill("incidents", "ack", "no-such", "--reason", "x").code == 1
    ran = watched.waybill("incidents", "ack", listed["id"], "--reason", "on it", "--by", "ann")
    assert ran.out == f"{listed['id']} is acknowledged by ann: no reminders, and no escalation\n"
    watched.watch(minutes=600)
    assert servers.bodies("/v2/enqueue") == []
    assert len(servers.mails) == 1
    ran = watched.waybill("watch", "--dry-run")
    # This process has the real clock, years behind: the time of day decides whether a volume of earlier weeks is known.
    assert re.search(r"\b0 broken(, 1 could not be measured)?; 1 open incident; 0 messages sent", ran.out), ran.out


def test_retention_alarm_comes_before_the_first_loss(stack: Stack, tmp_path: Path, topic_name: str) -> None:
    """Ten minutes of retention, and ingest at half of the rate of the producers, in simulated minutes."""
    watched = Watched(tmp_path, topic_name, topic_config={"retention.ms": "600000"}, partitions=1)
    watched.configure("", "{archive_lag: off, retention_runway: 4m}")
    watched.file.write_text(watched.file.read_text().replace("max_bytes: 1MiB", "max_bytes: 1KiB"))
    alarm = None
    with watched.coordinator() as coordinator:
        watched.produce_events(1)
        watched.ingest()
        for minute in range(1, 40):
            watched.produce_events(100, first=100 * minute)
            committed = coordinator.read_committed(watched.tp())
            assert committed is not None
            # As a lane that commits 50 messages a minute would.
            coordinator.write_committed(
                watched.tp(), replace(committed, committed_offset=50 * minute), committed.version
            )
            if "retention_runway" in broken(watched.watch()):
                alarm = minute
                break
    # The message at offset 50 t was produced in minute t / 2, so the first is lost in minute 20.
    assert alarm is not None
    assert 10 <= alarm <= 18


def test_ledger_that_does_not_balance_is_an_incident_until_the_next_recorded_one_does(
    watched: Watched, servers: AlertServers
) -> None:
    watched.configure(CHANNELS)
    watched.produce_events(20)
    watched.ingest()
    watched.partition()
    assert watched.waybill("ledger", "events", "--record").code == 0
    assert broken(watched.watch(5)) == []
    with watched.tables() as tables:
        before = tables.main.current_snapshot()
        assert before is not None
        remove_rows(tables.main, 0, 7, 9)
    assert broken(watched.watch(5)) == [], "the ledger was not recorded again"
    assert watched.waybill("ledger", "events", "--record").code == 1
    report = watched.watch(5)
    assert broken(report) == ["ledger_balance"]
    assert (
        "/0 offsets 0–19: 20 messages were archived there, and the tables have 18: 2 missing" in report.broken[0].detail
    )
    assert incident(report).severity == "critical"

    with watched.tables() as tables, tables.main.manage_snapshots() as snapshots:
        snapshots.rollback_to_snapshot(before.snapshot_id)
    assert watched.waybill("ledger", "events", "--record").code == 0
    assert broken(watched.watch(5)) == []


def test_dead_mans_switch_that_is_not_reached_is_an_incident_until_it_is(
    watched: Watched, servers: AlertServers
) -> None:
    watched.configure(CHANNELS)
    servers.answers["/ping"] = 302, {"Location": "https://elsewhere.example.com/"}, b""
    assert watched.watch().open == []
    assert watched.watch().open == []
    opened = incident(watched.watch())
    assert (opened.promise, opened.subject) == ("channel", "dead man's switch")
    assert "a redirect to https://elsewhere.example.com/" in opened.detail
    assert len(servers.mails) == 1
    servers.answers.clear()
    assert watched.watch_for(8).open == []
    assert len(servers.mails) == 2
    assert servers.pings == 11


def test_channel_whose_connection_cannot_be_used_is_an_incident_at_the_first_watch(
    watched: Watched, servers: AlertServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.configure(CHANNELS)
    wrong = {"conn_type": "http", "host": "http://x:9999", "port": 9999}
    monkeypatch.setenv("AIRFLOW_CONN_HOOK", json.dumps(wrong))
    report = watched.watch()
    opened = incident(report)
    assert (opened.promise, opened.subject) == ("channel", "hook")
    assert "connection 'hook': its host names port 9999, and its port is 9999" in opened.detail
    assert (report.sent, report.failed, report.unexpected) == (4, [], ())
    assert len(servers.mails) == 1
