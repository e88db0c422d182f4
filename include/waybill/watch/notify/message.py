"""A message about an incident: as plain text, HTML, Slack blocks, and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from waybill.config.models.alerts import Alerts
from waybill.config.models.promises import PromiseName, PromiseSeverity
from waybill.config.models.quantities import rough_duration
from waybill.watch.incidents.finding import NO_ANSWER, REACHABLE
from waybill.watch.incidents.incident import Incident, NotificationKind
from waybill.watch.notify.meanings import MEANINGS
from waybill.watch.notify.texts import one_line, readable, slack_code, slack_link, slack_text

_LONGEST_NAME = 200
_LONGEST_LINE = 600

_COLOURS = {
    NotificationKind.RESOLVED: "#2e7d32",
    PromiseSeverity.CRITICAL: "#c62828",
    PromiseSeverity.WARNING: "#ef6c00",
}


@dataclass(frozen=True, slots=True)
class ChannelMessage:
    """What is sent to one channel."""

    id: str
    """The same for a second copy of the same message."""
    kind: NotificationKind
    incident: Incident
    now_ms: int
    runbook: str
    """Address of the runbook; without `alerts.runbooks_url` its path in Waybill's repository."""
    airflow: str | None
    """Address of the DAG run, or of the stream's DAGs; None if the incident concerns no DAG."""

    @classmethod
    def of(
        cls, notification_id: str, kind: NotificationKind, incident: Incident, alerts: Alerts, now_ms: int
    ) -> ChannelMessage:
        """Return the message about the present state of an incident."""
        runbook = f"{alerts.runbooks_url or 'docs/runbooks'}/{MEANINGS[incident.promise].runbook}"
        airflow = incident.link or None
        if airflow is None and alerts.airflow_url and incident.stream:
            airflow = f"{alerts.airflow_url}/dags?search={quote(incident.stream, safe='', errors='replace')}"
        return cls(notification_id, kind, incident, now_ms, runbook, airflow)

    @property
    def what(self) -> str:
        """Return the stream, or the subject that all streams share, in one line."""
        incident = self.incident
        if incident.stream:
            return one_line(incident.stream, _LONGEST_NAME)
        is_away = incident.promise == REACHABLE and incident.figure == NO_ANSWER
        subject = one_line(incident.subject, _LONGEST_NAME) or "Kafka"
        return f"{subject} does not answer" if is_away else subject

    @property
    def subject(self) -> str:
        """Return the message in one line."""
        incident = self.incident
        title = MEANINGS[incident.promise].title
        if self.kind is NotificationKind.RESOLVED:
            why = f" ({incident.outcome})" if incident.outcome else ""
            lasted = rough_duration((incident.lasted_ms or 0) / 1000)
            return one_line(f"[resolved] {self.what}: {title}, after {lasted}{why}", _LONGEST_LINE)
        notes = {NotificationKind.REMINDER: "still ", NotificationKind.ESCALATED: "not acknowledged: "}
        note = notes.get(self.kind, "")
        line = f"[{incident.severity}] {self.what}: {note}{title} {incident.figure} ({incident.limit})"
        return one_line(line, _LONGEST_LINE)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Return the lines of the message: name and value."""
        incident = self.incident
        since = f"{_time(incident.since_ms)}"
        facts = [
            ("Stream", incident.stream or "all"),
            ("Promise", f"{MEANINGS[incident.promise].title}: {incident.limit}"),
            ("Figure", incident.figure),
            ("Since", since),
        ]
        if self.kind is NotificationKind.RESOLVED:
            facts.append(("Lasted", rough_duration((incident.lasted_ms or 0) / 1000)))
        else:
            facts.append(("For", rough_duration((self.now_ms - incident.since_ms) / 1000)))
            facts += [("Detail", incident.detail)] if incident.detail else []
            facts += [("For consumers", MEANINGS[incident.promise].consumers), ("Run", incident.command)]
        facts += [("Runbook", self.runbook)]
        facts += [("Airflow", self.airflow)] if self.airflow else []
        facts.append(("Incident", incident.id))
        return [(name, readable(value)) for name, value in facts]

    def plain(self) -> str:
        """Return the body of an email as plain text."""
        width = max(len(name) for name, _ in self.facts)
        lines = [f"{name + ':':{width + 1}}  {value}" for name, value in self.facts]
        if self.kind is not NotificationKind.RESOLVED:
            lines += ["", f"To end the reminders: waybill incidents ack {self.incident.id} --reason …"]
        return "\n".join([self.subject, "", *lines, ""])

    def html(self) -> str:
        """Return the body of an email as HTML. Mail programs ignore style sheets, so the elements have the styles."""
        from jinja2 import Environment

        template = Environment(autoescape=True, trim_blocks=True).from_string(_HTML)
        return template.render(
            subject=self.subject,
            colour=self._colour,
            facts=self.facts,
            links={name for name in ("Runbook", "Airflow") if "://" in dict(self.facts).get(name, "")},
            is_open=self.kind is not NotificationKind.RESOLVED,
            incident=self.incident.id,
        )

    @property
    def slack_summary(self) -> str:
        """Return the message in one line, as Slack shows it in notifications."""
        return slack_text(self.subject)

    def slack_blocks(self) -> list[dict[str, Any]]:
        """Return the message as Slack's blocks."""
        facts = {name: value for name, value in self.facts if name not in ("Runbook", "Airflow", "Incident", "Run")}
        fields = [{"type": "mrkdwn", "text": f"*{name}*\n{slack_text(value)}"} for name, value in facts.items()]
        blocks: list[dict[str, Any]] = [
            {"type": "header", "text": {"type": "plain_text", "text": self.subject[:150], "emoji": False}},
            *({"type": "section", "fields": fields[first : first + 10]} for first in range(0, len(fields), 10)),
        ]
        if self.kind is not NotificationKind.RESOLVED:
            command = slack_code(f"{self.incident.command}\nwaybill incidents ack {self.incident.id} --reason …")
            blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": f"```{command}```"}})
        links = [slack_link(self.runbook, "Runbook") if self._has_runbook_link else f"Runbook: `{self.runbook}`"]
        links += [slack_link(self.airflow, "Airflow")] if self.airflow else []
        links.append(f"`{slack_text(self.incident.id)}`")
        return [*blocks, {"type": "context", "elements": [{"type": "mrkdwn", "text": " · ".join(links)}]}]

    def document(self) -> dict[str, Any]:
        """Return the message as a JSON object for webhooks."""
        return {
            "v": 1,
            "id": self.id,
            "kind": str(self.kind),
            "summary": self.subject,
            "consumers": MEANINGS[self.incident.promise].consumers,
            "runbook": self.runbook,
            "airflow": self.airflow,
            "incident": self.incident.document(),
        }

    def pagerduty(self, routing_key: str) -> dict[str, Any]:
        """Return the message as an event of PagerDuty's Events API v2, which merges events by the incident's id.

        Format: https://developer.pagerduty.com/docs/events-api-v2/trigger-events/
        """
        is_over = self.kind is NotificationKind.RESOLVED
        event = {
            "routing_key": routing_key,
            "event_action": "resolve" if is_over else "trigger",
            "dedup_key": self.incident.id,
        }
        if is_over:
            return event
        return {
            **event,
            "payload": {
                "summary": self.subject,
                "source": self.what,
                "severity": str(self.incident.severity),
                "timestamp": datetime.fromtimestamp(self.incident.since_ms / 1000, UTC).isoformat(),
                "component": self.incident.promise,
                "custom_details": dict(self.facts),
            },
            "links": [{"href": self.runbook, "text": "Runbook"}] if self._has_runbook_link else [],
        }

    @property
    def _has_runbook_link(self) -> bool:
        return "://" in self.runbook

    @property
    def _colour(self) -> str:
        return _COLOURS.get(self.kind) or _COLOURS[self.incident.severity]


def test_message(alerts: Alerts, now_ms: int) -> ChannelMessage:
    """Return a test message for a channel."""
    incident = Incident(
        id=f"test-{now_ms}",
        stream="test",
        promise=PromiseName.ARCHIVE_LAG,
        subject="",
        severity=PromiseSeverity.WARNING,
        opened_ms=now_ms,
        since_ms=now_ms,
        figure="0 s",
        limit="at most 15 min",
        detail="This is a test of the channel. Nothing is broken.",
        command="waybill incidents ls",
    )
    return ChannelMessage.of(f"test-{now_ms}", NotificationKind.OPENED, incident, alerts, now_ms)


def _time(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


_HTML = """\
<!doctype html>
<html><body style="font-family: sans-serif; color: #212121; margin: 0">
<div style="border-left: 6px solid {{ colour }}; padding: 4px 16px; margin: 8px">
<h2 style="margin: 8px 0; font-size: 18px">{{ subject }}</h2>
<table style="border-collapse: collapse; font-size: 14px">
{% for name, value in facts %}
<tr><td style="padding: 4px 16px 4px 0; color: #616161; vertical-align: top; white-space: nowrap">{{ name }}</td>
<td style="padding: 4px 0">
{%- if name in links %}<a href="{{ value }}">{{ value }}</a>
{%- elif name == "Run" %}<code style="background: #f5f5f5; padding: 2px 6px">{{ value }}</code>
{%- else %}{{ value }}{% endif %}</td></tr>
{% endfor %}
</table>
{% if is_open %}
<p style="font-size: 13px; color: #616161">To end the reminders:
<code>waybill incidents ack {{ incident }} --reason …</code></p>
{% endif %}
</div></body></html>
"""
