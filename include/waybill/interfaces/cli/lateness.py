"""`waybill lateness`: how late a stream's rows arrive."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import typer

from waybill.config.models.quantities import counted, format_duration
from waybill.interfaces.cli.render import PrintedColumn, count, print_json, print_table, time_text
from waybill.interfaces.cli.targets import load_streams, open_catalog, parse_duration_option

if TYPE_CHECKING:
    from waybill.tables.partition.lateness import LatenessHistory

_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def run(stream: str, since: str, *, as_json: bool) -> None:
    """Print the lateness of recently committed rows; see `waybill lateness --help`."""
    config = load_streams()
    chosen = config.stream(stream)
    span = parse_duration_option("--since", since)
    from waybill.tables.iceberg import load_tables
    from waybill.tables.partition.lateness import LatenessHistory

    with open_catalog(config) as catalog:
        tables = load_tables(catalog, chosen)
    name = chosen.table
    begins = datetime.now(UTC) - span
    history = LatenessHistory([], None) if tables is None else LatenessHistory.of(tables.main.metadata, name, begins)
    if as_json:
        print_json({"stream": stream, "table": name, "since": begins.isoformat(), **history.document()})
    else:
        _print(stream, span, begins, history)


def _print(stream: str, span: timedelta, begins: datetime, history: LatenessHistory) -> None:
    from waybill.tables.partition.lateness import BOUNDS_SECONDS, DAY_SECONDS, HOUR_SECONDS

    total = history.total
    if total.known:
        words = ["not late", *(f"up to {duration_text(bound)}" for bound in BOUNDS_SECONDS[1:])]
        words.append(f"more than {duration_text(BOUNDS_SECONDS[-1])}")
        rows = zip(words, total.rows, strict=True)
        columns = [PrintedColumn("late"), PrintedColumn("rows", figure=True), PrintedColumn("share", figure=True)]
        print_table(columns, ((word, count(n), f"{n / total.known:.2%}") for word, n in rows))
    late = [commit for commit in history.commits if commit.lateness.later_than(HOUR_SECONDS)]
    if late:
        typer.echo()
        titles = ("rows", "more than 1 h", "more than 1 d", "latest")
        print_table(
            [PrintedColumn("run of"), *(PrintedColumn(title, figure=True) for title in titles)],
            (
                (
                    time_text(commit.at),
                    count(commit.lateness.known + commit.lateness.unknown),
                    count(commit.lateness.later_than(HOUR_SECONDS)),
                    count(commit.lateness.later_than(DAY_SECONDS)),
                    duration_text(commit.lateness.most_seconds),
                )
                for commit in late
            ),
        )
    print(f"{stream}, last {format_duration(span)}: {_summary(history)}", file=sys.stderr)
    if history.known_since is not None and history.known_since > begins:
        print(f"older snapshots have expired: the figures begin at {time_text(history.known_since)}", file=sys.stderr)


def _summary(history: LatenessHistory) -> str:
    total = history.total
    text = f"{counted(total.known, 'row')} in {counted(len(history.commits), 'commit')}"
    quantiles = [(share, total.quantile_seconds(share)) for share in (0.5, 0.9, 0.99)]
    for share, seconds in quantiles:
        if seconds is not None:
            text += f", {share:.0%} at most {duration_text(seconds)} late"
    if total.known:
        text += f", the latest {duration_text(total.most_seconds)}"
    return text + (f"; {counted(total.unknown, 'row')} without a Kafka timestamp" if total.unknown else "")


def duration_text(seconds: int) -> str:
    """Return a duration in its two largest units: `3 d 2 h`."""
    parts = []
    for unit, length in _UNITS:
        number, seconds = divmod(seconds, length)
        if number:
            parts.append(f"{number} {unit}")
    return " ".join(parts[:2]) or "0 s"
