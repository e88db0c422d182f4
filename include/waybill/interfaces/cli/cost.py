"""`waybill cost`: what a stream costs by day and by million messages, and what other upload limits would change."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta

import typer

from waybill.base.metering import Tally
from waybill.config.models.quantities import counted
from waybill.interfaces.cli.render import Output, PrintedColumn, bytes_text, count, print_table
from waybill.interfaces.cli.targets import load_streams, parse_duration_option, parse_size_option
from waybill.services.coordination import UsageStore, ZooKeeperSession
from waybill.tables.staging.services import services_of
from waybill.watch.cost import CostPeriod, CostReport, RequestKind, kind_of, read_cost
from waybill.watch.cost.cost_report import WhatIf

_DEFAULT_DAYS = 7


def run(
    stream: str, *, since: str | None, until: str | None, max_bytes: str | None, max_age: str | None, as_json: bool
) -> None:
    """Print what a stream costs. See `waybill cost --help`."""
    config = load_streams()
    config.stream(stream)
    now = datetime.now(UTC)
    last = now.date() if until is None else _day("--until", until)
    first = last - timedelta(days=_DEFAULT_DAYS - 1) if since is None else _day("--since", since)
    if first > last:
        raise typer.BadParameter(f"{first} is after {last}", param_hint="--since")
    size = None if max_bytes is None else parse_size_option("--max-bytes", max_bytes)
    age = None if max_age is None else parse_duration_option("--max-age", max_age)
    with services_of(config) as services, ZooKeeperSession.of(config) as session:
        usage = UsageStore(session, config.zookeeper.root)
        report = read_cost(config, stream, services, usage, CostPeriod(first, last), now, max_bytes=size, max_age=age)
    Output(as_json).show(report, print_cost)


def _day(option: str, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no day such as 2026-11-23", param_hint=option) from None


# --- the printed tables -----------------------------------------------------------------------------------------------


def print_cost(report: CostReport) -> None:
    """Print the days, the requests, the CPU seconds, what is stored, and the upload limits."""
    if not report.by_day:
        typer.echo(f"no process has stored usage of {report.stream} from {report.period.first} to {report.period.last}")
    else:
        _print_days(report)
        typer.echo()
        _print_rates(report, "request", {name: float(each) for name, each in report.total.requests.items()})
        typer.echo()
        _print_rates(report, "CPU seconds", report.total.cpu_seconds)
    typer.echo()
    print_table(
        [PrintedColumn("stored now"), PrintedColumn("bytes", figure=True)],
        [[name, bytes_text(size)] for name, size in report.stored_bytes.items()],
    )
    typer.echo()
    _print_limits(report)


def _print_days(report: CostReport) -> None:
    titles = ("messages", *RequestKind, "sent", "received", "CPU s")
    rows = [[day.isoformat(), *_day_cells(tally)] for day, tally in report.by_day.items()]
    if len(rows) > 1:
        rows.append(["total", *_day_cells(report.total)])
    print_table([PrintedColumn("day"), *(PrintedColumn(title, figure=True) for title in titles)], rows)


def _day_cells(tally: Tally) -> list[str]:
    kinds: Counter[RequestKind] = Counter()
    for operation, number in tally.requests.items():
        kinds[kind_of(operation)] += number
    return [
        count(tally.messages),
        *(count(kinds[kind]) for kind in RequestKind),
        bytes_text(tally.sent_bytes),
        bytes_text(tally.received_bytes),
        f"{sum(tally.cpu_seconds.values()):,.1f}",
    ]


def _print_rates(report: CostReport, title: str, figures: dict[str, float]) -> None:
    columns = [
        PrintedColumn(title),
        *(PrintedColumn(each, figure=True) for each in ("total", "per day", "per million messages")),
    ]
    figures = {name: figure for name, figure in sorted(figures.items()) if figure}
    rows = [
        [name, _figure(figure), _figure(report.per_day(figure)), _figure(report.per_million(figure))]
        for name, figure in {**figures, "all": sum(figures.values())}.items()
    ]
    print_table(columns, rows)


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.1f}"


def _print_limits(report: CostReport) -> None:
    columns = ["objects", "writes", "writes per day", "counted"]
    present = _limits_row(report, "present limits", report.present)
    rows = [[*present, count(report.counted_writes) if report.by_day else "-"]]
    if report.other is not None:
        limits = next(iter(report.other.limits.values()), None)
        name = "other limits" if limits is None else f"{bytes_text(limits.max_bytes)}, {limits.max_age_ms // 1000} s"
        rows.append([*_limits_row(report, name, report.other), "-"])
    print_table([PrintedColumn("upload limits"), *(PrintedColumn(title, figure=True) for title in columns)], rows)
    if report.other is not None:
        more = report.other.predicted.requests - report.present.predicted.requests
        typer.echo(f"{counted(abs(more), 'write')} {'more' if more >= 0 else 'fewer'} in this period")


def _limits_row(report: CostReport, name: str, found: WhatIf) -> list[str]:
    days = max(report.days, 1 / 24) if report.days else None
    per_day = None if days is None else found.predicted.requests / days
    return [name, count(found.predicted.objects), count(found.predicted.requests), _figure(per_day)]
