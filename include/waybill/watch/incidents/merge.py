"""Merge two books that were changed without knowledge of each other: one in ZooKeeper, one stored while it was away.

Both descend from one book. What only grows is united: an acknowledgement stays, what is over stays over, an escalation
that was sent stays sent. A message that is in one outbox alone is either new there, or sent by the other side. The
incident of the other side tells which: it shows whether that side knew the cause of the message. So no message is
lost, and none is sent twice, except about what both sides found on their own.

To merge a book with one of its own ancestors changes nothing, so a merge that is repeated does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from waybill.watch.incidents.finding import FindingKey
from waybill.watch.incidents.incident import Acknowledgement, Incident, IncidentBook, Notification, NotificationKind

_Identity = tuple[str, FindingKey]


def merge(older: IncidentBook, newer: IncidentBook) -> IncidentBook:
    """Return one book of two. Where only one figure can stay, it is that of `newer`."""
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
    """Return the incidents by id and key: an earlier Waybill gave one id to incidents about similar subjects."""
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
    """Return the messages about an end that one side found, to channels that only the other side told of it."""
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
            # Of one message, the latest attempt; and a claim counts until it ends.
            found.append(max(ours[name], theirs[name], key=lambda each: (each.attempts, each.claimed_until_ms)))
        elif name in ours and not _is_known(ours[name], known_to_them):
            found.append(ours[name])
        elif name in theirs and not _is_known(theirs[name], known_to_us):
            found.append(theirs[name])
    return found


def _is_known(notification: Notification, incidents: Mapping[str, Incident]) -> bool:
    """Return whether a book shows the cause of a message. If it has not the message itself, it is done with it."""
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
