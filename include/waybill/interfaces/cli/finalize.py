"""`waybill finalize`: mark the final hours of a `files` sink, and print why other hours are not final."""

from __future__ import annotations

from functools import partial

import typer

from waybill.interfaces.cli.render import Output, PrintedColumn, bytes_text, count, print_table
from waybill.interfaces.cli.targets import load_streams
from waybill.tables.partition.files_sink.finalize import FinalizeReport, finalize
from waybill.tables.partition.files_sink.hour_state import HourState, HourStatus


def run(stream: str, *, dry_run: bool, all_hours: bool, as_json: bool) -> None:
    """Finalize, print the report, and exit with 1 if an hour is blocked; see `waybill finalize --help`."""
    report = finalize(load_streams(), stream, dry_run=dry_run)
    Output(as_json).show(report, partial(_print, dry_run=dry_run, all_hours=all_hours))
    if report.blocked:
        raise typer.Exit(1)


def _print(report: FinalizeReport, *, dry_run: bool, all_hours: bool) -> None:
    hours = [hour for hour in report.hours if all_hours or _is_news(report, hour)]
    if hours:
        columns = [
            PrintedColumn("hour"),
            PrintedColumn("files", figure=True),
            PrintedColumn("rows", figure=True),
            PrintedColumn("size", figure=True),
            PrintedColumn("revision", figure=True),
            PrintedColumn("state"),
        ]
        print_table(columns, (_cells(hour, dry_run=dry_run) for hour in hours))
    for hour in report.blocked:
        for key in hour.missing:
            typer.echo(f"{hour.period}: {key} is missing, or its size differs from the file inventory")
        for key in hour.strays:
            typer.echo(f"{hour.period}: {key} is not in the file inventory")
    for key in report.removed:
        typer.echo(f"removed {key}, the file of an abandoned plan")
    for note in report.notes:
        typer.echo(f"note: {note}")
    typer.echo(str(report))


def _is_news(report: FinalizeReport, hour: HourStatus) -> bool:
    return hour.state is not HourState.FINAL or hour.period in report.marked


def _cells(hour: HourStatus, *, dry_run: bool) -> list[str]:
    figures = hour.wanted
    state = "would be marked" if dry_run and hour.state is HourState.READY else str(hour.state)
    return [
        str(hour.period),
        count(figures.files),
        count(figures.rows),
        bytes_text(figures.size_bytes),
        str(figures.revision),
        state,
    ]
