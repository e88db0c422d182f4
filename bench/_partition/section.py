"""What a section is: cases that are run and measured, the input they need, a table."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from _report import Row
from rich.console import Console
from rich.table import Table

__all__ = ["MIB", "Case", "Measured", "Section", "measure", "show"]

MIB = 1 << 20


class Measured(NamedTuple):
    """One run of a case. `bytes`: what was read."""

    messages: int
    bytes: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    extra: Mapping[str, float | str] = {}


@dataclass(frozen=True)
class Case:
    """One row of a section. `prepare` returns what is run and measured, `--repeats` times or once."""

    name: str
    case: str
    prepare: Callable[[argparse.Namespace], Callable[[], Measured]]
    once: bool = False


@dataclass(frozen=True)
class Section:
    """What `--section` names: its cases, what makes their input in Kafka and S3, and what prints their rows."""

    name: str
    cases: Callable[[argparse.Namespace], Iterator[Case]]
    make_input: Callable[[argparse.Namespace], None]
    show: Callable[[Sequence[Row]], None]
    passed_on: Callable[[], Sequence[str]] = tuple
    """Arguments that the processes of the cases need besides the script's own."""


def measure(section: Section, case: Case, arguments: argparse.Namespace) -> Row:
    """Medians over the repeats."""
    run = case.prepare(arguments)
    runs = [run() for _ in range(1 if case.once else arguments.repeats)]
    extra = {name: statistics.median(r.extra[name] for r in runs) for name, found in runs[0].extra.items()}
    return Row(
        name=case.name,
        case=case.case,
        messages=runs[0].messages,
        bytes=runs[0].bytes,
        seconds=statistics.median(r.seconds for r in runs),
        cpu_seconds=statistics.median(r.cpu_seconds for r in runs),
        peak_rss_bytes=max(r.peak_bytes for r in runs),
        extra={"section": section.name, **extra},
    )


def show(title: str, headings: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("name", "case") else "right")
    for line in lines:
        table.add_row(*line)
    Console(width=max(130, Console().width)).print(table)
