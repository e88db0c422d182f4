"""One watch: measure the promises of all streams, store the incidents, and send the messages about them.

A watch reads what the jobs have committed: offsets in Kafka and ZooKeeper, documents in S3, properties of tables. It
reads no message and no row, and needs neither Airflow nor Spark. So it also detects that Airflow does not work.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from waybill.base.metering import meter
from waybill.config.connections import find_connection
from waybill.config.models import Config
from waybill.config.models.last_valid import WatchConfig
from waybill.services.coordination import ALL_STREAMS, UsageStore
from waybill.watch.incidents.book_store import BookStore
from waybill.watch.incidents.finding import Finding, Verdict
from waybill.watch.incidents.incident import Incident, IncidentBook, Notification
from waybill.watch.incidents.rules import advance, channel_findings, claim, record_ping, settle
from waybill.watch.notify.channels import FindConnection, unusable_channels
from waybill.watch.promises.config_figures import config_findings, unwatched_findings
from waybill.watch.promises.measure import measure
from waybill.watch.promises.sending import Sent, ping_dead_man, send_all
from waybill.watch.promises.services import WatchServices
from waybill.watch.promises.status_writer import store_status

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WatchReport:
    """What a watch found and did."""

    findings: Sequence[Finding]
    open: Sequence[Incident]
    sent: int
    failed: Sequence[str] = field(default=())
    """Why messages could not be sent. A later watch sends them again."""
    seconds: float = 0.0
    unexpected: Sequence[str] = field(default=())
    """Unexpected exceptions, by the element that raised them. The watch went on, and counts as failed."""

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
    """Run one watch. `directory`: the parent of this machine's copy of the incidents; by default the user's own.

    `config` may be the last valid one, if the file does not load: then there is an incident about the file.

    With `dry_run` the watch only measures: it stores and sends nothing.

    A service that does not answer, or whose connection is missing or refused, is a finding, not an error: incidents
    that depend on it are not changed. Raises `DocumentTooNew` or `DocumentDamaged` for stored incidents that cannot be
    read.
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
        unusable = unusable_channels(config.alerts, find)

        def follow(book: IncidentBook) -> IncidentBook:
            claimed.clear()
            found = [*findings, *channel_findings(book, config.alerts, unusable)]
            found += unwatched_findings(loaded, book, found)
            # Measuring takes time: the claim begins now, so that it lasts until the messages are sent.
            book, due = claim(advance(book, found, config.alerts, at_ms), now_ms(), config.alerts.channels)
            claimed.extend(due)
            return book

        book = books.change(follow)
        sent = send_all(config, book, claimed, at_ms, find)
        if claimed:
            book = books.change(lambda stored: settle(stored, sent.results, now_ms(), sent.untried))
        store_status(config, services, measured, book, at_ms, time.monotonic() - began)
        if services.session is not None:
            # The usage of all streams is one entry, which is divided when it is read, so the node stays small.
            used = meter.take("watch", [ALL_STREAMS], "")
            UsageStore(services.session, config.zookeeper.root).add("watch", used)
        book = _ping(config, books, book, sent, find)
    incidents = [incident for incident in book.incidents if incident.is_open]
    seconds = time.monotonic() - began
    return WatchReport(findings, incidents, sent.count, sent.failed, seconds, tuple(sent.unexpected))


def _ping(config: Config, books: BookStore, book: IncidentBook, sent: Sent, find: FindConnection) -> IncidentBook:
    """Call the dead man's switch, and return the book with the outcome.

    After failures, the next watch opens an incident.
    """
    if config.alerts.dead_man is None:
        return book
    error = ping_dead_man(config.alerts.dead_man, find, sent)
    if error is None and not book.failed_pings:
        return book
    return books.change(lambda stored: record_ping(stored, error))
