"""What the commands print: tables that stay readable in a pipe and in 80 columns, JSON, figures and times as text.

`Output` takes what a command found, and prints it as a table, as lines, or as JSON.
"""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from waybill.base.printable import printable

_WIDTH_WITHOUT_TERMINAL = 10_000
_COLUMN_DISTANCE = 2
_MIN_NAME_WIDTH = 24
_UNITS = ("KB", "MB", "GB", "TB", "PB")

_T = TypeVar("_T")


# --- what a command found ---------------------------------------------------------------------------------------------


class Reported(Protocol):
    """What has a JSON document, and a text of lines."""

    def document(self) -> Any: ...

    def lines(self) -> Iterable[str]: ...


@dataclass(frozen=True)
class TableColumn(Generic[_T]):
    """A column of a table with a line for each `_T`: its title, and the text of a cell."""

    title: str
    cell: Callable[[_T], str]
    figure: bool = False


def _document(found: Any) -> Any:
    return [each.document() for each in found] if isinstance(found, Sequence) else found.document()


@dataclass(frozen=True)
class Output:
    """Prints what a command found: its JSON with `--json`, else a text for people."""

    as_json: bool

    def show(self, found: _T, text: Callable[[_T], object], document: Callable[[_T], Any] = _document) -> None:
        """Print the JSON of what was found, or let `text` print it.

        `document` makes the JSON. By default it is the document of what was found, or those of a list.
        """
        if self.as_json:
            print_json(document(found))
        else:
            text(found)

    def report(self, found: Reported) -> None:
        """Print the JSON document of a report, or its lines."""
        self.show(found, print_lines)

    def table(self, found: Sequence[_T], columns: Sequence[TableColumn[_T]], *, none: str) -> None:
        """Print the JSON documents of a list, or a table. `none` is printed to stderr in place of an empty table."""
        if self.as_json:
            print_json(_document(found))
        elif found:
            print_rows(columns, found)
        else:
            typer.echo(none, err=True)


def print_lines(found: Reported) -> None:
    """Print a report as a text."""
    for line in found.lines():
        typer.echo(line)


def print_rows(columns: Sequence[TableColumn[_T]], rows: Iterable[_T]) -> None:
    """Print a table with a line for each of `rows`; see `print_table`."""
    titles = [PrintedColumn(column.title, column.figure) for column in columns]
    print_table(titles, ([column.cell(row) for column in columns] for row in rows))


# --- tables and JSON --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PrintedColumn:
    """A column of a table.

    Figures are aligned to the right and never broken. Names are wrapped to the next line if the terminal is narrow, but
    never cut.
    """

    title: str
    figure: bool = False


def print_table(columns: Sequence[PrintedColumn], rows: Iterable[Sequence[str]]) -> None:
    """Print a table to stdout: as wide as the terminal, or as wide as it needs to be if stdout is no terminal.

    A cell that cannot be wrapped makes the table wider than the terminal; it is not cut.
    """
    cells = [[column.title for column in columns], *([printable(cell) for cell in row] for row in rows)]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _COLUMN_DISTANCE, 0, 0))
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.figure else "left",
            no_wrap=column.figure,
            overflow="fold",
        )
    for row in cells[1:]:
        table.add_row(*row)
    console = Console(highlight=False, markup=False)
    is_terminal = sys.stdout.isatty()
    console.width = max(console.width, _min_width(columns, cells)) if is_terminal else _WIDTH_WITHOUT_TERMINAL
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        typer.echo(line.rstrip())


def _min_width(columns: Sequence[PrintedColumn], cells: Sequence[Sequence[str]]) -> int:
    """Return the width below which a figure would be cut, or a name wrapped into pieces too small to read."""
    widths = (max(map(len, column)) for column in zip(*cells, strict=True))
    return sum(
        _COLUMN_DISTANCE + (width if column.figure else min(width, _MIN_NAME_WIDTH))
        for column, width in zip(columns, widths, strict=True)
    )


def print_json(document: Any) -> None:
    """Print one JSON document to stdout."""
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


# --- values as text ---------------------------------------------------------------------------------------------------


def count(number: int | None) -> str:
    """Return a number with thousands separators; `-` for None."""
    return "-" if number is None else f"{number:,}"


def bytes_text(size: int) -> str:
    """Return a size in bytes as text for people: `18.2 MB`."""
    if size < 1000:
        return f"{size} B"
    amount, units = size / 1000, iter(_UNITS)
    unit = next(units)
    while amount >= 999.95 and (larger := next(units, None)):
        amount, unit = amount / 1000, larger
    return f"{amount:.1f} {unit}"


def bytes_document(data: bytes | None) -> str | dict[str, str] | None:
    """Return bytes as a JSON value: text if they are UTF-8, else `{"base64": …}`."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def time_text(moment: datetime) -> str:
    """Return a time in UTC, cut to seconds: `2026-01-31T00:00:00Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def time_text_of(epoch_ms: int) -> str:
    """Return a time in epoch ms as `time_text` does."""
    return time_text(datetime.fromtimestamp(epoch_ms / 1000, UTC))


def time_text_ms(moment: datetime) -> str:
    """Return a time in UTC, cut to milliseconds: `2026-01-31T00:00:00.000Z`."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
