"""The commands `waybill backfill …`."""

from __future__ import annotations

from typing import Annotated

import typer

from waybill.interfaces.cli.commands.options import AsJson, By, Reason, StreamName

app = typer.Typer()
backfill_app = typer.Typer(help="Build a range of a table again, compare, promote, undo.", no_args_is_help=True)
app.add_typer(backfill_app, name="backfill")


OfOffsets = Annotated[
    list[str] | None,
    typer.Option("--offsets", metavar="TOPIC/PARTITION@FIRST-LAST", help="flights/0@100-199; repeatable."),
]
OfWholePartition = Annotated[
    list[str] | None, typer.Option("--topic-partition", metavar="TOPIC/PARTITION", help="Only these; repeatable.")
]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Messages by Kafka's timestamp: 2026-11-22T10:00:00Z.")
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Not included.")]
Everything = Annotated[bool, typer.Option("--all", help="Everything that the table has.")]
OfGeneration = Annotated[
    int | None,
    typer.Option(
        "--generation", min=0, help="Another generation of the table than the stream's; one that is not live is built."
    ),
]
Source = Annotated[
    str, typer.Option("--source", help="`archive`, or `kafka`: archive again, into a generation that is not live.")
]
BackfillId = Annotated[str, typer.Argument(metavar="ID", help="The backfill, as `waybill backfill status` shows it.")]


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
    from waybill.tables.backfill import RangeChoice

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
    reason: Annotated[str | None, typer.Option("--reason", help="Why; it is stored with the request.")] = None,
    by: By = None,
    continued: Annotated[str | None, typer.Option("--id", help="Continue this backfill instead.")] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="SIZE", help="At most so much of the archive a second: 10MiB.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build a range again with the present config, on a branch of the table, in this process. Consumers see nothing.

    The rows are audited and compared with those of the table. `promote` then replaces the table's rows.
    """
    from waybill.interfaces.cli import backfill as command
    from waybill.tables.backfill import RangeChoice

    chosen = None
    if continued is None:
        chosen = RangeChoice.parse(
            offsets=offsets or (),
            topic_partitions=topic_partition or (),
            since=since,
            until=until,
            everything=everything,
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
    accept_failed_checks: Annotated[
        bool, typer.Option("--accept-failed-checks", help="Promote even though a critical check has failed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Replace the table's rows of the range by those of the backfill. What was appended meanwhile stays."""
    from waybill.interfaces.cli import backfill as command
    from waybill.tables.backfill import BackfillAction

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
    from waybill.tables.backfill import BackfillAction

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
    from waybill.tables.backfill import BackfillAction

    command.run_change(BackfillAction.CANCEL, stream, backfill, reason=reason, by=by, as_json=as_json)
