"""Every kind of incident, about any name, leaves through every channel and arrives right, whatever one channel does."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from email.message import EmailMessage
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from alert_servers import AlertServers, alert_servers

from waybill.base.errors import ConfigError
from waybill.config.connections import find_connection
from waybill.config.models.alerts import Alerts
from waybill.config.models.kafka_promises import KafkaPromiseName
from waybill.config.models.promises import PromiseName, PromiseSeverity
from waybill.watch.incidents.finding import (
    CHANNEL,
    CONFIG,
    DEAD_MAN,
    MEASURED,
    REACHABLE,
    READABLE,
    TASKS,
    Finding,
    Verdict,
)
from waybill.watch.incidents.incident import IncidentBook, Notification, NotificationKind
from waybill.watch.incidents.rules import advance, channel_findings, claim, settle
from waybill.watch.notify.channels import check_channel, ping, send, unusable_channels
from waybill.watch.notify.http import ChannelFailed
from waybill.watch.notify.message import ChannelMessage
from waybill.watch.notify.message import test_message as message_of_a_test
from waybill.watch.promises import sending
from waybill.watch.promises.sending import ping_dead_man, send_all

pytestmark = pytest.mark.integration

NOW = 1_800_000_000_000
CHANNELS: dict[str, dict[str, Any]] = {
    "team": {"type": "email", "connection": "mail", "to": ["ann@example.com"]},
    "chat": {"type": "slack", "connection": "slack_hook"},
    "room": {"type": "slack", "connection": "slack_api", "channel": "#data"},
    "hook": {"type": "webhook", "connection": "hook"},
    "pager": {"type": "webhook", "connection": "pagerduty", "format": "pagerduty"},
}
ALERTS = Alerts.model_validate(
    {"channels": CHANNELS, "airflow_url": "https://airflow.example.com", "runbooks_url": "https://r.example.com/books"}
)
KINDS = [*PromiseName, *KafkaPromiseName, REACHABLE, READABLE, CHANNEL, TASKS, MEASURED, CONFIG]
NAMES = {
    "umlauts": "bestellungen-münchen",
    "emoji": "orders-🚚👩‍🔧",
    "newline": "orders\r\nBcc: eve@example.com\r\n\r\nbody",
    "NUL": "orders\x00billing\x1b[31m",
    "slashes": "../../etc/passwd",
    "quotes": "o'r\"d`e```rs",
    "markup": "<!channel> <https://evil.example.com|click> & <b>bold</b> {{ 7*7 }} %s",
    "long": "x" * 10_000,
    "right to left": "orders\u202egnillib\u2066",
    "surrogates": "orders\udce4\ud800",
    "blanks": "   ",
}


class Config:
    """What `send_all` reads of a config."""

    def __init__(self, alerts: Alerts) -> None:
        self.alerts = alerts


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AlertServers]:
    with alert_servers(tmp_path_factory.mktemp("alerts")) as servers:
        yield servers


@pytest.fixture
def servers(running: AlertServers, monkeypatch: pytest.MonkeyPatch) -> AlertServers:
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    running.mails.clear()
    running.posts.clear()
    running.answers.clear()
    return running


def hostile_findings(name: str) -> list[Finding]:
    """Return a broken finding of every kind: with the name as its subject, and in all its texts."""
    return [
        Finding(
            stream="flights" if number % 2 else "",
            promise=str(kind),
            verdict=Verdict.BROKEN,
            severity=PromiseSeverity.CRITICAL,
            figure=f"lag of {name[:300]}",
            limit="at most 5 min",
            detail=f"topic {name}, user {name}",
            command=f"waybill trace --key {name}",
            subject=name,
            link=f"https://airflow.example.com/dags/d/runs/{name[:300]}" if kind == TASKS else "",
        )
        for number, kind in enumerate(KINDS)
    ]


def is_shown(text: str) -> bool:
    """Return whether a text has no character that hides, turns or breaks others."""
    return not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_all_kinds_of_incidents_about_any_name_leave_through_all_channels_and_arrive_right(
    servers: AlertServers, name: str
) -> None:
    book, claimed = claim(advance(IncidentBook(), hostile_findings(name), ALERTS, NOW), NOW, ALERTS.channels)
    assert len(claimed) == len(KINDS) * len(CHANNELS)
    sent = send_all(Config(ALERTS), book, claimed, NOW, find_connection)  # type: ignore[arg-type]
    assert (sent.failed, sent.unexpected, sent.count) == ([], [], len(claimed))
    ids = {incident.id for incident in book.incidents}
    assert len(ids) == len(KINDS)
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,255}", each) for each in ids)

    assert len(servers.mails) == len(KINDS)
    for mail in servers.mails:
        check_mail(mail)
    assert {str(mail["References"]).strip() for mail in servers.mails} == {f"<{each}@waybill>" for each in ids}
    assert {body["dedup_key"] for body in servers.bodies("/v2/enqueue")} == ids
    for event in servers.bodies("/v2/enqueue"):
        assert len(json.dumps(event)) < 500_000
        assert len(event["payload"]["summary"]) <= 1024
        assert event["payload"]["source"]
    documents = servers.bodies("/hook")
    assert {body["incident"]["id"] for body in documents} == ids
    expected = name.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert {body["incident"]["subject"] for body in documents} == {expected}, "JSON holds any name as it is"
    for path in ("/services/T0/B0/x", "/api/chat.postMessage"):
        assert len(servers.bodies(path)) == len(KINDS)
        for body in servers.bodies(path):
            check_slack(body)
    keys = [headers["Idempotency-Key"] for path, headers, _ in servers.posts if path == "/hook"]
    assert len(set(keys)) == len(KINDS)
    assert all(key.isascii() and key.isprintable() for key in keys)


def check_mail(mail: EmailMessage) -> None:
    assert is_shown(str(mail["Subject"]))
    assert mail["Bcc"] is None
    assert str(mail["To"]) == "ann@example.com"
    assert re.fullmatch(r"<[A-Za-z0-9_.%-]+@waybill>", str(mail["Message-ID"]).strip())
    plain, html = mail.get_body(("plain",)), mail.get_body(("html",))
    assert plain is not None
    assert html is not None
    text = plain.get_content().replace("\r\n", "\n")
    assert is_shown(text)
    assert "waybill incidents ack" in text
    page = html.get_content().replace("\r\n", "\n")
    assert is_shown(page)
    assert "<b>" not in page
    assert "<!channel>" not in page
    links = re.findall(r'href="([^"]*)"', page)
    assert all(link.startswith(("https://airflow.example.com/", "https://r.example.com/")) for link in links)


def check_slack(body: dict[str, Any]) -> None:
    header, *sections = body["blocks"]
    assert len(header["text"]["text"]) <= 150
    texts = [body["text"]]
    for section in sections:
        texts += [each["text"] for each in section.get("fields", section.get("elements", [section.get("text")]))]
    for text in texts:
        assert is_shown(text)
        assert len(text) <= 3000
        assert "<!" not in text
        for link in re.findall(r"<([^>]*)>", text):
            assert re.fullmatch(r"https://(airflow|r)\.example\.com/[^<>\s|]*\|(Airflow|Runbook)", link)
    [command] = [text for text in texts if text.startswith("```")]
    assert command.endswith("```")
    assert "```" not in command[3:-3]
    for section in sections:
        assert len(section.get("fields", [])) <= 10
        assert all(len(each["text"]) <= 2000 for each in section.get("fields", []))


def test_similar_names_have_ids_of_their_own_and_one_that_recovers_ends_its_own_incident(
    servers: AlertServers,
) -> None:
    names = ["orders.billing", "orders-billing", "Orders_Billing", "orders_billing", "orders billing", "ördérs_billing"]
    names += [f"{'x' * 60}{number}" for number in range(3)]
    broken = [
        Finding("", KafkaPromiseName.GROUP_LAG, Verdict.BROKEN, PromiseSeverity.CRITICAL, subject=name)
        for name in names
    ]
    book = advance(IncidentBook(), broken, ALERTS, NOW)
    ids = {incident.subject: incident.id for incident in book.incidents}
    assert len(set(ids.values())) == len(names)
    for finding in broken:
        [alone] = advance(IncidentBook(), [finding], ALERTS, NOW).incidents
        assert alone.id == ids[finding.subject], "an id does not depend on the other incidents"
    kept = [replace(broken[0], verdict=Verdict.KEPT), *broken[1:]]
    for minute in range(1, 8):
        book = advance(book, kept, ALERTS, NOW + minute * 60_000)
    assert [each.subject for each in book.incidents if not each.is_open] == names[:1]


def test_two_open_incidents_that_share_an_id_of_an_earlier_waybill_end_one_by_one(servers: AlertServers) -> None:
    first, second = (
        Finding("", KafkaPromiseName.GROUP_LAG, Verdict.BROKEN, PromiseSeverity.CRITICAL, subject=name)
        for name in ("orders.billing", "orders-billing")
    )
    shared = "kafka_group_lag-orders_billing-1"
    book = advance(IncidentBook(), [first, second], ALERTS, NOW)
    book = replace(book, incidents=tuple(replace(each, id=shared) for each in book.incidents))
    book = IncidentBook.parse(json.loads(json.dumps(book.document())))
    for minute in range(1, 8):
        book = advance(book, [first, replace(second, verdict=Verdict.KEPT)], ALERTS, NOW + minute * 60_000)
    assert [(each.subject, each.is_open) for each in book.incidents] == [
        ("orders.billing", True),
        ("orders-billing", False),
    ]
    assert book.incidents[0].id == shared


def test_open_incident_whose_id_is_not_ascii_is_told_and_resolved_under_its_id(servers: AlertServers) -> None:
    found = Finding("", KafkaPromiseName.GROUP_LAG, Verdict.BROKEN, PromiseSeverity.CRITICAL, subject="münchen")
    book = advance(IncidentBook(), [found], ALERTS, NOW)
    old = "kafka_group_lag-münchen-20260301T120000Z"
    book = replace(book, incidents=(replace(book.incidents[0], id=old),), outbox=())
    for minute in range(1, 8):
        book = advance(book, [replace(found, verdict=Verdict.KEPT)], ALERTS, NOW + minute * 60_000)
    book, claimed = claim(book, NOW + 600_000, ALERTS.channels)
    assert [each.kind for each in claimed] == [NotificationKind.RESOLVED] * 5
    sent = send_all(Config(ALERTS), book, claimed, NOW, find_connection)  # type: ignore[arg-type]
    assert sent.failed == []
    assert [body["dedup_key"] for body in servers.bodies("/v2/enqueue")] == [old], "the key of the trigger"


# --- servers that answer otherwise, and connections that cannot be used -----------------------------------------------

_PATHS = {"chat": "/services/T0/B0/x", "room": "/api/chat.postMessage", "hook": "/hook", "pager": "/v2/enqueue"}
_REDIRECTS = [301, 302, 303, 307, 308]


@pytest.mark.parametrize(("channel", "status"), product(_PATHS, _REDIRECTS))
def test_redirect_is_a_failed_attempt_that_names_its_target(servers: AlertServers, channel: str, status: int) -> None:
    servers.answers[_PATHS[channel]] = status, {"Location": "https://new.example.com/inbox?key=secret"}, b""
    with pytest.raises(ChannelFailed, match=rf"answered {status}, a redirect to https://new\.example\.com/inbox,"):
        send(ALERTS.channels[channel], message_of_a_test(ALERTS, NOW))
    assert len(servers.posts) == 1, "it is not followed"


def test_redirect_of_the_dead_mans_switch_is_named_without_its_secret_path(servers: AlertServers) -> None:
    servers.answers["/ping"] = 302, {"Location": "https://other.example.com/ping"}, b""
    with pytest.raises(ChannelFailed, match=r"redirect to https://other\.example\.com/…,"):
        ping(find_connection("dead_man"))


@pytest.mark.parametrize(
    ("channel", "body", "media_type"),
    [
        ("room", b'{"ok": false, "error": "channel_not_found"}', "application/json"),
        ("room", b"ok", "text/plain"),
        ("room", b"", "text/plain"),
        ("room", b"[1]", "application/json"),
        ("chat", b'{"ok": false, "error": "invalid_token"}', "application/json"),
        ("chat", b'{"success": false}', "application/json"),
        ("chat", b"<html>Log in</html>", "text/html; charset=utf-8"),
        ("pager", b'{"status": "invalid event", "errors": ["no summary"]}', "application/json"),
        ("pager", b'{"status": "throttled"}', "application/json"),
        ("pager", b"<html>Log in</html>", "text/html"),
    ],
)
def test_answer_of_200_with_an_error_inside_is_a_failed_attempt(
    servers: AlertServers, channel: str, body: bytes, media_type: str
) -> None:
    servers.answers[_PATHS[channel]] = 200, {"Content-Type": media_type}, body
    with pytest.raises(ChannelFailed):
        send(ALERTS.channels[channel], message_of_a_test(ALERTS, NOW))


@pytest.mark.parametrize(
    ("channel", "status", "body"),
    [("pager", 202, b'{"status": "success", "dedup_key": "x"}'), ("hook", 204, b""), ("hook", 200, b"<html></html>")],
)
def test_answers_of_success_are_known(servers: AlertServers, channel: str, status: int, body: bytes) -> None:
    servers.answers[_PATHS[channel]] = status, {}, body
    send(ALERTS.channels[channel], message_of_a_test(ALERTS, NOW))


HTTP: dict[str, Any] = {"conn_type": "http"}
SMTP: dict[str, Any] = {"conn_type": "smtp", "host": "localhost", "extra": {"from_email": "w@example.com"}}
UNUSABLE: list[tuple[str, dict[str, Any], str]] = [
    ("hook", {**HTTP, "host": "http://x:9999", "port": 9999}, "its host names port 9999, and its port is 9999"),
    ("hook", {**HTTP, "host": "http://x:port"}, "its host, port and schema"),
    ("hook", {**HTTP, "host": "http://x:99999"}, "its host, port and schema"),
    ("hook", {**HTTP, "host": "http://x y"}, "its host, port and schema"),
    ("hook", {**HTTP, "host": "http://[x"}, "its host, port and schema"),
    ("hook", {**HTTP, "host": "ftp://x"}, "its host, port and schema"),
    ("hook", {**HTTP, "host": "http://a..b"}, "its host, port and schema"),
    ("hook", {**HTTP, "host": "x\x00"}, "its host, port and schema"),
    ("hook", {**HTTP, "host": f"http://{'x' * 70}.com"}, "its host, port and schema"),
    ("hook", {**HTTP, "host": "x", "password": "tokän"}, "its password"),
    ("hook", {**HTTP, "host": "x", "password": "a\nb: c"}, "its password"),
    ("pager", {**HTTP, "host": "x", "password": "kéy"}, "its password"),
    ("pager", {**HTTP, "host": "x"}, "routing key"),
    ("chat", {"conn_type": "slackwebhook", "password": "T0/B 0/x"}, "its host and its password"),
    ("chat", {"conn_type": "slackwebhook", "host": "http://x:1", "port": 1, "password": "T0/B0/x"}, "its host names"),
    ("chat", {"conn_type": "slackwebhook", "host": "http://[", "password": "T0/B0/x"}, "its host, port and schema"),
    ("chat", {"conn_type": "slackwebhook", "password": "https://x y/"}, "its password"),
    ("room", {"conn_type": "slack", "password": "xoxb-ä"}, "its password"),
    ("room", {"conn_type": "slack", "password": "xoxb-1", "extra": {"base_url": "http://x:y/"}}, "base_url in"),
    ("team", {**SMTP, "host": "smtp://mail"}, "its host"),
    ("team", {**SMTP, "host": "mail:587", "port": 587}, "its host"),
    ("team", {**SMTP, "host": "a..b"}, "its host"),
    ("team", {**SMTP, "host": "x\x00"}, "its host"),
    ("team", {**SMTP, "login": "waybill", "password": "pässword"}, "its password must be ASCII"),
    ("team", {**SMTP, "login": "ärger", "password": "s3cret"}, "its login must be ASCII"),
]


@pytest.mark.parametrize(("channel", "connection", "reason"), UNUSABLE)
def test_connection_that_cannot_be_used_is_an_incident_of_its_channel_and_the_others_are_told(
    servers: AlertServers, monkeypatch: pytest.MonkeyPatch, channel: str, connection: dict[str, Any], reason: str
) -> None:
    name = CHANNELS[channel]["connection"]
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))
    with pytest.raises(ConfigError) as refused:
        check_channel(ALERTS.channels[channel])
    assert f"connection {name!r}: {reason}" in str(refused.value) or reason in str(refused.value)
    assert f"AIRFLOW_CONN_{name.upper()}" in str(refused.value)
    assert not connection.get("password") or connection["password"] not in str(refused.value)

    unusable = unusable_channels(ALERTS)
    assert unusable == {channel: str(refused.value)}
    broken = [Finding("flights", PromiseName.ARCHIVE_LAG, Verdict.BROKEN, PromiseSeverity.CRITICAL)]
    found = [*broken, *channel_findings(IncidentBook(), ALERTS, unusable)]
    book, claimed = claim(advance(IncidentBook(), found, ALERTS, NOW), NOW, ALERTS.channels)
    sent = send_all(Config(ALERTS), book, claimed, NOW, find_connection)  # type: ignore[arg-type]
    assert sent.failed == [str(refused.value)], "one message cannot leave, and the others do"
    assert sent.unexpected == []
    assert {(each.promise, each.subject) for each in book.incidents} == {("archive_lag", ""), (CHANNEL, channel)}


def test_dead_mans_switch_that_cannot_be_reached_is_an_incident(
    servers: AlertServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts = ALERTS.model_copy(update={"dead_man": "dead_man"})
    assert unusable_channels(alerts) == {}
    sent = sending.Sent()
    assert ping_dead_man("dead_man", find_connection, sent) is None
    servers.answers["/ping"] = 500, {}, b"down"
    assert "answered 500: down" in str(ping_dead_man("dead_man", find_connection, sent))
    monkeypatch.setenv("AIRFLOW_CONN_DEAD_MAN", json.dumps({"conn_type": "http", "host": "http://x:1", "port": 1}))
    assert "remove one of them" in str(ping_dead_man("dead_man", find_connection, sent))
    assert sent.unexpected == []
    [broken] = [
        each
        for each in channel_findings(IncidentBook(), alerts, unusable_channels(alerts))
        if each.verdict is Verdict.BROKEN
    ]
    assert (broken.promise, broken.subject) == (CHANNEL, DEAD_MAN)


@pytest.mark.parametrize("channel", CHANNELS)
def test_exception_that_no_code_expects_is_the_failure_of_its_channel_alone(
    servers: AlertServers, monkeypatch: pytest.MonkeyPatch, channel: str, caplog: pytest.LogCaptureFixture
) -> None:
    def find(name: str) -> Any:
        if name == CHANNELS[channel]["connection"]:
            raise KeyError("boom")
        return find_connection(name)

    broken = [Finding("flights", PromiseName.ARCHIVE_LAG, Verdict.BROKEN, PromiseSeverity.CRITICAL)]
    book, claimed = claim(advance(IncidentBook(), broken, ALERTS, NOW), NOW, ALERTS.channels)
    sent = send_all(Config(ALERTS), book, claimed, NOW, find)  # type: ignore[arg-type]
    assert sent.count == len(CHANNELS) - 1
    assert len(sent.failed) == len(sent.unexpected) == 1
    assert "unexpected KeyError" in sent.unexpected[0]
    assert "Traceback" in caplog.text
    assert channel in unusable_channels(ALERTS, find)
    ping_dead_man(CHANNELS[channel]["connection"], find, sent)
    assert len(sent.unexpected) == 2


def test_message_that_one_channel_cannot_take_stops_no_other_message(servers: AlertServers) -> None:
    broken = [
        Finding("", KafkaPromiseName.GROUP_LAG, Verdict.BROKEN, PromiseSeverity.CRITICAL, subject=f"g{number}")
        for number in range(6)
    ]
    book, claimed = claim(advance(IncidentBook(), broken, ALERTS, NOW), NOW, ALERTS.channels)
    unknown = replace(book.incidents[0], promise="of a newer Waybill")
    book = replace(book, incidents=(unknown, *book.incidents[1:]))
    sent = send_all(Config(ALERTS), book, claimed, NOW, find_connection)  # type: ignore[arg-type]
    assert sent.count == 5 * len(CHANNELS)
    assert len(sent.unexpected) == len(CHANNELS)


def test_channel_that_fails_or_takes_long_leaves_its_other_messages_to_the_next_watch(servers: AlertServers) -> None:
    broken = [
        Finding("", KafkaPromiseName.GROUP_LAG, Verdict.BROKEN, PromiseSeverity.CRITICAL, subject=f"g{number}")
        for number in range(10)
    ]
    book, claimed = claim(advance(IncidentBook(), broken, ALERTS, NOW), NOW, ALERTS.channels)
    servers.answers["/hook"] = 500, {}, b"down"
    sent = send_all(Config(ALERTS), book, claimed, NOW, find_connection)  # type: ignore[arg-type]
    assert (len(sent.failed), len(sent.untried), sent.count) == (3, 7, 40)
    settled = settle(book, sent.results, NOW, sent.untried)
    assert {each.id for each in settled.outbox if each.due_ms <= NOW and not each.claimed_until_ms} == sent.untried

    ticks = iter(range(0, 10_000, 40))
    only: list[Notification] = [each for each in claimed if each.channel == "pager"]
    sent = send_all(Config(ALERTS), book, only, NOW, find_connection, lambda: float(next(ticks)))  # type: ignore[arg-type]
    assert 0 < sent.count < len(only)
    assert len(sent.untried) == len(only) - sent.count


def test_texts_of_a_message_are_bounded_and_say_how_long_they_were(tmp_path: Path) -> None:
    finding = Finding("flights", PromiseName.ARCHIVE_LAG, Verdict.BROKEN, PromiseSeverity.CRITICAL, detail="x" * 10_000)
    [incident] = advance(IncidentBook(), [finding], ALERTS, NOW).incidents
    message = ChannelMessage.of("m", NotificationKind.OPENED, incident, ALERTS, NOW)
    assert dict(message.facts)["Detail"].endswith("… (10,000 characters)")


def test_server_that_never_answers_holds_up_no_other_channel(
    servers: AlertServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def find(name: str) -> Any:
        if name == "slack_hook":
            released.wait(60)
        return find_connection(name)

    monkeypatch.setattr(sending, "END_SECONDS", 3.0)
    broken = [
        Finding("", KafkaPromiseName.GROUP_LAG, Verdict.BROKEN, PromiseSeverity.CRITICAL, subject=f"g{number}")
        for number in range(2)
    ]
    book, claimed = claim(advance(IncidentBook(), broken, ALERTS, NOW), NOW, ALERTS.channels)
    sent = send_all(Config(ALERTS), book, claimed, NOW, find)  # type: ignore[arg-type]
    released.set()
    assert sent.count == 8
    assert sent.failed == ["channel 'chat': no end within 3 s"]
    assert len(sent.untried) == 1
