"""Commands about tables: quarantine, generations, audits, dedup, the ledger, verification."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from waybill.interfaces.cli.commands.options import AsJson, By, LedgerBy, Reason, StreamName, option
from waybill.interfaces.operations import parameters as p
from waybill.interfaces.operations.catalogue import REJECT, RELEASE

app = typer.Typer()
quarantine_app = typer.Typer(help="List, show and retry messages that could not be parsed.", no_args_is_help=True)
app.add_typer(quarantine_app, name="quarantine")
generation_app = typer.Typer(help="Generations of a stream, and which one consumers read.", no_args_is_help=True)
app.add_typer(generation_app, name="generation")
quality_app = typer.Typer(help="Audits: what was checked of the rows of each run.", no_args_is_help=True)
app.add_typer(quality_app, name="quality")
dedup_app = typer.Typer(help="State of deduplication, and its key index.", no_args_is_help=True)
app.add_typer(dedup_app, name="dedup")


OfReason = Annotated[list[str] | None, option(p.REASONS)]
OfTopicPartition = Annotated[list[str] | None, option(p.TARGETS)]
FromOffset = Annotated[int | None, option(p.FIRST_OFFSET)]
ToOffset = Annotated[int | None, option(p.LAST_OFFSET)]
HeldPlan = Annotated[str | None, option(p.PLAN)]


@quarantine_app.command("ls")
def quarantine_ls(
    stream: StreamName,
    reason: OfReason = None,
    topic_partition: OfTopicPartition = None,
    as_json: AsJson = False,
) -> None:
    """Count the messages in quarantine by reason, parser and topic; `first` and `last` are PARTITION@OFFSET."""
    from waybill.interfaces.cli import quarantine as command
    from waybill.tables.quarantine.row_filter import RowFilter

    choice = RowFilter.parse(reasons=reason or (), targets=topic_partition or ())
    command.list_groups(stream, choice, as_json=as_json)


@quarantine_app.command("show")
def quarantine_show(
    stream: StreamName,
    messages: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC[/PARTITION[@OFFSET]]]...", help="Only these.")
    ] = None,
    reason: OfReason = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many messages.")] = 10,
    raw: Annotated[bool, typer.Option("--raw", help="Write one message's value, and nothing else.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Print messages in quarantine: reason, offset, key, headers, and the value as text or in hexadecimal."""
    from waybill.interfaces.cli import quarantine as command
    from waybill.tables.quarantine.row_filter import RowFilter

    choice = RowFilter.parse(reasons=reason or (), targets=messages or ())
    command.show_messages(stream, choice, limit=limit, raw=raw, as_json=as_json)


@quarantine_app.command("retry")
def quarantine_retry(
    stream: StreamName,
    reason: OfReason = None,
    topic_partition: OfTopicPartition = None,
    from_offset: FromOffset = None,
    to_offset: ToOffset = None,
    dry_run: Annotated[bool, option(p.DRY_RUN)] = False,
    accepted: Annotated[str | None, option(p.ACCEPTED_BECAUSE)] = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Parse messages again with the current config. Those that can be parsed move to the table, exactly once.

    The rows are audited first. If a critical check fails, nothing is moved.
    """
    from waybill.interfaces.cli import quarantine as command
    from waybill.tables.quarantine.row_filter import RowFilter

    choice = RowFilter.parse(
        reasons=reason or (), targets=topic_partition or (), first_offset=from_offset, last_offset=to_offset
    )
    values = {
        "stream": stream,
        "reasons": reason,
        "topic_partitions": topic_partition,
        "first_offset": from_offset,
        "last_offset": to_offset,
        "accept_failed_checks": accepted,
    }
    command.run_retry(stream, choice, values, dry_run=dry_run, accepted_because=accepted, by=by, as_json=as_json)


@generation_app.command("ls")
def generation_ls(stream: StreamName, as_json: AsJson = False) -> None:
    """Print the generations that the table of a stream holds, and which one is live."""
    from waybill.interfaces.cli import generations

    generations.list_generations(stream, as_json=as_json)


@generation_app.command("promote")
def generation_promote(
    stream: StreamName,
    reason: Reason,
    to: Annotated[int | None, option(p.TO_GENERATION)] = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Let consumers read another generation of a stream. To undo it, promote the earlier generation again."""
    from waybill.interfaces.cli import generations

    generations.run_promote(stream, to, reason=reason, by=by, as_json=as_json)


@quality_app.command("show")
def quality_show(
    stream: StreamName,
    plan: Annotated[str | None, typer.Option("--plan", help="The plan; default: that of the last audit.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the results of the last audit: each check, what was observed, and examples of failed rows."""
    from waybill.interfaces.cli import quality as command

    command.show(stream, plan, as_json=as_json)


@quality_app.command("history")
def quality_history(
    stream: StreamName,
    since: Annotated[str, typer.Option("--since", metavar="DURATION", help="How far back: 24h, 30d.")] = "7d",
    as_json: AsJson = False,
) -> None:
    """List the audits of a stream, newest first, with the checks that failed."""
    from waybill.interfaces.cli import quality as command

    command.history(stream, since, as_json=as_json)


@quality_app.command("release")
def quality_release(
    stream: StreamName,
    reason: Reason,
    by: By = None,
    plan: HeldPlan = None,
    as_json: AsJson = False,
) -> None:
    """Publish the held rows of a stream as they are. The decision is stored with who made it, when and why."""
    from waybill.interfaces.cli import quality as command

    command.decide(RELEASE, stream, reason=reason, by=by, plan=plan, as_json=as_json)


@quality_app.command("reject")
def quality_reject(
    stream: StreamName,
    reason: Reason,
    by: By = None,
    plan: HeldPlan = None,
    as_json: AsJson = False,
) -> None:
    """Drop the held rows of a stream. The next run parses the same messages again, with the config of that time."""
    from waybill.interfaces.cli import quality as command

    command.decide(REJECT, stream, reason=reason, by=by, plan=plan, as_json=as_json)


@dedup_app.command("status")
def dedup_status(
    stream: Annotated[str | None, typer.Argument(help="The stream; default: all with dedup.")] = None,
    last: Annotated[
        str,
        typer.Option("--last", metavar="DURATION", help="Count duplicates so far before the newest row: 36h."),
    ] = "24h",
    as_json: AsJson = False,
) -> None:
    """Print the last sweep, the window, the size of the key index, and the duplicates by hour."""
    from waybill.interfaces.cli import dedup as command

    command.run_status(stream, last, as_json=as_json)


@dedup_app.command("rebuild")
def dedup_rebuild(stream: StreamName, as_json: AsJson = False) -> None:
    """Rebuild the key index from the unique table. Sweeps may run meanwhile; their results do not change."""
    from waybill.interfaces.cli import dedup as command

    command.run_rebuild(stream, as_json=as_json)


@dedup_app.command("merge")
def dedup_merge(stream: StreamName, as_json: AsJson = False) -> None:
    """Merge small sorted runs of the key index, as the DAG does after each sweep. Sweeps may run meanwhile."""
    from waybill.interfaces.cli import dedup as command

    command.run_merge(stream, as_json=as_json)


@app.command()
def lateness(
    stream: StreamName,
    since: Annotated[str, typer.Option("--since", metavar="DURATION", help="Of commits since then: 36h, 7d.")] = "7d",
    as_json: AsJson = False,
) -> None:
    """Print how late rows arrive: Kafka's timestamp minus the event time, from the table's snapshots."""
    from waybill.interfaces.cli import lateness as command

    command.run(stream, since, as_json=as_json)


@app.command()
def finalize(
    stream: Annotated[str, typer.Argument(help="The stream; its sink must be `files`.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")] = False,
    all_hours: Annotated[bool, typer.Option("--all", help="Also print the hours that were final before.")] = False,
    as_json: AsJson = False,
) -> None:
    """Mark the final hours of a `files` sink with `_SUCCESS`. Exit code 1: the files of an hour are not as recorded."""
    from waybill.interfaces.cli import finalize as command

    command.run(stream, dry_run=dry_run, all_hours=all_hours, as_json=as_json)


@app.command()
def ledger(
    stream: Annotated[str, typer.Argument(metavar="STREAM|check", help="The stream; or check, and a file.")],
    file: Annotated[Path | None, typer.Argument(help="With check: the signed ledger.")] = None,
    by: Annotated[LedgerBy, typer.Option("--by", help="A line for each.")] = LedgerBy.TOPIC_PARTITION,
    since: Annotated[
        datetime | None, typer.Option("--since", formats=["%Y-%m-%d"], help="Only archived on this day (UTC) or later.")
    ] = None,
    until: Annotated[
        datetime | None, typer.Option("--until", formats=["%Y-%m-%d"], help="Only archived on this day or earlier.")
    ] = None,
    kafka: Annotated[bool, typer.Option("--kafka/--no-kafka", help="Ask Kafka for what is not archived yet.")] = True,
    read_objects: Annotated[
        bool, typer.Option("--read-objects", help="Also count the messages in the backup objects.")
    ] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Also store the result for the watch, which tells of an imbalance.")
    ] = False,
    as_json: AsJson = False,
    sign: Annotated[
        str | None, typer.Option("--sign", metavar="CONNECTION", help="Print signed JSON; the key is its password.")
    ] = None,
    public_key: Annotated[
        str | None, typer.Option("--public-key", metavar="KEY|FILE", help="With check: the key it must be signed with.")
    ] = None,
) -> None:
    """Balance the log, the archive and the tables, by topic-partition or day. Exit code 1 if they do not balance.

    `waybill ledger check FILE` checks the signature of a ledger that was printed with --sign.
    """
    from waybill.interfaces.cli import ledger as command

    if file is not None:
        if stream != "check":
            raise typer.BadParameter(f"a file follows `check`, not {stream!r}")
        command.run_check(file, public_key)
        return
    if public_key is not None:
        raise typer.BadParameter("--public-key belongs to `waybill ledger check FILE`")
    command.run(
        stream,
        by=by,
        days=command.Range(since.date() if since else None, until.date() if until else None),
        kafka=kafka,
        read_objects=read_objects,
        record=record,
        as_json=as_json,
        sign_with=sign,
    )


@app.command()
def verify(
    stream: Annotated[str | None, typer.Argument(help="The stream; default: all streams.")] = None,
    table: Annotated[bool, typer.Option("--table/--no-table", help="Compare the tables with the chains.")] = True,
    keys: Annotated[
        bool, typer.Option("--keys", help="Also check that dedup found exactly the duplicates. Reads all keys.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read the whole archive and compare the tables with it. Exit code 1 unless each offset is there exactly once."""
    from waybill.interfaces.cli import verify as command

    command.run(stream, table=table, keys=keys, as_json=as_json)
