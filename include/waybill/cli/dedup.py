"""`waybill dedup`: how far sweeps have come and how far back they see; the key index built anew."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta

import typer

from waybill.cli.render import Column, bytes_text, count, print_json, print_table, time_text
from waybill.cli.targets import stream_names
from waybill.config import Config, load_config
from waybill.config.values import format_duration, format_size, parse_duration
from waybill.dedup.first_sweep import instant_text
from waybill.dedup.index.manifest import Manifest
from waybill.dedup.index_maintenance import merge_index, rebuild_index
from waybill.dedup.status import Counted, DedupStatus, look
from waybill.errors import ConfigError

__all__ = ["print_status", "run_merge", "run_rebuild", "run_status"]


def run_status(stream: str | None, last: str, *, as_json: bool) -> None:
    """Print the status of one stream, or of all that have dedup; see `waybill dedup status --help`."""
    config = load_config()
    span = _parse_last(last)
    found = [status for name in _with_dedup(config, stream) if (status := look(config, name, span))]
    if as_json:
        print_json([status.document() for status in found])
        return
    if not found:
        print("no stream has dedup: give one a section `dedup` in the config ({} will do)", file=sys.stderr)
    for number, status in enumerate(found):
        if number:
            typer.echo()
        print_status(status, span)


def _parse_last(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}", param_hint="--last") from None


def _with_dedup(config: Config, stream: str | None) -> Sequence[str]:
    """Raises `ConfigError` when the stream that was named has no dedup."""
    if stream is not None and config.stream(stream).dedup is None:
        raise ConfigError(f"stream {stream!r} has no dedup: give it a section `dedup` in the config ({{}} will do)")
    return [name for name in stream_names(config, stream) if config.stream(name).dedup is not None]


def print_status(status: DedupStatus, last: timedelta) -> None:
    """Print one; `last`: of how long duplicates were counted."""
    typer.echo(f"{status.stream}: {count(status.rows)} rows in {status.unique}, {_share(status)}")
    typer.echo(f"  swept   {_swept(status)}")
    if status.beginning is not None:
        since = instant_text(status.beginning.since_ms)
        typer.echo(f"  since   {since}; {count(status.beginning.rows)} rows that the table had before are left out")
    horizon = "" if status.horizon is None else f"; what came before {time_text(status.horizon)} is not known again"
    typer.echo(f"  window  {status.window}{horizon}")
    typer.echo(f"  index   {_index(status)}")
    if status.counted:
        typer.echo()
        _print_counted(status.counted)
    if status.newest is not None:
        of = f"in the {format_duration(last)} before {time_text(status.newest)}, when the newest row came"
        print(f"{status.stream}: {sum(c.duplicates for c in status.counted):,} duplicates {of}", file=sys.stderr)
    if status.alert is not None:
        print(f"alert: {status.alert}", file=sys.stderr)


def _share(status: DedupStatus) -> str:
    total = status.rows + status.duplicates
    share = f" ({status.duplicates / total:.2%} of all)" if total else ""
    return f"{count(status.duplicates)} duplicates{share}"


def _swept(status: DedupStatus) -> str:
    if status.swept_snapshot is None:
        through = "nothing yet"
    else:
        of = ", which has expired since" if status.swept_at is None else f" of {time_text(status.swept_at)}"
        through = f"through snapshot {status.swept_snapshot}{of}"
    behind = status.behind
    snapshots = f"{behind.snapshots:,} snapshot{'' if behind.snapshots == 1 else 's'}"
    left = f"{snapshots} with {behind.rows:,} rows" if behind.snapshots else "nothing"
    return f"{through}; {left} to sweep"


def _index(status: DedupStatus) -> str:
    index = status.index
    if index is None:
        return "none yet: the next sweep builds it from the unique rows"
    size = f"{bytes_text(index.bytes)} ({index.bytes / index.budget_bytes:.1%} of {format_size(index.budget_bytes)})"
    each = "" if index.bytes_per_key is None else f", {index.bytes_per_key:.1f} bytes a key"
    behind = f"; {index.missing_rows:,} rows behind: the next sweep catches up" if index.missing_rows else ""
    return f"{count(index.keys)} keys in {count(index.runs)} runs, {size}{each}{behind}"


def _print_counted(counted: Sequence[Counted]) -> None:
    has_source = any(c.source is not None for c in counted)
    columns = [Column("hour"), Column("topic"), *([Column("source")] if has_source else [])]
    rows = (
        [time_text(c.hour), c.topic, *([c.source or "-"] if has_source else []), count(c.duplicates)] for c in counted
    )
    print_table([*columns, Column("duplicates", figure=True)], rows)


def run_rebuild(stream: str, *, as_json: bool) -> None:
    """Build the key index anew; see `waybill dedup rebuild --help`."""
    _print_changed(stream, rebuild_index(load_config(), stream), as_json=as_json)


def run_merge(stream: str, *, as_json: bool) -> None:
    """Merge runs of the key index; see `waybill dedup merge --help`."""
    _print_changed(stream, merge_index(load_config(), stream), as_json=as_json)


def _print_changed(stream: str, index: Manifest | None, *, as_json: bool) -> None:
    if as_json:
        figures = None if index is None else {"keys": index.keys, "bytes": index.size_bytes, "runs": len(index.runs)}
        print_json({"stream": stream, "index": figures})
    elif index is None:
        typer.echo(f"{stream}: there is no index yet: a sweep makes one")
    else:
        size = bytes_text(index.size_bytes)
        typer.echo(f"{stream}: the index has {index.keys:,} keys in {len(index.runs):,} runs, {size}")
