"""`waybill dedup`: print the state of a stream's sweeps, and rebuild or merge its key index."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

import typer

from waybill.base.errors import ConfigError
from waybill.config.models import Config
from waybill.config.models.quantities import counted, format_duration, format_size
from waybill.interfaces.cli.render import Output, PrintedColumn, bytes_text, count, print_json, print_table, time_text
from waybill.interfaces.cli.targets import StreamsAlone, load_streams, parse_duration_option, stream_names
from waybill.tables.dedup.first_sweep import format_instant
from waybill.tables.dedup.index.manifest import Manifest
from waybill.tables.dedup.key_index import merge_index, rebuild_index
from waybill.tables.dedup.status import DedupStatus, DuplicateCount, RebuildFigures, read_status


def run_status(stream: str | None, last: str, *, as_json: bool) -> None:
    """Print the status of one stream, or of all that have dedup; see `waybill dedup status --help`."""
    config = load_streams()
    span = parse_duration_option("--last", last)
    with StreamsAlone() as alone:
        found = alone.read(_streams_with_dedup(config, stream), lambda name: read_status(config, name, span))
        statuses = [status for status in found.values() if status]
        Output(as_json).show(statuses, partial(_print_statuses, span=span))


def _print_statuses(statuses: Sequence[DedupStatus], span: timedelta) -> None:
    if not statuses:
        print("no stream has dedup: add a section `dedup` to one in the config ({} is enough)", file=sys.stderr)
    for number, status in enumerate(statuses):
        if number:
            typer.echo()
        print_status(status, span)


def _streams_with_dedup(config: Config, stream: str | None) -> Sequence[str]:
    """Return the given stream, or all streams that have dedup. Raises `ConfigError` if the given stream has none."""
    if stream is not None and config.stream(stream).dedup is None:
        raise ConfigError(f"stream {stream!r} has no dedup: add a section `dedup` to it in the config ({{}} is enough)")
    return [name for name in stream_names(config, stream) if config.stream(name).dedup is not None]


def print_status(status: DedupStatus, last: timedelta) -> None:
    """Print the status of one stream. `last`: the duration over which its duplicates were counted."""
    typer.echo(f"{status.stream}: {counted(status.rows, 'row')} in {status.unique}, {_duplicates_text(status)}")
    typer.echo(f"  swept   {_swept_text(status)}")
    if status.rebuild is not None:
        typer.echo(f"  rebuild {_rebuild_text(status.rebuild)}")
    if status.beginning is not None:
        since = format_instant(status.beginning.since_ms)
        typer.echo(f"  since   {since}; {counted(status.beginning.rows, 'older row')} left out by the first sweep")
    horizon = "" if status.horizon is None else f"; rows older than {time_text(status.horizon)} are no longer compared"
    typer.echo(f"  window  {status.window}{horizon}")
    typer.echo(f"  index   {_index_text(status)}")
    if status.counted:
        typer.echo()
        _print_counted(status.counted)
    if status.newest is not None:
        duplicates = counted(sum(c.duplicates for c in status.counted), "duplicate")
        span = f"{format_duration(last)} before {time_text(status.newest)}, the arrival of the newest row"
        print(f"{status.stream}: {duplicates} in the {span}", file=sys.stderr)
    if status.alert is not None:
        print(f"alert: {status.alert}", file=sys.stderr)


def _rebuild_text(rebuild: RebuildFigures) -> str:
    done = (
        "the next sweep starts it"
        if rebuild.id is None
        else f"{count(rebuild.rows)} of {counted(rebuild.of_rows, 'row')}"
    )
    return f"because {rebuild.reason}: {done}; consumers see the rows from before until it is published"


def _duplicates_text(status: DedupStatus) -> str:
    total = status.rows + status.duplicates
    share = f" ({status.duplicates / total:.2%} of all)" if total else ""
    return f"{counted(status.duplicates, 'duplicate')}{share}"


def _swept_text(status: DedupStatus) -> str:
    if status.swept_snapshot is None:
        through = "nothing yet"
    else:
        of = ", which has expired since" if status.swept_at is None else f" of {time_text(status.swept_at)}"
        through = f"through snapshot {status.swept_snapshot}{of}"
    behind = status.behind
    backlog = "nothing"
    if behind.snapshots:
        backlog = f"{counted(behind.snapshots, 'snapshot')} with {counted(behind.rows, 'row')}"
    return f"{through}; {backlog} to sweep"


def _index_text(status: DedupStatus) -> str:
    index = status.index
    if index is None:
        return "none yet: the next sweep builds it from the unique rows"
    size = f"{bytes_text(index.bytes)} ({index.bytes / index.budget_bytes:.1%} of {format_size(index.budget_bytes)})"
    each = "" if index.bytes_per_key is None else f", {index.bytes_per_key:.1f} bytes a key"
    missing = counted(index.missing_rows, "row")
    behind = f"; {missing} behind: the next sweep catches up" if index.missing_rows else ""
    return f"{counted(index.keys, 'key')} in {counted(index.runs, 'sorted run')}, {size}{each}{behind}"


def _print_counted(counted: Sequence[DuplicateCount]) -> None:
    has_source = any(c.source is not None for c in counted)
    columns = [PrintedColumn("hour"), PrintedColumn("topic"), *([PrintedColumn("source")] if has_source else [])]
    rows = (
        [time_text(c.hour), c.topic, *([c.source or "-"] if has_source else []), count(c.duplicates)] for c in counted
    )
    print_table([*columns, PrintedColumn("duplicates", figure=True)], rows)


def run_rebuild(stream: str, *, as_json: bool) -> None:
    """Rebuild the key index; see `waybill dedup rebuild --help`."""
    _print_index(stream, rebuild_index(load_streams(), stream), as_json=as_json)


def run_merge(stream: str, *, as_json: bool) -> None:
    """Merge sorted runs of the key index; see `waybill dedup merge --help`."""
    _print_index(stream, merge_index(load_streams(), stream), as_json=as_json)


def _print_index(stream: str, index: Manifest | None, *, as_json: bool) -> None:
    if as_json:
        figures = None if index is None else {"keys": index.keys, "bytes": index.size_bytes, "runs": len(index.runs)}
        print_json({"stream": stream, "index": figures})
    elif index is None:
        typer.echo(f"{stream}: there is no key index yet: the first sweep builds it")
    else:
        runs = counted(len(index.runs), "sorted run")
        typer.echo(
            f"{stream}: the key index has {counted(index.keys, 'key')} in {runs}, {bytes_text(index.size_bytes)}"
        )
