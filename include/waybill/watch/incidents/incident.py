"""Incidents and their notifications, and the document that holds both."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from waybill.config.models.promises import PromiseSeverity
from waybill.watch.incidents.finding import FindingKey


class NotificationKind(StrEnum):
    """Why a message about an incident is sent."""

    OPENED = "opened"
    REMINDER = "reminder"
    ESCALATED = "escalated"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The record that a person takes care of an incident: reminders and escalations end."""

    by: str
    at_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Incident:
    """One broken promise of one stream. Times are epoch ms."""

    id: str
    stream: str
    promise: str
    subject: str
    severity: PromiseSeverity
    opened_ms: int
    """When the watch found it."""
    since_ms: int
    """Since when the promise is broken."""
    figure: str
    limit: str
    detail: str
    command: str
    kept_since_ms: int | None = None
    """Since when the promise is kept again. The incident is resolved when it has been kept for long enough."""
    resolved_ms: int | None = None
    outcome: str = ""
    """Why the incident was resolved, if not because the promise is kept again."""
    acknowledged: Acknowledgement | None = None
    notified_ms: int = 0
    """When the last notification was due."""
    escalated: bool = False
    channels: tuple[str, ...] = ()
    """The channels that were notified of the incident. They are also notified when it is resolved."""
    link: str = ""
    """Address of the DAG run in Airflow's UI, if the incident is about one."""

    @property
    def key(self) -> FindingKey:
        return self.stream, self.promise, self.subject

    @property
    def is_open(self) -> bool:
        return self.resolved_ms is None

    @property
    def lasted_ms(self) -> int | None:
        """How long the promise was broken; None while it is broken."""
        return None if self.resolved_ms is None else (self.kept_since_ms or self.resolved_ms) - self.since_ms

    def document(self) -> dict[str, Any]:
        """Return the incident as a JSON object."""
        fields = {name: getattr(self, name) for name in _INCIDENT_FIELDS}
        fields["acknowledged"] = None if self.acknowledged is None else dataclasses.asdict(self.acknowledged)
        return fields

    @classmethod
    def parse(cls, document: dict[str, Any]) -> Incident:
        """Return the incident of a JSON object. Keys that only a newer version of Waybill knows are left out."""
        known = {name: document[name] for name in _INCIDENT_FIELDS if name in document}
        acknowledged = known.get("acknowledged")
        return cls(
            **{
                **known,
                "severity": PromiseSeverity(known["severity"]),
                "acknowledged": None if acknowledged is None else Acknowledgement(**acknowledged),
                "channels": tuple(known.get("channels", ())),
            }
        )


_INCIDENT_FIELDS = tuple(each.name for each in dataclasses.fields(Incident))


@dataclass(frozen=True, slots=True)
class Notification:
    """A message that is to be sent to one channel. Times are epoch ms."""

    id: str
    """All watches that find the same broken promise make the same id, so a receiver can leave out a second copy."""
    incident: str
    channel: str
    kind: NotificationKind
    due_ms: int
    """The earliest time at which the message is sent, or tried again."""
    attempts: int = 0
    claimed_until_ms: int = 0
    """Until this time, one watch has claimed the message, and no other watch sends it."""
    error: str = ""
    """Why the last attempt failed."""
    made_ms: int = 0
    """When the message was added to the outbox; 0: an earlier version of Waybill added it, and did not store the
    time."""

    def document(self) -> dict[str, Any]:
        """Return the notification as a JSON object."""
        return {name: getattr(self, name) for name in _NOTIFICATION_FIELDS}

    @classmethod
    def parse(cls, document: dict[str, Any]) -> Notification:
        """Return the notification of a JSON object."""
        known = {name: document[name] for name in _NOTIFICATION_FIELDS if name in document}
        return cls(**{**known, "kind": NotificationKind(known["kind"])})


_NOTIFICATION_FIELDS = tuple(each.name for each in dataclasses.fields(Notification))


@dataclass(frozen=True, slots=True)
class IncidentBook:
    """All open incidents, recently resolved incidents, and the messages that are not sent yet."""

    incidents: tuple[Incident, ...] = ()
    """Sorted by the time at which they were opened."""
    outbox: tuple[Notification, ...] = ()
    failed_pings: int = 0
    """How many times in a row the request to the dead man's switch failed."""
    ping_error: str = ""
    """Why the last request to the dead man's switch failed."""

    def open_by_key(self) -> dict[FindingKey, Incident]:
        """Return the open incidents by their keys. If two have the same key, return the one that was opened first."""
        found: dict[FindingKey, Incident] = {}
        for incident in self.incidents:
            if incident.is_open:
                found.setdefault(incident.key, incident)
        return found

    def find(self, incident_id: str) -> Incident | None:
        """Return the incident with the id."""
        return next((incident for incident in self.incidents if incident.id == incident_id), None)

    def document(self) -> dict[str, Any]:
        """Return the book as a JSON object."""
        pings = {"failed_pings": self.failed_pings, "ping_error": self.ping_error}
        return {
            "incidents": [incident.document() for incident in self.incidents],
            "outbox": [notification.document() for notification in self.outbox],
            **(pings if self.failed_pings else {}),
        }

    @classmethod
    def parse(cls, document: dict[str, Any]) -> IncidentBook:
        """Return the book of a JSON object."""
        return cls(
            tuple(Incident.parse(each) for each in document["incidents"]),
            tuple(Notification.parse(each) for each in document["outbox"]),
            int(document.get("failed_pings", 0)),
            str(document.get("ping_error", "")),
        )
