"""`waybill quality`: print the results of audits, and decide about held runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import Any

import typer

from waybill.base.errors import ConfigError
from waybill.config.models.enums import Severity
from waybill.config.models.quantities import counted, format_duration
from waybill.interfaces.cli.render import Output, PrintedColumn, count, print_json, print_table, time_text
from waybill.interfaces.cli.targets import load_streams, make_decision, open_catalog, parse_duration_option
from waybill.interfaces.operations.audit_log import logged
from waybill.interfaces.operations.declaration import Operation
from waybill.tables.audit.decisions import DecisionKind

_Row = Mapping[str, Any]


def show(stream: str, plan: str | None, *, as_json: bool) -> None:
    """Print the results of one audit; see `waybill quality show --help`."""
    audits = _by_audit(_read(stream, plan=plan))
    if not audits:
        named = "" if plan is None else f" of plan {plan}"
        raise ConfigError(f"stream {stream!r} has no audit{named}: waybill quality history {stream} lists them")
    results = audits[-1]
    Output(as_json).show(results, partial(_print, stream), _document)


def history(stream: str, since: str, *, as_json: bool) -> None:
    """Print the audits of a stream, newest first; see `waybill quality history --help`."""
    span = parse_duration_option("--since", since)
    audits = list(reversed(_by_audit(_read(stream, since=datetime.now(UTC) - span))))
    if as_json:
        print_json([_document(results) for results in audits])
        return
    if audits:
        columns = [
            PrintedColumn("checked at"),
            PrintedColumn("plan"),
            PrintedColumn("checks", figure=True),
            PrintedColumn("failed"),
        ]
        print_table(columns, (_line(results) for results in audits))
    print(f"{stream}, last {format_duration(span)}: {counted(len(audits), 'audit')}", file=sys.stderr)


def decide(operation: Operation, stream: str, *, reason: str, by: str | None, plan: str | None, as_json: bool) -> None:
    """Release or reject the held run of a stream; see `waybill quality release --help` and `reject --help`."""
    decision = make_decision(reason, by)
    config = load_streams()
    config.stream(stream)
    from waybill.tables.partition.holds import decide_hold

    kind = DecisionKind.of(operation.name)
    with logged(config, operation, decision, {"stream": stream, "plan": plan}) as done:
        hold = decide_hold(config, stream, kind, by=decision.by, reason=decision.reason, plan=plan)
        done.text = f"plan {hold.plan.id} is {kind}"
    if as_json:
        print_json(hold.document())
        return
    then = {
        "released": "are published. The next run continues after them.",
        "rejected": "are dropped. The next run parses the same messages again, with the config of that time.",
    }
    held = f"{count(hold.staged.rows)} rows and {count(hold.staged.quarantined)} quarantined messages"
    typer.echo(f"{kind} {stream}: {held} {then[kind]}")


def _read(stream: str, *, since: datetime | None = None, plan: str | None = None) -> list[dict[str, Any]]:
    config = load_streams()
    config.stream(stream)  # an unknown stream is an error, not an empty list
    from waybill.tables.audit.results_table import read_results

    with open_catalog(config) as catalog:
        return read_results(catalog, stream, since=since, plan=plan)


def _by_audit(rows: Sequence[_Row]) -> list[list[_Row]]:
    """Return the results of each audit, oldest first."""
    ordered = sorted(rows, key=_audit_of)
    return [list(results) for _, results in groupby(ordered, key=_audit_of)]


def _audit_of(row: _Row) -> tuple[datetime, str, str]:
    return row["checked_at"], row["plan"], row["run"]


def _document(results: Sequence[_Row]) -> dict[str, Any]:
    first = results[0]
    return {
        "stream": first["stream"],
        "generation": first["generation"],
        "run": first["run"],
        "plan": first["plan"],
        "snapshot": first["snapshot"],
        "checked_at": first["checked_at"].isoformat(),
        "data_docs": first["data_docs"],
        "results": [
            {
                "expectation": row["expectation"],
                "arguments": json.loads(row["arguments"]),
                "severity": row["severity"],
                "success": row["success"],
                "observed_value": row["observed_value"],
                "unexpected_count": row["unexpected_count"],
                "examples": row["examples"],
            }
            for row in results
        ],
    }


def _print(stream: str, results: Sequence[_Row]) -> None:
    first = results[0]
    failed = [row for row in results if not row["success"]]
    columns = [PrintedColumn("result"), PrintedColumn("check"), PrintedColumn("observed")]
    ordered = sorted(results, key=lambda row: (row["success"], list(Severity).index(Severity(row["severity"]))))
    print_table(columns, ([_verdict(row), _check_text(row), row["observed_value"] or "-"] for row in ordered))
    for row in failed:
        for example in row["examples"]:
            typer.echo(f"  {row['expectation']}: {example}")
    if first["data_docs"] is not None:
        typer.echo(f"Data Docs: {first['data_docs']}")
    print(
        f"{stream}: audit of plan {first['plan']} at {time_text(first['checked_at'])}: "
        f"{counted(len(results), 'check')}, {len(failed):,} failed",
        file=sys.stderr,
    )


def _verdict(row: _Row) -> str:
    return "ok" if row["success"] else f"failed ({row['severity']})"


def _check_text(row: _Row) -> str:
    arguments = json.loads(row["arguments"])
    return f"{row['expectation']}({', '.join(f'{name}={_value_text(value)}' for name, value in arguments.items())})"


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _line(results: Sequence[_Row]) -> list[str]:
    failed = [row for row in results if not row["success"]]
    names = ", ".join(f"{row['expectation']} ({row['severity']})" for row in failed)
    return [time_text(results[0]["checked_at"]), results[0]["plan"], count(len(results)), names or "-"]
