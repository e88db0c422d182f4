"""`waybill verify`: a progress bar, then the faults with their effects, notes, and tables of figures."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from waybill.base.errors import WaybillError
from waybill.config.models import Config
from waybill.config.models.quantities import counted
from waybill.interfaces.cli.render import Output, PrintedColumn, bytes_text, count, print_table
from waybill.interfaces.cli.targets import (
    StreamsAlone,
    load_streams,
    open_catalog,
    open_coordinator,
    open_store,
    stream_names,
)
from waybill.watch.verify import VerifyReport, verify_stream

logger = logging.getLogger(__name__)

_OF_ARCHIVE = ("chains", "objects", "messages", "bytes")
_OF_TABLES = ("rows", "quarantine", "waiting", "lost", "repeated", "foreign")
_OF_DEDUP = ("unique", "duplicates", "unswept")


def run(stream: str | None, *, table: bool, keys: bool, as_json: bool) -> None:
    """Verify one stream or all, print the result, and exit with 1 if there are faults. See `waybill verify --help`."""
    config = load_streams()
    with StreamsAlone() as alone:
        names = stream_names(config, stream)
        found = alone.read(names, lambda name: _verify_alone(config, name, table=table, keys=keys))
        reports = list(found.values())
        Output(as_json).show(reports, _print)
        if not all(report.is_sound for report in reports):
            raise typer.Exit(1)


def _verify_alone(config: Config, name: str, *, table: bool, keys: bool) -> VerifyReport:
    """Return the report of a stream. An unexpected exception is a fault in it, and the others are still verified.

    Raises the errors of Waybill, such as a service that does not answer.
    """
    try:
        return _verify(config, name, table=table, keys=keys)
    except WaybillError:
        raise
    except Exception as error:
        report = VerifyReport(name, config.stream(name).generation)
        report.add_unexpected(f"the check of stream {name}", error)
        return report


def _verify(config: Config, name: str, *, table: bool, keys: bool) -> VerifyReport:
    with (
        open_store(config) as store,
        open_coordinator(config, name) as coordinator,
        open_catalog(config) if table else contextlib.nullcontext() as catalog,
        _Bar.shown(name) as bar,
    ):
        return verify_stream(
            name,
            config.stream(name),
            store=store,
            read_committed=coordinator.read_committed,
            committed_tps=coordinator.list_committed().keys(),
            catalog=catalog,
            listener=bar,
            keys=keys,
        )


class _Bar:
    """Shows the progress as a bar on stderr, if stderr is a terminal."""

    def __init__(self, progress: Progress, stream: str) -> None:
        self._progress = progress
        self._stream = stream
        self._task: TaskID | None = None

    @classmethod
    @contextlib.contextmanager
    def shown(cls, stream: str) -> Iterator[_Bar]:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            yield cls(progress, stream)

    def begin(self, what: str, total: int) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(f"{self._stream}: {what}", total=max(total, 1))

    def advance(self, steps: int) -> None:
        if self._task is not None:
            self._progress.advance(self._task, steps)


def _print(reports: list[VerifyReport]) -> None:
    for report in reports:
        for fault in report.faults:
            typer.echo(f"{report.stream}: {fault}")
        for gap in report.accepted:
            typer.echo(f"{report.stream}: accepted: {gap}, by {gap.accepted_by}: {gap.reason}")
        for note in report.notes:
            typer.echo(f"{report.stream}: note: {note}")
    _print_figures(reports, _OF_ARCHIVE)
    typer.echo()
    _print_figures(reports, _OF_TABLES)
    if any(report.unique_checked for report in reports):
        typer.echo()
        _print_figures([report for report in reports if report.unique_checked], _OF_DEDUP)
    faults = sum(len(report.faults) for report in reports)
    accepted = sum(len(report.accepted) for report in reports)
    if faults:
        typer.echo(f"\nNOT SOUND: {counted(faults, 'fault')}")
    elif accepted:
        gaps = counted(accepted, "accepted gap")
        typer.echo(f"\nsound, except for {gaps}: nothing else lost, nothing repeated")
    else:
        keys = ", no key twice" if any(report.keys_checked for report in reports) else ""
        typer.echo(f"\nsound: nothing lost, nothing repeated{keys}")


def _print_figures(reports: list[VerifyReport], titles: Sequence[str]) -> None:
    """Print one table of figures. One table for archive and tables would not fit into 80 columns."""
    print_table(
        [PrintedColumn("stream"), *(PrintedColumn(title, figure=True) for title in titles)],
        ([report.stream, *(_figure(report, title) for title in titles)] for report in reports),
    )


def _figure(report: VerifyReport, title: str) -> str:
    if title in _OF_TABLES and not report.table_checked:
        return "-"
    figure = getattr(report.figures, title)
    return bytes_text(figure) if title == "bytes" else count(figure)
