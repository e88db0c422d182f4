"""A finding about the Kafka cluster: shared code of the promises about replicas, topics, brokers and groups."""

from __future__ import annotations

from collections.abc import Sequence

from waybill.config.models.kafka_promises import KafkaPromiseName
from waybill.config.models.promises import Promise
from waybill.watch.incidents.finding import Finding, Verdict

HEALTH_COMMAND = "waybill kafka health"
_NAMED = 3
"""The number of names in a finding's detail; `waybill kafka health` prints all of `Finding.names`."""


def kafka_finding(
    name: KafkaPromiseName,
    settings: Promise,
    now_ms: int,
    *,
    broken: bool,
    figure: str,
    limit: str,
    detail: str = "",
    names: Sequence[str] = (),
    value: float | None = None,
    command: str = HEALTH_COMMAND,
    subject: str = "",
    since_ms: int | None = None,
) -> Finding:
    """Return the finding of a figure that was read.

    `detail`, `names` and `since_ms` are used only if the promise is broken.
    """
    return Finding(
        stream="",
        promise=name,
        verdict=Verdict.BROKEN if broken else Verdict.KEPT,
        severity=settings.severity,
        figure=figure,
        limit=limit,
        detail=detail if broken else "",
        names=tuple(names) if broken else (),
        command=command,
        subject=subject,
        since_ms=(now_ms if since_ms is None else since_ms) if broken else None,
        value=value,
    )


def unknown_finding(
    name: KafkaPromiseName, settings: Promise, detail: str = "", *, limit: str = "", subject: str = ""
) -> Finding:
    """Return the finding of a figure that could not be read: an open incident stays open, and no incident is opened.

    `detail`: why it could not be read.
    """
    return Finding(
        stream="",
        promise=name,
        verdict=Verdict.UNKNOWN,
        severity=settings.severity,
        figure="not known",
        limit=limit,
        detail=detail,
        command=HEALTH_COMMAND,
        subject=subject,
    )


def first_of(names: Sequence[str], separator: str = ", ") -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{separator.join(names[:_NAMED])}{more}"
