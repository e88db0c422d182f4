"""The commands `waybill backfill …`."""

from __future__ import annotations

from typing import Annotated

import typer

from waybill.interfaces.cli.commands.options import AsJson, By, Reason, StreamName, argument, option
from waybill.interfaces.operations import parameters as p

app = typer.Typer()
backfill_app = typer.Typer(help="Build a range of a table again, compare, promote, undo.", no_args_is_help=True)
app.add_typer(backfill_app, name="backfill")


OfOffsets = Annotated[list[str] | None, option(p.OFFSETS)]
OfWholePartition = Annotated[list[str] | None, option(p.TOPIC_PARTITIONS)]
Since = Annotated[str | None, option(p.SINCE)]
Until = Annotated[str | None, option(p.UNTIL)]
Everything = Annotated[bool, option(p.EVERYTHING)]
OfGeneration = Annotated[int | None, option(p.BACKFILL_GENERATION)]
Source = Annotated[str, option(p.SOURCE)]
BackfillId = Annotated[str, argument(p.BACKFILL)]


@backfill_app.command("plan")
def backfill_plan(
    stream: StreamName,
    offsets: OfOffsets = None,
    topic_partition: OfWholePartition = None,
    since: Since = None,
    until: Until = None,
    everything: Everything = False,
    generation: OfGeneration = None,
    source: Source = "archive",
    as_json: AsJson = False,
) -> None:
    """Print what a backfill would read and how long it would take. Nothing is stored."""
    from waybill.interfaces.cli import backfill as command
    from waybill.tables.backfill.choice import RangeChoice

    choice = RangeChoice.parse(
        offsets=offsets or (),
        topic_partitions=topic_partition or (),
        since=since,
        until=until,
        everything=everything,
    )
    command.run_plan(stream, choice, generation=generation, source=source, as_json=as_json)


@backfill_app.command("run")
def backfill_run(
    stream: StreamName,
    offsets: OfOffsets = None,
    topic_partition: OfWholePartition = None,
    since: Since = None,
    until: Until = None,
    everything: Everything = False,
    generation: OfGeneration = None,
    source: Source = "archive",
    reason: Annotated[str | None, option(p.REQUEST_REASON)] = None,
    by: By = None,
    continued: Annotated[str | None, option(p.CONTINUED_BACKFILL)] = None,
    rate: Annotated[str | None, option(p.RATE)] = None,
    as_json: AsJson = False,
) -> None:
    """Build a range again with the present config, on a branch of the table, in this process. Consumers see nothing.

    The rows are audited and compared with those of the table. `promote` then replaces the table's rows.
    """
    from waybill.interfaces.cli import backfill as command
    from waybill.tables.backfill.choice import RangeChoice

    chosen = None
    values: dict[str, object] = {"generation": generation, "source": source, "rate": rate}
    if continued is None:
        chosen = RangeChoice.parse(
            offsets=offsets or (),
            topic_partitions=topic_partition or (),
            since=since,
            until=until,
            everything=everything,
        )
        values.update(
            offsets=offsets, topic_partitions=topic_partition, since=since, until=until, everything=everything
        )
    command.run_build(
        stream,
        chosen,
        continued,
        generation=generation,
        source=source,
        reason=reason,
        by=by,
        rate=rate,
        values=values,
        as_json=as_json,
    )


@backfill_app.command("status")
def backfill_status(
    stream: Annotated[str | None, typer.Argument(help="The stream; default: all.")] = None,
    backfill: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Only this one, with all that is known.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List backfills: state, tasks, who requested them and why."""
    from waybill.interfaces.cli import backfill as command

    command.print_status(stream, backfill, as_json=as_json)


@backfill_app.command("diff")
def backfill_diff(stream: StreamName, backfill: BackfillId, as_json: AsJson = False) -> None:
    """Print what the promotion of a backfill changes: messages by kind, column and hour, with examples."""
    from waybill.interfaces.cli import backfill as command

    command.print_diff(stream, backfill, as_json=as_json)


@backfill_app.command("promote")
def backfill_promote(
    stream: StreamName,
    backfill: BackfillId,
    reason: Reason,
    by: By = None,
    accept_failed_checks: Annotated[bool, option(p.ACCEPT_FAILED_CHECKS)] = False,
    as_json: AsJson = False,
) -> None:
    """Replace the table's rows of the range by those of the backfill. What was appended meanwhile stays."""
    from waybill.interfaces.cli import backfill as command
    from waybill.tables.backfill.states import BackfillAction

    command.run_change(
        BackfillAction.PROMOTE,
        stream,
        backfill,
        reason=reason,
        by=by,
        accept_failed_checks=accept_failed_checks,
        as_json=as_json,
    )


@backfill_app.command("undo")
def backfill_undo(
    stream: StreamName,
    backfill: BackfillId,
    reason: Reason,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Restore the rows that a promotion replaced, within 7 days. What was appended since stays."""
    from waybill.interfaces.cli import backfill as command
    from waybill.tables.backfill.states import BackfillAction

    command.run_change(BackfillAction.UNDO, stream, backfill, reason=reason, by=by, as_json=as_json)


@backfill_app.command("cancel")
def backfill_cancel(
    stream: StreamName,
    backfill: BackfillId,
    reason: Reason,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Give up a backfill that is not promoted: its branches are removed, and others may be requested."""
    from waybill.interfaces.cli import backfill as command
    from waybill.tables.backfill.states import BackfillAction

    command.run_change(BackfillAction.CANCEL, stream, backfill, reason=reason, by=by, as_json=as_json)
