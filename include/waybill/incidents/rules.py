"""The rules of incidents: when one opens, who is told, and when it is over. Pure functions of the book and the time.

A broken promise opens one incident. While it is open, the same promise opens no other. It is over when the promise has
been kept for `alerts.resolve_after`, so a figure that flaps is one incident. A promise that cannot be measured changes
nothing.

A message is put into the outbox with the change that causes it, so it is stored before it is sent. A watch claims what
it is going to send. If it dies before it records that the message is sent, the claim expires, and the next watch sends
the message again: at most twice, and never not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from waybill.config.alerts import Alerts
from waybill.config.promises import PromiseSeverity
from waybill.incidents.finding import CHANNEL, Finding, Verdict
from waybill.incidents.incident import Acknowledgement, Incident, IncidentBook, Notification, NotificationKind

__all__ = ["CLAIM", "acknowledge", "advance", "channel_findings", "claim", "settle"]

CLAIM = timedelta(minutes=3)
"""How long a watch has a message in hand. Longer than sending takes with all timeouts."""
_FIRST_PAUSE_MS = 30_000
_LONGEST_PAUSE_MS = 3_600_000
_FAILED_ATTEMPTS = 2
"""After so many failed attempts, a channel is an incident of its own."""
_KEPT_RESOLVED = timedelta(days=30)
_MOST_RESOLVED = 500


def advance(book: IncidentBook, findings: Sequence[Finding], alerts: Alerts, now_ms: int) -> IncidentBook:
    """Return the book after a watch with these findings.

    An open incident that no finding is about is over: the stream was removed, or the promise is not watched any more.
    """
    known = book.open_by_key()
    changed: dict[str, Incident] = {}
    outbox = list(book.outbox)
    opened: list[Incident] = []
    for finding in findings:
        incident = known.get(finding.key)
        if incident is None:
            if finding.verdict is Verdict.BROKEN and finding.severity is not PromiseSeverity.OFF:
                opened.append(_open(finding, alerts, now_ms, outbox))
        else:
            changed[incident.id] = _follow(incident, finding, alerts, now_ms, outbox)
    found = {finding.key for finding in findings}
    for key, incident in known.items():
        if key not in found:
            changed[incident.id] = _resolve(incident, alerts, now_ms, outbox, "it is not watched any more")
    incidents = [changed.get(incident.id, incident) for incident in book.incidents] + opened
    return IncidentBook(tuple(_without_old(incidents, now_ms)), tuple(outbox))


def channel_findings(book: IncidentBook, alerts: Alerts) -> list[Finding]:
    """Return a finding for each channel: whether messages to it get through."""
    failing: dict[str, Notification] = {}
    for notification in book.outbox:
        known = failing.get(notification.channel)
        if notification.attempts >= _FAILED_ATTEMPTS and (known is None or notification.attempts > known.attempts):
            failing[notification.channel] = notification
    return [
        Finding(
            stream="",
            promise=CHANNEL,
            subject=name,
            verdict=Verdict.BROKEN if name in failing else Verdict.KEPT,
            severity=PromiseSeverity.CRITICAL,
            figure=f"{failing[name].attempts} attempts failed" if name in failing else "",
            limit="messages get through",
            detail=failing[name].error if name in failing else "",
            command=f"waybill watch --test {name}",
        )
        for name in alerts.channels
    ]


def claim(book: IncidentBook, now_ms: int, channels: Collection[str]) -> tuple[IncidentBook, list[Notification]]:
    """Return the book with the due messages claimed, and these messages. A message to an unknown channel is dropped."""
    until = now_ms + int(CLAIM.total_seconds() * 1000)
    outbox = [each for each in book.outbox if each.channel in channels]
    due = {each.id for each in outbox if each.due_ms <= now_ms and each.claimed_until_ms <= now_ms}
    claimed = [replace(each, claimed_until_ms=until) if each.id in due else each for each in outbox]
    return replace(book, outbox=tuple(claimed)), [each for each in claimed if each.id in due]


def settle(book: IncidentBook, results: Mapping[str, str | None], now_ms: int) -> IncidentBook:
    """Return the book after messages were sent: by id, None for one that was sent, else why it failed."""
    outbox = []
    for notification in book.outbox:
        if notification.id not in results:
            outbox.append(notification)
        elif (error := results[notification.id]) is not None:
            pause_ms = min(_FIRST_PAUSE_MS << min(notification.attempts, 10), _LONGEST_PAUSE_MS)
            outbox.append(
                replace(
                    notification,
                    attempts=notification.attempts + 1,
                    due_ms=now_ms + pause_ms,
                    claimed_until_ms=0,
                    error=error,
                )
            )
    return replace(book, outbox=tuple(outbox))


def acknowledge(book: IncidentBook, incident_id: str, acknowledgement: Acknowledgement) -> IncidentBook:
    """Return the book with an acknowledged incident; the first acknowledgement stays."""
    incidents = tuple(
        replace(each, acknowledged=each.acknowledged or acknowledgement) if each.id == incident_id else each
        for each in book.incidents
    )
    return replace(book, incidents=incidents)


# --- one incident -----------------------------------------------------------------------------------------------------


def _open(finding: Finding, alerts: Alerts, now_ms: int, outbox: list[Notification]) -> Incident:
    opened = datetime.fromtimestamp(now_ms / 1000, UTC)
    name = "-".join(part for part in (finding.stream, finding.promise, _slug(finding.subject)) if part)
    # A broken channel cannot tell of itself.
    route = tuple(
        each for each in alerts.route(finding.severity) if finding.promise != CHANNEL or each != finding.subject
    )
    incident = Incident(
        id=f"{name}-{opened:%Y%m%dT%H%M%SZ}",
        stream=finding.stream,
        promise=finding.promise,
        subject=finding.subject,
        severity=finding.severity,
        opened_ms=now_ms,
        since_ms=now_ms if finding.since_ms is None else min(finding.since_ms, now_ms),
        figure=finding.figure,
        limit=finding.limit,
        detail=finding.detail,
        command=finding.command,
        notified_ms=now_ms,
        channels=route,
        link=finding.link,
    )
    _notify(incident, NotificationKind.OPENED, route, alerts, now_ms, outbox)
    return incident


def _follow(incident: Incident, finding: Finding, alerts: Alerts, now_ms: int, outbox: list[Notification]) -> Incident:
    """Return an open incident after another finding about it."""
    if finding.severity is PromiseSeverity.OFF:
        return _resolve(incident, alerts, now_ms, outbox, "it is not watched any more")
    match finding.verdict:
        case Verdict.UNKNOWN:
            pass
        case Verdict.KEPT:
            kept_since = incident.kept_since_ms or now_ms
            incident = replace(incident, kept_since_ms=kept_since)
            if now_ms - kept_since >= alerts.resolve_after.total_seconds() * 1000:
                return _resolve(incident, alerts, now_ms, outbox)
            return incident
        case Verdict.BROKEN:
            incident = replace(
                incident,
                severity=finding.severity,
                figure=finding.figure,
                limit=finding.limit,
                detail=finding.detail,
                command=finding.command,
                link=finding.link,
                kept_since_ms=None,
            )
    return _remind(_escalate(incident, alerts, now_ms, outbox), alerts, now_ms, outbox)


def _escalate(incident: Incident, alerts: Alerts, now_ms: int, outbox: list[Notification]) -> Incident:
    is_due = now_ms - incident.opened_ms >= alerts.escalate_after.total_seconds() * 1000
    is_silent = incident.acknowledged is not None or incident.severity is not PromiseSeverity.CRITICAL
    if incident.escalated or is_silent or not is_due or not alerts.escalate_to:
        return incident
    _notify(incident, NotificationKind.ESCALATED, alerts.escalate_to, alerts, now_ms, outbox)
    channels = tuple(dict.fromkeys((*incident.channels, *alerts.escalate_to)))
    return replace(incident, escalated=True, notified_ms=now_ms, channels=channels)


def _remind(incident: Incident, alerts: Alerts, now_ms: int, outbox: list[Notification]) -> Incident:
    is_due = now_ms - incident.notified_ms >= alerts.remind_after.total_seconds() * 1000
    # A message that is not sent yet will have the present figures.
    is_waiting = any(each.incident == incident.id for each in outbox)
    if incident.acknowledged is not None or not is_due or is_waiting:
        return incident
    _notify(incident, NotificationKind.REMINDER, incident.channels, alerts, now_ms, outbox)
    return replace(incident, notified_ms=now_ms)


def _resolve(
    incident: Incident, alerts: Alerts, now_ms: int, outbox: list[Notification], outcome: str = ""
) -> Incident:
    # What a channel has not been told yet is over: it gets one message, which says how long it lasted. A message that
    # a watch has in hand may be sent already.
    outbox[:] = [each for each in outbox if each.incident != incident.id or each.claimed_until_ms > now_ms]
    incident = replace(incident, resolved_ms=now_ms, outcome=outcome)
    _notify(incident, NotificationKind.RESOLVED, incident.channels, alerts, now_ms, outbox)
    return incident


def _notify(
    incident: Incident,
    kind: NotificationKind,
    channels: Sequence[str],
    alerts: Alerts,
    now_ms: int,
    outbox: list[Notification],
) -> None:
    due_ms = now_ms
    if incident.severity is not PromiseSeverity.CRITICAL and alerts.quiet_hours is not None:
        end = alerts.quiet_hours.end_after(datetime.fromtimestamp(now_ms / 1000, UTC))
        due_ms = now_ms if end is None else int(end.timestamp() * 1000)
    number = f"-{now_ms}" if kind is NotificationKind.REMINDER else ""
    outbox += [
        Notification(f"{incident.id}-{kind}{number}-{channel}", incident.id, channel, kind, due_ms)
        for channel in channels
    ]


def _without_old(incidents: Sequence[Incident], now_ms: int) -> list[Incident]:
    """Return the open incidents, and the newest of those that were resolved lately."""
    oldest_ms = now_ms - int(_KEPT_RESOLVED.total_seconds() * 1000)
    resolved = [each for each in incidents if each.resolved_ms is not None and each.resolved_ms >= oldest_ms]
    kept = {each.id for each in resolved[-_MOST_RESOLVED:]}
    return [each for each in incidents if each.is_open or each.id in kept]


def _slug(text: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in text).strip("_").lower()[:40]
