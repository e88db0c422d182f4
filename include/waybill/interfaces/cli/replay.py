"""`waybill replay`: create, list, show and cancel requests, and migrate their database."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import typer

from waybill.base.errors import ReplayRefused
from waybill.config.connections import find_connection
from waybill.config.connections.database import DatabaseEndpoint
from waybill.config.models import Config
from waybill.config.models.quantities import counted, rough_duration
from waybill.interfaces.cli.render import (
    Output,
    PrintedColumn,
    TableColumn,
    bytes_text,
    count,
    print_json,
    print_rows,
    print_table,
)
from waybill.interfaces.cli.targets import current_user, load_streams
from waybill.replay.requests.database import Database
from waybill.replay.requests.queue import MAX_PAGE, Page, Queue
from waybill.replay.requests.request import parse_request, replay_of, time_text_of
from waybill.replay.requests.states import RequestState
from waybill.replay.requests.stored import RejectedMessage, StoredRequest


def target_of(*, webhook: str | None, kafka: str | None, s3: str | None) -> dict[str, str]:
    """Return the target of the options in the form of a request's JSON.

    Raises `ReplayRefused` unless exactly one is given.
    """
    given = [name for name, value in (("--webhook", webhook), ("--kafka", kafka), ("--s3", s3)) if value is not None]
    if len(given) != 1:
        found = f"not {' and '.join(given)}" if given else "and none is given"
        raise ReplayRefused(f"give one of --webhook URL, --kafka CONNECTION/TOPIC and --s3 COMPRESSION, {found}")
    if webhook is not None:
        return {"type": "webhook", "url": webhook}
    if kafka is None:
        return {"type": "s3", "compression": str(s3)}
    connection, separator, topic = kafka.partition("/")
    if not separator:
        raise ReplayRefused(f"{kafka!r} is not of the form CONNECTION/TOPIC, such as kafka_default/missed", "--kafka")
    return {"type": "kafka", "connection": connection, "topic": topic}


def create(value: dict[str, Any], by: str | None, idempotency_key: str | None, *, as_json: bool) -> None:
    """Create a request; see `waybill replay create --help`."""
    config, now_ms = load_streams(), _now_ms()
    requested = parse_request(config, value, now_ms)
    with _open_queue(config) as queue:
        stored, is_new = queue.create(requested, by or current_user(), now_ms, idempotency_key=idempotency_key)
    if as_json:
        print_json({**stored.document(now_ms), "created_now": is_new})
        return
    typer.echo(f"{'created' if is_new else 'exists already:'} {stored.request.id}")
    typer.echo(f"Its progress: waybill replay show {stored.request.id}")


def print_list(*, state: str | None, requester: str | None, before: str | None, limit: int, as_json: bool) -> None:
    """List requests; see `waybill replay ls --help`."""
    wanted = _state(state)
    with _open_queue(load_streams()) as queue:
        page = queue.page(state=wanted, requester=requester, before_id=before, limit=limit)
    if as_json:
        now_ms = _now_ms()
        print_json([stored.document(now_ms) for stored in page])
    else:
        _print_page(page)
    for each in page.unreadable:
        typer.echo(f"{each.id} of {each.requester} is left out: {each.error}", err=True)
    if page.unreadable:
        raise typer.Exit(1)


def _print_page(page: Page) -> None:
    if not page:
        typer.echo("there is no replay request" + " that can be read" * bool(page.unreadable), err=True)
        return
    print_rows(_COLUMNS, page)
    if page.next_before is not None:
        typer.echo(f"There may be more: waybill replay ls --before {page.next_before}", err=True)


_COLUMNS: tuple[TableColumn[StoredRequest], ...] = (
    TableColumn("id", lambda each: each.request.id),
    TableColumn("state", lambda each: str(each.state)),
    TableColumn("stream", lambda each: each.request.requested.stream),
    TableColumn("keys", lambda each: count(len(each.request.requested.keys)), figure=True),
    TableColumn("from", lambda each: time_text_of(each.request.requested.from_ms)),
    TableColumn("to", lambda each: time_text_of(each.request.requested.to_ms)),
    TableColumn("target", lambda each: str(each.request.requested.target)),
    TableColumn("read", lambda each: _percent(each), figure=True),
    TableColumn("delivered", lambda each: count(each.progress.delivered), figure=True),
    TableColumn("rejected", lambda each: count(each.rejected), figure=True),
    TableColumn("requester", lambda each: each.request.requester),
)


def show(request_id: str, *, as_json: bool) -> None:
    """Print a request; see `waybill replay show --help`."""
    with _open_queue(load_streams()) as queue:
        stored = queue.show(request_id)
    _print_request(stored, as_json=as_json)


def print_rejected(request_id: str, *, as_json: bool) -> None:
    """Print the messages that the target of a request rejected; see `waybill replay show --help`."""
    found: list[RejectedMessage] = []
    with _open_queue(load_streams()) as queue:
        while page := queue.rejected_of(request_id, after=found[-1] if found else None, limit=MAX_PAGE):
            found += page
    Output(as_json).table(found, _REJECTED, none="the target rejected no message")


_REJECTED: tuple[TableColumn[RejectedMessage], ...] = (
    TableColumn("topic", lambda each: each.topic),
    TableColumn("partition", lambda each: str(each.partition), figure=True),
    TableColumn("offset", lambda each: str(each.offset), figure=True),
    TableColumn("reason", lambda each: each.reason),
)


def cancel(request_id: str, reason: str, by: str | None, *, as_json: bool) -> None:
    """Cancel a request; see `waybill replay cancel --help`."""
    with _open_queue(load_streams()) as queue:
        stored = queue.cancel(request_id, by or current_user(), reason, _now_ms())
    _print_request(stored, as_json=as_json)


def serve_requests(seconds: float, *, as_json: bool) -> None:
    """Serve open requests; see `waybill replay serve --help`."""
    from waybill.replay.requests.worker import serve

    config, stop = load_streams(), threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        served = serve(config, worker=current_user(), seconds=seconds, should_stop=stop.is_set)
    finally:
        signal.signal(signal.SIGTERM, before)
    if as_json:
        print_json(dataclasses.asdict(served))
    else:
        typer.echo(
            f"{counted(served.turns, 'turn')}: {served.completed:,} completed, {served.failed:,} failed, "
            f"{counted(served.delivered, 'message')} delivered"
        )
    for problem in served.problems:
        typer.echo(problem, err=True)
    if served.problems:
        raise typer.Exit(1)


def index_streams(streams: list[str], *, as_json: bool) -> None:
    """Extend the replay index; see `waybill replay index --help`. Raises the first error after all streams."""
    from waybill.replay.requests.index.job import index_all

    config = load_streams()
    for name in streams:
        config.stream(name)
    done = index_all(config, streams or sorted(config.streams))
    if as_json:
        print_json({name: dataclasses.asdict(each.figures) for name, each in done.items()})
    else:
        columns = [
            PrintedColumn("stream"),
            *(PrintedColumn(name, figure=True) for name in ("objects", "messages", "read", "index")),
        ]
        rows = [
            [name, count(f.objects), count(f.messages), bytes_text(f.archived_bytes), bytes_text(f.index_bytes)]
            for name, f in ((name, each.figures) for name, each in done.items())
        ]
        print_table(columns, rows)
    errors = [error for each in done.values() for error in each.all_errors]
    if errors:
        raise errors[0]


def migrate_database() -> None:
    """Migrate the database of the requests; see `waybill replay migrate --help`."""
    # Alembic takes a while to import, and no other command needs it.
    from waybill.replay.requests.migrations import migrate

    replay = replay_of(load_streams())
    with Database(DatabaseEndpoint.of(find_connection(replay.database))) as database:
        before, after = migrate(database)
        done = f"has revision {after} already" if before == after else f"migrated from {before or 'nothing'} to {after}"
        typer.echo(f"{database.shown}: {done}")


@contextlib.contextmanager
def _open_queue(config: Config) -> Iterator[Queue]:
    with Database.of(config) as database:
        yield Queue(database, replay_of(config).quotas)


def _state(text: str | None) -> RequestState | None:
    try:
        return None if text is None else RequestState(text.lower())
    except ValueError:
        raise ReplayRefused(f"{text!r} is no state; there are: {', '.join(RequestState)}", "--state") from None


def _percent(stored: StoredRequest) -> str:
    return f"{stored.progress.share * 100:.0f}%"


def _print_request(stored: StoredRequest, *, as_json: bool) -> None:
    now_ms = _now_ms()
    if as_json:
        print_json(stored.document(now_ms))
        return
    requested = stored.request.requested
    reason = stored.reason or (stored.problem and f"is tried again, because: {stored.problem}")
    state = f"{stored.state}: {reason}" if reason else str(stored.state)
    keys = f"{counted(len(requested.keys), 'key')} ({bytes_text(sum(map(len, requested.keys)))})"
    typer.echo(f"{stored.request.id} {state}")
    typer.echo(f"requested by {stored.request.requester} at {time_text_of(stored.request.created_at_ms)}")
    typer.echo(f"{requested.stream}: {keys}, {time_text_of(requested.from_ms)} to {time_text_of(requested.to_ms)}")
    typer.echo(f"target: {requested.target}")
    remaining = stored.remaining_seconds(now_ms)
    left = "" if remaining is None else f", about {rough_duration(remaining)} left"
    progress = stored.progress
    typer.echo(
        f"{_percent(stored)} of the range is read{left}: {progress.found:,} found, {progress.delivered:,} delivered, "
        f"{stored.rejected:,} rejected, {stored.duplicates:,} dropped as duplicates"
    )
    if stored.heartbeat_ms is not None:
        age = rough_duration((now_ms - stored.heartbeat_ms) / 1000)
        typer.echo(f"served by {stored.worker} (claim {stored.claim}, last heartbeat {age} ago)")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
