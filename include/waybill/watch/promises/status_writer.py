"""Store the status document at the end of a watch.

A failure here must not hinder the watch: alerts do not depend on the pages. So each part is read separately, and a part
that cannot be read keeps its last state, with its age. Without S3 there is no document: the pages then show the last
one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import TypeVar

from waybill.base.errors import WaybillError, expected
from waybill.config.models import Config
from waybill.config.names import day_of, status_key
from waybill.services.coordination import UsageStore
from waybill.services.store import Store
from waybill.watch.incidents.finding import REACHABLE
from waybill.watch.incidents.incident import IncidentBook
from waybill.watch.promises.action_log import list_actions
from waybill.watch.promises.measure import Measured
from waybill.watch.promises.services import WatchServices
from waybill.watch.promises.status import DecisionStatus, ReplayStatus, StreamDetails, UsageStatus, WatchStatus
from waybill.watch.promises.status_build import (
    broker_statuses,
    incident_statuses,
    promise_statuses,
    service_statuses,
    stream_statuses,
)
from waybill.watch.promises.status_runs import find_action_runs, find_dag_runs, known_action_runs

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_DETAILS_MS = 5 * 60_000
_SLACK_MS = 30_000
"""Tolerance: a watch starts a little earlier or later than each full minute."""
_USAGE_DAYS = 7


def store_status(
    config: Config, services: WatchServices, measured: Measured, book: IncidentBook, at_ms: int, seconds: float
) -> None:
    """Store the status document of a watch. If that fails, log the failure and keep the previous document."""
    store = services.store
    if store is None:
        logger.warning("the status document is not stored, since S3 does not answer: pages show the one before")
        return
    try:
        before = _read_before(store)
        status = _make(config, services, store, measured, book, before, at_ms, seconds)
        store.replace(status_key(store.prefix), status.content(), "application/gzip")
    except Exception:  # any exception affects only the pages
        logger.exception("the status document is not stored: pages show the one before")


def _read_before(store: Store) -> WatchStatus:
    key = status_key(store.prefix)
    content = store.read_if_exists(key)
    if content is None:
        return WatchStatus(0, 0.0)
    try:
        return WatchStatus.parse(content, key)
    except WaybillError as error:
        logger.warning("trends begin again: %s", error)
        return WatchStatus(0, 0.0)


def _make(
    config: Config,
    services: WatchServices,
    store: Store,
    measured: Measured,
    book: IncidentBook,
    before: WatchStatus,
    at_ms: int,
    seconds: float,
) -> WatchStatus:
    streams = {each.name: each for each in before.streams}
    no_details: dict[str, StreamDetails] = {}
    known = {name: each.details for name, each in streams.items() if each.details is not None}
    details = _try("details", lambda: _details(config, measured, known, at_ms), no_details)
    usage, usage_ms = before.usage, before.usage_ms
    if services.session is not None and _is_due(usage_ms, at_ms):
        session = services.session
        read = _try("usage", lambda: _usage(UsageStore(session, config.zookeeper.root), at_ms), None)
        usage, usage_ms = (usage, usage_ms) if read is None else (read, at_ms)
    replays: tuple[ReplayStatus, ...] = ()
    replays_ms = None
    if config.replay is not None:
        replays, replays_ms = _replays(config, before, at_ms)
    actions = _try("actions", lambda: _actions(store, at_ms), before.actions)
    actions = known_action_runs(actions, before.actions)
    actions = _try("ordered DAG runs", partial(find_action_runs, config, services.find, actions), actions)
    made = stream_statuses(config, measured, streams, details, before.at_ms, at_ms)
    return WatchStatus(
        at_ms=at_ms,
        seconds=round(seconds, 3),
        services=service_statuses(measured.findings, {each.name: each for each in before.services}, at_ms),
        streams=_try("DAG runs", lambda: find_dag_runs(config, services.find, made, at_ms), made),
        shared=promise_statuses(
            [each for each in measured.findings if not each.stream and each.promise != REACHABLE],
            before.shared,
            before.at_ms,
        ),
        brokers=before.brokers if measured.cluster is None else broker_statuses(measured.cluster),
        incidents=incident_statuses(book.incidents, config.alerts, at_ms),
        replays=replays,
        replays_ms=replays_ms,
        usage=usage,
        usage_ms=usage_ms,
        actions=actions,
        broken={name: str(error) for name, error in config.broken.items()},
    )


def _try(what: str, read: Callable[[], _T], default: _T) -> _T:
    """Return the result of `read`. If it fails, log the error, and return the default."""
    try:
        return read()
    except Exception as error:  # an error of one part does not stop the loop: the pages show the other parts
        failure = expected(f"the status document's {what}", error)
        if failure is not error and not isinstance(error, OSError):
            logger.exception("the stack trace of the status document's %s", what)
        error = failure
        logger.warning("the status document keeps the last state of its %s: %s", what, error)
        return default


def _is_due(read_ms: int | None, at_ms: int) -> bool:
    return read_ms is None or at_ms - read_ms >= _DETAILS_MS - _SLACK_MS


def _details(
    config: Config, measured: Measured, known: Mapping[str, StreamDetails], at_ms: int
) -> dict[str, StreamDetails]:
    """Return the details of the streams whose tables this watch could read, and whose details are old."""
    due = [
        name
        for name in config.streams
        if name in measured.states and _is_due(known[name].read_ms if name in known else None, at_ms)
    ]
    if not due:
        return {}
    from waybill.watch.promises.status_parts import read_details

    return read_details(config, due, known, at_ms)


def _replays(config: Config, before: WatchStatus, at_ms: int) -> tuple[tuple[ReplayStatus, ...], int | None]:
    from waybill.watch.promises.status_parts import read_replays

    read = _try("replays", lambda: read_replays(config), None)
    return (before.replays, before.replays_ms) if read is None else (read, at_ms)


def _usage(store: UsageStore, at_ms: int) -> tuple[UsageStatus, ...]:
    today = day_of(at_ms)
    return tuple(
        UsageStatus(
            used.day.isoformat(),
            used.process,
            used.stream,
            dict(used.tally.requests),
            used.tally.sent_bytes,
            used.tally.received_bytes,
            round(sum(used.tally.cpu_seconds.values()), 3),
            used.tally.messages,
        )
        for used in store.read(today - timedelta(days=_USAGE_DAYS - 1), today)
    )


def _actions(store: Store, at_ms: int) -> tuple[DecisionStatus, ...]:
    return tuple(
        DecisionStatus(
            record.at_ms,
            record.by,
            record.action,
            record.stream,
            record.arguments,
            record.reason,
            "no outcome is recorded" if outcome is None else outcome.text,
            record.command,
            str(record.place),
            "" if outcome is None else outcome.dag,
            "" if outcome is None else outcome.run,
            surface=record.surface,
        )
        for record, outcome in list_actions(store, at_ms)
    )
