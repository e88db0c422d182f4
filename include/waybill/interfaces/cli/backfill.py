"""`waybill backfill`: plan, build, compare, promote, undo and cancel backfills."""

from __future__ import annotations

from collections.abc import Mapping

import typer

from waybill.base.errors import BackfillRefused
from waybill.config.models import Config
from waybill.config.models.quantities import parse_size
from waybill.interfaces.cli.render import Output, TableColumn, count, print_json, print_lines, time_text
from waybill.interfaces.cli.targets import current_user, load_streams, make_decision, open_store, stream_names
from waybill.interfaces.operations.audit_log import logged
from waybill.interfaces.operations.catalogue import BUILD, OPERATIONS
from waybill.interfaces.operations.declaration import OperationName
from waybill.tables.backfill.choice import RangeChoice
from waybill.tables.backfill.kinds import (
    change_backfill,
    find_backfill,
    plan_backfill,
    report_backfills,
    request_backfill,
    run_backfill,
)
from waybill.tables.backfill.planning import Trigger
from waybill.tables.backfill.report import BackfillReport, report_backfill
from waybill.tables.backfill.request import AnyRequest
from waybill.tables.backfill.states import BackfillAction


def run_plan(stream: str, choice: RangeChoice, *, generation: int | None, source: str, as_json: bool) -> None:
    """Print what a backfill would take; see `waybill backfill plan --help`."""
    trigger = Trigger(stream, choice, current_user(), "", generation, source)
    _, figures = plan_backfill(load_streams(), trigger)
    Output(as_json).report(figures)


def run_build(
    stream: str,
    choice: RangeChoice | None,
    backfill: str | None,
    *,
    generation: int | None,
    source: str,
    reason: str | None,
    by: str | None,
    rate: str | None,
    values: Mapping[str, object],
    as_json: bool,
) -> None:
    """Request and build a backfill, or continue one; see `waybill backfill run --help`.

    `values`: the given options, for the log of decisions.
    """
    config = load_streams()
    try:
        bytes_per_second = None if rate is None else parse_size(rate)
    except ValueError as error:
        raise typer.BadParameter(f"{rate!r}: {error}", param_hint="--rate") from None
    identifier = (
        backfill or _request(config, stream, choice, generation, source, reason, by, values, as_json=as_json).id
    )
    report = run_backfill(config, stream, identifier, bytes_per_second=bytes_per_second)
    Output(as_json).report(report)
    if not as_json:
        typer.echo(f"Promote it: waybill backfill promote {stream} {identifier} --reason …")


def _request(
    config: Config,
    stream: str,
    choice: RangeChoice | None,
    generation: int | None,
    source: str,
    reason: str | None,
    by: str | None,
    values: Mapping[str, object],
    *,
    as_json: bool,
) -> AnyRequest:
    if choice is None or reason is None:
        raise BackfillRefused("give --reason, and what to build again; or --id to continue a backfill")
    decision = make_decision(reason, by)
    config.stream(stream)
    trigger = Trigger(stream, choice, decision.by, decision.reason, generation, source)
    with logged(config, BUILD, decision, {"stream": stream, **values}) as done:
        request, figures = request_backfill(config, trigger)
        done.text = f"requested backfill {request.id}"
    if not as_json:
        typer.echo(
            f"requested backfill {request.id}; if this is interrupted: waybill backfill run {stream} --id {request.id}"
        )
        print_lines(figures)
    return request


def print_status(stream: str | None, backfill: str | None, *, as_json: bool) -> None:
    """Print the state of backfills; see `waybill backfill status --help`."""
    config = load_streams()
    if backfill is not None and stream is None:
        raise BackfillRefused("give the stream of the backfill")
    with open_store(config) as store:
        if stream is not None and backfill is not None:
            Output(as_json).report(report_backfill(store, find_backfill(store, config, stream, backfill)))
            return
        reports = [report for name in stream_names(config, stream) for report in report_backfills(store, name)]
    Output(as_json).table(reports, _COLUMNS, none="there is no backfill")


_COLUMNS: tuple[TableColumn[BackfillReport], ...] = (
    TableColumn("stream", lambda each: each.request.stream),
    TableColumn("id", lambda each: each.request.id),
    TableColumn("state", lambda each: str(each.state)),
    TableColumn("tasks", lambda each: each.tasks_text, figure=True),
    TableColumn("offsets", lambda each: count(each.request.ranges.offsets), figure=True),
    TableColumn("by", lambda each: each.request.by),
    TableColumn("requested", lambda each: time_text(each.request.at)),
    TableColumn("reason", lambda each: each.request.reason),
)


def print_diff(stream: str, backfill: str, *, as_json: bool) -> None:
    """Print the diff of a backfill; see `waybill backfill diff --help`."""
    config = load_streams()
    with open_store(config) as store:
        report = report_backfill(store, find_backfill(store, config, stream, backfill))
    if report.diff is None:
        raise BackfillRefused(
            f"backfill {backfill} of {stream} is not built yet: `waybill backfill run {stream} --id {backfill}` "
            f"continues"
        )
    Output(as_json).report(report.diff)


def run_change(
    action: BackfillAction,
    stream: str,
    backfill: str,
    *,
    reason: str,
    by: str | None,
    accept_failed_checks: bool = False,
    as_json: bool,
) -> None:
    """Promote, undo or cancel a backfill; see `waybill backfill promote --help`."""
    decision = make_decision(reason, by)
    config = load_streams()
    config.stream(stream)
    values = {"stream": stream, "backfill": backfill, "accept_failed_checks": accept_failed_checks}
    with logged(config, OPERATIONS[OperationName(action)], decision, values) as done:
        changed = change_backfill(
            config,
            stream,
            backfill,
            action,
            by=decision.by,
            reason=decision.reason,
            accept_failed_checks=accept_failed_checks,
        )
        done.text = str(changed.event)
    with open_store(config) as store:
        report = report_backfill(store, find_backfill(store, config, stream, backfill))
    if as_json:
        print_json({**report.document(), "done_now": changed.is_new})
        return
    event = changed.event
    already = "" if changed.is_new else f" already, by {event.by} at {time_text(event.at)}"
    typer.echo(f"{stream} {backfill}: {report.state}{already}")
