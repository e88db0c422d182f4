"""Tables that can be read without colour, in a pipe and in 80 columns."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

__all__ = ["Column", "bytes_text", "count", "print_json", "print_table", "time_text"]

_UNBOUNDED = 10_000
_GAP = 2
_MIN_NAME = 24
_UNITS = ("KB", "MB", "GB", "TB", "PB")


@dataclass(frozen=True)
class Column:
    """A column: figures are to the right and never broken; names may go on in the next line, but are never cut."""

    title: str
    figure: bool = False


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """A table on stdout: as wide as the terminal, or as wide as it needs to be where there is none.

    Names go on in the next line where the terminal is narrow. What cannot be broken makes the table wider than the
    terminal rather than be cut.
    """
    cells = [[column.title for column in columns], *rows]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
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
    console.width = max(console.width, _needed(columns, cells)) if sys.stdout.isatty() else _UNBOUNDED
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        typer.echo(line.rstrip())


def _needed(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> int:
    """The width below which a figure would be cut, or a name broken into pieces too small to read."""
    widths = (max(map(len, column)) for column in zip(*cells, strict=True))
    return sum(
        _GAP + (width if column.figure else min(width, _MIN_NAME))
        for column, width in zip(columns, widths, strict=True)
    )


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def count(number: int | None) -> str:
    """A figure with separators; `-` for none."""
    return "-" if number is None else f"{number:,}"


def bytes_text(size: int) -> str:
    """Bytes for people: `18.2 MB`."""
    if size < 1000:
        return f"{size} B"
    amount, units = size / 1000, iter(_UNITS)
    unit = next(units)
    while amount >= 999.95 and (larger := next(units, None)):
        amount, unit = amount / 1000, larger
    return f"{amount:.1f} {unit}"


def time_text(moment: datetime) -> str:
    """To the second, in UTC: `2026-01-31T00:00:00Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
