"""Merge two books that were changed independently: one in ZooKeeper, and one that was stored while it did not answer.

Both descend from one book. Facts that never become false again are kept from both: an acknowledgement, the end of an
incident, an escalation that was sent. A message that is in only one outbox is either new there, or was sent by the
other side. The incident in the other book decides: it shows whether that side knew the cause of the message. So no
message is lost, and none is sent twice, except about an incident that both sides opened independently.

A merge of a book with one of its own ancestors changes nothing, so a merge can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from waybill.watch.incidents.finding import FindingKey
from waybill.watch.incidents.incident import Acknowledgement, Incident, IncidentBook, Notification, NotificationKind

_Identity = tuple[str, FindingKey]


def merge(older: IncidentBook, newer: IncidentBook) -> IncidentBook:
    """Merge two books into one. Where the two values cannot be combined, the value of `newer` is kept."""
    ours, theirs = _by_identity(older), _by_identity(newer)
    merged = [
        theirs[key] if key not in ours else ours[key] if key not in theirs else _one(ours[key], theirs[key])
        for key in [*ours, *(key for key in theirs if key not in ours)]
    ]
    merged.sort(key=lambda incident: incident.opened_ms)
    ends = [end for key in ours.keys() & theirs.keys() for end in _missing_ends(ours[key], theirs[key])]
    outbox = {each.id: each for each in [*_outbox(older, newer), *ends]}
    return replace(newer, incidents=tuple(merged), outbox=tuple(outbox.values()))


def _by_identity(book: IncidentBook) -> dict[_Identity, Incident]:
    """Return the incidents by id and key, since earlier versions of Waybill gave one id to similar subjects."""
    return {(incident.id, incident.key): incident for incident in book.incidents}


def _one(older: Incident, newer: Incident) -> Incident:
    over = newer if newer.resolved_ms is not None or older.resolved_ms is None else older
    return replace(
        over,
        acknowledged=_first(older.acknowledged, newer.acknowledged),
        escalated=older.escalated or newer.escalated,
        notified_ms=max(older.notified_ms, newer.notified_ms),
        channels=tuple(dict.fromkeys((*older.channels, *newer.channels))),
    )


def _first(older: Acknowledgement | None, newer: Acknowledgement | None) -> Acknowledgement | None:
    if older is None or newer is None:
        return older or newer
    return min(older, newer, key=lambda each: each.at_ms)


def _missing_ends(older: Incident, newer: Incident) -> list[Notification]:
    """Return messages to channels of one side, about incidents that the other side resolved."""
    if (older.resolved_ms is None) == (newer.resolved_ms is None):
        return []
    over, open_one = (older, newer) if newer.resolved_ms is None else (newer, older)
    assert over.resolved_ms is not None
    kind, at_ms = NotificationKind.RESOLVED, over.resolved_ms
    return [
        Notification(f"{over.id}-{kind}-{channel}", over.id, channel, kind, at_ms, made_ms=at_ms)
        for channel in open_one.channels
        if channel not in over.channels
    ]


def _outbox(older: IncidentBook, newer: IncidentBook) -> list[Notification]:
    ours, theirs = ({each.id: each for each in book.outbox} for book in (older, newer))
    known_to_us, known_to_them = ({each.id: each for each in book.incidents} for book in (older, newer))
    found = []
    for name in dict.fromkeys([*ours, *theirs]):
        if name in ours and name in theirs:
            # Both books hold the message: keep the latest attempt, and the claim that ends last.
            found.append(max(ours[name], theirs[name], key=lambda each: (each.attempts, each.claimed_until_ms)))
        elif name in ours and not _is_known(ours[name], known_to_them):
            found.append(ours[name])
        elif name in theirs and not _is_known(theirs[name], known_to_us):
            found.append(theirs[name])
    return found


def _is_known(notification: Notification, incidents: Mapping[str, Incident]) -> bool:
    """Return whether a book shows the cause of a message.

    If it does, and lacks the message, the message was sent or dropped.
    """
    incident = incidents.get(notification.incident)
    if incident is None:
        return False
    match notification.kind:
        case NotificationKind.OPENED:
            return True
        case NotificationKind.ESCALATED:
            return incident.escalated or incident.resolved_ms is not None
        case NotificationKind.REMINDER:
            return incident.notified_ms >= notification.made_ms or incident.resolved_ms is not None
        case NotificationKind.RESOLVED:
            return incident.resolved_ms is not None
