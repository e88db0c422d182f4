"""One watch: measure the promises of all streams, store the incidents, and send the messages about them.

A watch reads what the jobs have committed: offsets in Kafka and ZooKeeper, documents in S3, properties of tables. It
reads no message and no row, and needs neither Airflow nor Spark. So it also notices that Airflow stands still.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from waybill.config import Config
from waybill.config.last_valid import WatchConfig
from waybill.connections import find_connection
from waybill.coordination import ALL_STREAMS, UsageStore
from waybill.errors import ConfigError
from waybill.incidents.book_store import BookStore
from waybill.incidents.finding import Finding, Verdict
from waybill.incidents.incident import Incident, IncidentBook, Notification
from waybill.incidents.rules import advance, channel_findings, claim, settle
from waybill.metering import meter
from waybill.notify.channels import ChannelFailed, FindConnection, ping, send
from waybill.notify.message import Message
from waybill.watch.config_figures import config_findings, unwatched_findings
from waybill.watch.measure import WatchServices, measure
from waybill.watch.status_writer import store_status

__all__ = ["WatchReport", "run_watch"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WatchReport:
    """What a watch found and did."""

    findings: Sequence[Finding]
    open: Sequence[Incident]
    sent: int
    failed: Sequence[str] = field(default=())
    """Why messages could not be sent. They are tried again."""
    seconds: float = 0.0

    @property
    def broken(self) -> list[Finding]:
        """Return the promises that are broken."""
        return [finding for finding in self.findings if finding.verdict is Verdict.BROKEN]


def run_watch(
    config: Config | WatchConfig,
    *,
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    find: FindConnection = find_connection,
    directory: Path | None = None,
    dry_run: bool = False,
) -> WatchReport:
    """Watch once. `directory`: of this machine's copy of the incidents; the system's temporary one by default.

    `config` may be one that takes the place of a file that does not load: that is an incident.

    With `dry_run` it only measures: it stores nothing, and sends nothing.

    A service that does not answer, or whose connection is missing or refused, is a finding, not an error: what needs it
    is left as it was. Raises `DocumentTooNew` or `DocumentDamaged` for stored incidents that cannot be read.
    """
    began = time.monotonic()
    loaded = config if isinstance(config, WatchConfig) else WatchConfig(config)
    config = loaded.config
    with WatchServices(config, find) as services:
        at_ms = now_ms()
        measured = measure(config, services, at_ms, stores=not dry_run)
        findings = [*measured.findings, *config_findings(loaded)]
        books = BookStore(config.zookeeper.root, services.session, services.store, directory)
        if dry_run:
            open_now = tuple(each for each in books.load().incidents if each.is_open)
            return WatchReport(findings, open_now, 0, (), time.monotonic() - began)
        claimed: list[Notification] = []

        def follow(book: IncidentBook) -> IncidentBook:
            claimed.clear()
            found = [*findings, *channel_findings(book, config.alerts)]
            found += unwatched_findings(loaded, book, found)
            book, due = claim(advance(book, found, config.alerts, at_ms), at_ms, config.alerts.channels)
            claimed.extend(due)
            return book

        book = books.change(follow)
        results = {each.id: _send(config, book, each, at_ms, find) for each in claimed}
        if results:
            book = books.change(lambda stored: settle(stored, results, now_ms()))
        store_status(config, services, measured, book, at_ms, time.monotonic() - began)
        if services.session is not None:
            # One entry for all streams: it is divided when it is read, so the node stays small.
            used = meter.take("watch", [ALL_STREAMS], "")
            UsageStore(services.session, config.zookeeper.root).add("watch", used)
    if config.alerts.dead_man is not None:
        _ping(config.alerts.dead_man, find)
    failed = [error for error in results.values() if error is not None]
    incidents = [incident for incident in book.incidents if incident.is_open]
    return WatchReport(findings, incidents, len(results) - len(failed), failed, time.monotonic() - began)


def _send(
    config: Config, book: IncidentBook, notification: Notification, now_ms: int, find: FindConnection
) -> str | None:
    """Send a message, and return None; else why it could not be sent."""
    incident = book.find(notification.incident)
    assert incident is not None  # incidents are kept longer than messages about them
    message = Message.of(notification.id, notification.kind, incident, config.alerts, now_ms)
    try:
        send(config.alerts.channels[notification.channel], message, find)
    except (ChannelFailed, ConfigError) as error:
        logger.warning("%s: not sent, and tried again: %s", message.subject, error)
        return str(error)
    logger.info("sent to %s: %s", notification.channel, message.subject)
    return None


def _ping(connection: str, find: FindConnection) -> None:
    try:
        ping(find(connection))
    except (ChannelFailed, ConfigError) as error:
        # The other side alerts when it is not asked.
        logger.warning("the dead man's switch was not reached: %s", error)
