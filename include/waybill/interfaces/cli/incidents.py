"""`waybill watch` and `waybill incidents`: measure the promises, and show the broken ones."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from waybill.base.errors import ConfigError
from waybill.base.printable import printable
from waybill.config.models.last_valid import WatchConfig, load_for_watch
from waybill.config.models.quantities import counted, rough_duration
from waybill.interfaces.cli.render import Output, PrintedColumn, print_json, print_table, time_text
from waybill.interfaces.cli.targets import load_streams, make_decision, open_store
from waybill.interfaces.operations.catalogue import ACKNOWLEDGE
from waybill.interfaces.operations.here import acknowledge as acknowledge_incident
from waybill.interfaces.operations.here import find_incident
from waybill.watch.incidents.finding import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from waybill.config.models import Config
    from waybill.watch.incidents.book_store import BookStore
    from waybill.watch.incidents.incident import Incident
    from waybill.watch.promises.watch_run import WatchReport


def watch(*, dry_run: bool, every_seconds: int | None, as_json: bool) -> None:
    """Run one watch, or watch repeatedly; see `waybill watch --help`.

    Ends with code 1 if a promise is broken, or if an unexpected exception ended a part of the watch.
    """
    from waybill.watch.promises.watch_run import run_watch

    while True:
        began = time.monotonic()
        report = run_watch(_load_for_watch(), dry_run=dry_run)
        Output(as_json).show(report, _print_report, _document)
        if every_seconds is None:
            raise typer.Exit(1 if report.broken or report.unexpected else 0)
        time.sleep(max(0.0, every_seconds - (time.monotonic() - began)))


def _load_for_watch() -> WatchConfig:
    """Return the config for the watch, and print the errors of the file to stderr."""
    loaded = load_for_watch()
    if loaded.error:
        typer.echo(f"the config does not load, and this watch works with {loaded.source}:\n{loaded.error}", err=True)
    for name, error in loaded.config.broken.items():
        typer.echo(f"stream {name} is left out, since its config has errors:\n{error}", err=True)
    return loaded


def test_channel(name: str) -> None:
    """Send a message to a channel, to see whether it arrives; see `waybill watch --help`."""
    config = load_streams()
    if name not in config.alerts.channels:
        known = ", ".join(config.alerts.channels) or "none"
        raise ConfigError(f"the config has no channel {name!r}; channels: {known}")
    from waybill.watch.notify.channels import check_channel, send
    from waybill.watch.notify.http import ChannelFailed
    from waybill.watch.notify.message import test_message

    channel = config.alerts.channels[name]
    check_channel(channel)
    try:
        send(channel, test_message(config.alerts, int(time.time() * 1000)))
    except ChannelFailed as error:
        typer.echo(f"not sent: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"sent to {name}: look whether it has arrived")


def list_incidents(*, with_resolved: bool, as_json: bool) -> None:
    """Print the open incidents; see `waybill incidents ls --help`."""
    config = load_streams()
    with _open_books(config) as books:
        found = [each for each in books.load().incidents if with_resolved or each.is_open]
    Output(as_json).show(found, _print_incidents)


def _print_incidents(found: Sequence[Incident]) -> None:
    if found:
        columns = [PrintedColumn(name) for name in ("incident", "severity", "figure", "since", "state")]
        print_table(columns, ([i.id, i.severity, i.figure, _time(i.since_ms), _state(i)] for i in found))
    is_open = sum(incident.is_open for incident in found)
    print(f"{counted(is_open, 'open incident')}", file=sys.stderr)


def show(incident: str, *, as_json: bool) -> None:
    """Print one incident; see `waybill incidents show --help`."""
    config = load_streams()
    with _open_books(config) as books:
        found = find_incident(books, incident)
    if as_json:
        print_json(found.document())
        return
    from waybill.watch.incidents.incident import NotificationKind
    from waybill.watch.notify.message import ChannelMessage

    kind = NotificationKind.OPENED if found.is_open else NotificationKind.RESOLVED
    typer.echo(ChannelMessage.of("", kind, found, config.alerts, int(time.time() * 1000)).plain())
    if found.acknowledged is not None:
        by = found.acknowledged
        typer.echo(f"acknowledged by {by.by} at {_time(by.at_ms)}: {by.reason}")


def acknowledge(incident: str, *, reason: str, by: str | None, as_json: bool) -> None:
    """Acknowledge an incident; see `waybill incidents ack --help`."""
    from waybill.interfaces.operations.audit_log import logged

    decision = make_decision(reason, by)
    config = load_streams()
    with _open_books(config) as books, logged(config, ACKNOWLEDGE, decision, {"incident": incident}):
        found = acknowledge_incident(books, incident, decision)
    if as_json:
        print_json(found.document())
        return
    assert found.acknowledged is not None
    typer.echo(f"{incident} is acknowledged by {found.acknowledged.by}: no reminders, and no escalation")


@contextmanager
def _open_books(config: Config) -> Iterator[BookStore]:
    """Return the stored incidents: from ZooKeeper if it answers, else from a copy."""
    from waybill.base.errors import CoordinationUnavailable
    from waybill.services.coordination import ZooKeeperSession
    from waybill.watch.incidents.book_store import BookStore

    with ExitStack() as stack:
        store = stack.enter_context(open_store(config))
        session = None
        try:
            session = stack.enter_context(ZooKeeperSession.of(config))
        except CoordinationUnavailable as error:
            typer.echo(f"reading a copy of the incidents: {error}", err=True)
        yield BookStore(config.zookeeper.root, session, store)


def _print_report(report: WatchReport) -> None:
    measured = [finding for finding in report.findings if finding.verdict is not Verdict.UNKNOWN]
    for finding in report.broken:
        where = printable(finding.stream or finding.subject or finding.promise)
        typer.echo(f"{where}: {finding.promise} {finding.figure} ({finding.limit}){_detail(finding.detail)}")
    unknown = len(report.findings) - len(measured)
    note = f", {unknown} could not be measured" if unknown else ""
    typer.echo(
        f"{counted(len(measured), 'promise')}, {len(report.broken)} broken{note}; "
        f"{counted(len(report.open), 'open incident')}; {counted(report.sent, 'message')} sent"
        f"{''.join(f'; not sent: {error}' for error in report.failed)}; {report.seconds:.1f} s"
    )


def _time(time_ms: int) -> str:
    return time_text(datetime.fromtimestamp(time_ms / 1000, UTC))


def _detail(text: str) -> str:
    return f": {text}" if text else ""


def _document(report: WatchReport) -> dict[str, Any]:
    return {
        "v": 1,
        "findings": [
            {
                "stream": finding.stream,
                "promise": finding.promise,
                "subject": finding.subject,
                "verdict": finding.verdict,
                "severity": finding.severity,
                "figure": finding.figure,
                "limit": finding.limit,
                "detail": finding.detail,
            }
            for finding in report.findings
        ],
        "incidents": [incident.document() for incident in report.open],
        "sent": report.sent,
        "failed": list(report.failed),
        "unexpected": list(report.unexpected),
        "seconds": round(report.seconds, 3),
    }


def _state(incident: Incident) -> str:
    if incident.lasted_ms is not None:
        return f"resolved after {rough_duration(incident.lasted_ms / 1000)}"
    if incident.acknowledged is not None:
        return f"acknowledged by {incident.acknowledged.by}"
    return "kept again, not over yet" if incident.kept_since_ms else "open"
