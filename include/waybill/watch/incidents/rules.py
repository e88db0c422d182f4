"""The rules of incidents: when one opens, who is notified, and when it is resolved.

Pure functions of the book and the time.

A broken promise opens one incident. While it is open, the same promise opens no other incident. The incident is
resolved when the promise has been kept for `alerts.resolve_after`, so a figure that crosses its limit several times is
one incident. A promise that cannot be measured changes nothing.

A message is added to the outbox together with the change that causes it, so it is stored before it is sent. A watch
claims the messages that it is going to send. If it dies before it records that the message is sent, the claim expires,
and the next watch sends the message again: so each message is sent at least once, and at most twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from waybill.config.models.alerts import Alerts
from waybill.config.models.promises import PromiseSeverity
from waybill.watch.incidents.finding import CHANNEL, DEAD_MAN, Finding, FindingKey, Verdict
from waybill.watch.incidents.ids import incident_id
from waybill.watch.incidents.incident import Acknowledgement, Incident, IncidentBook, Notification, NotificationKind

CLAIM = timedelta(minutes=3)
"""How long a claim of a message lasts: longer than sending takes with all timeouts."""
_FIRST_PAUSE_MS = 30_000
_LONGEST_PAUSE_MS = 3_600_000
_FAILED_ATTEMPTS = 2
"""After this number of failed attempts, an incident is opened about the channel itself."""
_KEPT_RESOLVED = timedelta(days=30)
_MOST_RESOLVED = 500
_KEPT_WHOLE = timedelta(days=1)
"""How long all resolved incidents are kept: a copy that is merged later may still have the incident open."""


def advance(book: IncidentBook, findings: Sequence[Finding], alerts: Alerts, now_ms: int) -> IncidentBook:
    """Return the book after a watch with these findings.

    An open incident without a finding is resolved: the stream was removed, or the promise is not watched any more. If
    two watches that did not see each other's books opened two incidents with the same key, the later one is resolved.
    """
    book = _with_own_ids(book)
    known = book.open_by_key()
    found = _by_key(findings)
    outbox = list(book.outbox)
    incidents: list[Incident] = []
    for incident in book.incidents:
        if not incident.is_open:
            incidents.append(incident)
        elif (first := known[incident.key]).id != incident.id:
            incidents.append(_resolve(incident, alerts, now_ms, outbox, f"it is the same as {first.id}"))
        elif (finding := found.get(incident.key)) is None:
            incidents.append(_resolve(incident, alerts, now_ms, outbox, "it is not watched any more"))
        else:
            incidents.append(_follow(incident, finding, alerts, now_ms, outbox))
    taken = {incident.id for incident in incidents}
    for key, finding in found.items():
        if key not in known and finding.verdict is Verdict.BROKEN and finding.severity is not PromiseSeverity.OFF:
            opened = _open(finding, incident_id(key, now_ms, taken), alerts, now_ms, outbox)
            taken.add(opened.id)
            incidents.append(opened)
    return replace(book, incidents=tuple(_without_old(incidents, outbox, now_ms)), outbox=tuple(outbox))


def _by_key(findings: Sequence[Finding]) -> dict[FindingKey, Finding]:
    """Return the findings by their keys. If several have the same key, a broken one is returned."""
    found: dict[FindingKey, Finding] = {}
    for finding in findings:
        if finding.key not in found or finding.verdict is Verdict.BROKEN:
            found[finding.key] = finding
    return found


def _with_own_ids(book: IncidentBook) -> IncidentBook:
    """Return the book with a different id for each incident, since earlier versions gave one id to similar subjects.

    The first incident keeps the id, and the messages that are not sent yet.
    """
    taken: set[str] = set()
    incidents = []
    for incident in book.incidents:
        own = incident.id if incident.id not in taken else incident_id(incident.key, incident.opened_ms, taken)
        taken.add(own)
        incidents.append(incident if own == incident.id else replace(incident, id=own))
    is_sound = len({each.id for each in book.incidents}) == len(taken)
    return book if is_sound else replace(book, incidents=tuple(incidents))


def channel_findings(book: IncidentBook, alerts: Alerts, unusable: Mapping[str, str] | None = None) -> list[Finding]:
    """Return a finding for each channel, and for the dead man's switch: whether messages reach it.

    `unusable`: why the connection of a channel cannot be used, by the channel's name; `DEAD_MAN` is the switch's.
    """
    failing: dict[str, Notification] = {}
    for notification in book.outbox:
        known = failing.get(notification.channel)
        if notification.attempts >= _FAILED_ATTEMPTS and (known is None or notification.attempts > known.attempts):
            failing[notification.channel] = notification
    faults = {name: (f"{each.attempts} attempts failed", each.error) for name, each in failing.items()}
    if book.failed_pings >= _FAILED_ATTEMPTS:
        faults[DEAD_MAN] = (f"{book.failed_pings} attempts failed", book.ping_error)
    for name, reason in (unusable or {}).items():
        faults[name] = ("its connection cannot be used", reason)
    commands = {name: f"waybill watch --test {name}" for name in alerts.channels}
    if alerts.dead_man is not None:
        commands[DEAD_MAN] = "waybill watch"
    return [
        Finding(
            stream="",
            promise=CHANNEL,
            subject=name,
            verdict=Verdict.BROKEN if name in faults else Verdict.KEPT,
            severity=PromiseSeverity.CRITICAL,
            figure=faults[name][0] if name in faults else "",
            limit="messages get through",
            detail=faults[name][1] if name in faults else "",
            command=command,
        )
        for name, command in commands.items()
    ]


def record_ping(book: IncidentBook, error: str | None) -> IncidentBook:
    """Return the book after a request to the dead man's switch.

    `error`: None if the request succeeded, else why it failed.
    """
    return replace(book, failed_pings=0 if error is None else book.failed_pings + 1, ping_error=error or "")


def claim(book: IncidentBook, now_ms: int, channels: Collection[str]) -> tuple[IncidentBook, list[Notification]]:
    """Claim the due messages. Return the book and these messages. A message to an unknown channel is dropped."""
    until = now_ms + int(CLAIM.total_seconds() * 1000)
    outbox = [each for each in book.outbox if each.channel in channels]
    due = {each.id for each in outbox if each.due_ms <= now_ms and each.claimed_until_ms <= now_ms}
    claimed = [replace(each, claimed_until_ms=until) if each.id in due else each for each in outbox]
    return replace(book, outbox=tuple(claimed)), [each for each in claimed if each.id in due]


def settle(
    book: IncidentBook, results: Mapping[str, str | None], now_ms: int, untried: Collection[str] = ()
) -> IncidentBook:
    """Return the book after messages were sent.

    The results, by id: None for a message that was sent, else why sending failed.

    `untried`: the ids of claimed messages that the watch did not try to send. The next watch can claim them at once.
    """
    outbox = []
    for notification in book.outbox:
        if notification.id in untried:
            outbox.append(replace(notification, claimed_until_ms=0))
        elif notification.id not in results:
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


def _open(finding: Finding, name: str, alerts: Alerts, now_ms: int, outbox: list[Notification]) -> Incident:
    # A broken channel cannot deliver a message about itself.
    route = tuple(
        each for each in alerts.route(finding.severity) if finding.promise != CHANNEL or each != finding.subject
    )
    incident = Incident(
        id=name,
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
    """Return an open incident after another finding with its key."""
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
    # A message that is not sent yet is sent with the current figures.
    is_waiting = any(each.incident == incident.id for each in outbox)
    if incident.acknowledged is not None or not is_due or is_waiting:
        return incident
    _notify(incident, NotificationKind.REMINDER, incident.channels, alerts, now_ms, outbox)
    return replace(incident, notified_ms=now_ms)


def _resolve(
    incident: Incident, alerts: Alerts, now_ms: int, outbox: list[Notification], outcome: str = ""
) -> Incident:
    # If a channel was not notified before the incident was resolved, it gets one message, which states how long the
    # incident lasted. A message that a watch has claimed may have been sent already.
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
        Notification(f"{incident.id}-{kind}{number}-{channel}", incident.id, channel, kind, due_ms, made_ms=now_ms)
        for channel in channels
    ]


def _without_old(incidents: Sequence[Incident], outbox: Sequence[Notification], now_ms: int) -> list[Incident]:
    """Return the open incidents, those with unsent messages, those of the last day, and the newest of the others."""
    day_ms = int(_KEPT_WHOLE.total_seconds() * 1000)
    oldest_ms = now_ms - int(_KEPT_RESOLVED.total_seconds() * 1000)
    resolved = [each for each in incidents if each.resolved_ms is not None and each.resolved_ms >= oldest_ms]
    kept = {each.id for each in resolved[-_MOST_RESOLVED:]}
    kept |= {each.id for each in resolved if each.resolved_ms is not None and each.resolved_ms >= now_ms - day_ms}
    kept |= {each.incident for each in outbox}
    return [each for each in incidents if each.is_open or each.id in kept]
