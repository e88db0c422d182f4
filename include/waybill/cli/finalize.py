"""`waybill finalize`: which hours of a `files` sink are final, and why others are not."""

from __future__ import annotations

import typer

from waybill.cli.render import Column, bytes_text, count, print_json, print_table
from waybill.config import load_config
from waybill.partition.files_sink.finality import Finding, State
from waybill.partition.files_sink.finalize import Finalized, finalize

__all__ = ["run"]


def run(stream: str, *, dry_run: bool, all_hours: bool, as_json: bool) -> None:
    """Finalize, print, and exit with 1 if an hour is blocked; see `waybill finalize --help`."""
    found = finalize(load_config(), stream, dry_run=dry_run)
    if as_json:
        print_json(found.document())
    else:
        _print(found, dry_run=dry_run, all_hours=all_hours)
    if found.blocked:
        raise typer.Exit(1)


def _print(found: Finalized, *, dry_run: bool, all_hours: bool) -> None:
    hours = [hour for hour in found.hours if all_hours or _is_news(found, hour)]
    if hours:
        columns = [
            Column("hour"),
            Column("files", figure=True),
            Column("rows", figure=True),
            Column("size", figure=True),
            Column("revision", figure=True),
            Column("state"),
        ]
        print_table(columns, (_cells(hour, dry_run=dry_run) for hour in hours))
    for hour in found.blocked:
        for key in hour.missing:
            typer.echo(f"{hour.period}: {key} is missing, or not of the size that the ledger says")
        for key in hour.strays:
            typer.echo(f"{hour.period}: {key} is not listed by the ledger")
    for key in found.removed:
        typer.echo(f"removed {key}, of a plan that came to nothing")
    for note in found.notes:
        typer.echo(f"note: {note}")
    typer.echo(str(found))


def _is_news(found: Finalized, hour: Finding) -> bool:
    return hour.state is not State.FINAL or hour.period in found.marked


def _cells(hour: Finding, *, dry_run: bool) -> list[str]:
    figures = hour.wanted
    state = "would be marked" if dry_run and hour.state is State.READY else str(hour.state)
    return [
        str(hour.period),
        count(figures.files),
        count(figures.rows),
        bytes_text(figures.size_bytes),
        str(figures.revision),
        state,
    ]
