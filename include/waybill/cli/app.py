"""The commands and their options. Each command calls the module that implements it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from waybill import __version__
from waybill.names import Stage

__all__ = ["app"]

app = typer.Typer(
    name="waybill",
    help="Archive Kafka to S3 without losing or repeating a message, and verify it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(help="Check and describe the config.", no_args_is_help=True)
app.add_typer(config_app, name="config")
uploads_app = typer.Typer(help="Multipart uploads that killed lanes left behind.", no_args_is_help=True)
app.add_typer(uploads_app, name="uploads")
gaps_app = typer.Typer(help="Stopped topic-partitions and accepted gaps.", invoke_without_command=True)
app.add_typer(gaps_app, name="gaps")
offsets_app = typer.Typer(help="Committed offsets, lag and stopped topic-partitions.", invoke_without_command=True)
app.add_typer(offsets_app, name="offsets")
quarantine_app = typer.Typer(help="List, show and retry messages that could not be parsed.", no_args_is_help=True)
app.add_typer(quarantine_app, name="quarantine")
dedup_app = typer.Typer(help="State of deduplication, and its key index.", no_args_is_help=True)
app.add_typer(dedup_app, name="dedup")
generation_app = typer.Typer(help="Generations of a stream, and which one consumers read.", no_args_is_help=True)
app.add_typer(generation_app, name="generation")
quality_app = typer.Typer(help="Audits: what was checked of the rows of each run.", no_args_is_help=True)
app.add_typer(quality_app, name="quality")
backfill_app = typer.Typer(help="Build a range of a table again, compare, promote, undo.", no_args_is_help=True)
app.add_typer(backfill_app, name="backfill")
incidents_app = typer.Typer(help="Broken promises: list, show, acknowledge.", no_args_is_help=True)
app.add_typer(incidents_app, name="incidents")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"waybill {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del version


@config_app.command("check")
def config_check() -> None:
    """Check the config. Print a line for each error and exit with code 1 if it is not valid."""
    from waybill.cli import config

    config.check()


@config_app.command("reference")
def config_reference() -> None:
    """Print the reference of every key, as Markdown."""
    from waybill.cli import config

    config.print_reference()


@config_app.command("schema")
def config_schema() -> None:
    """Print a JSON schema of the config, for editors that complete and check YAML."""
    from waybill.cli import config

    config.print_schema()


OneStream = Annotated[str | None, typer.Option("--stream", "-s", help="Only this stream.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is stored with the decision.")]
By = Annotated[str | None, typer.Option("--by", help="Who decides; default: USER@HOST.")]
Yes = Annotated[bool, typer.Option("--yes", help="Write; without it, only print what would be written.")]


def _refuse_misplaced(stream: str | None, as_json: bool) -> None:
    """Refuse options before the command. Ignoring `--stream` there would apply the command to every stream."""
    if stream is not None or as_json:
        raise typer.BadParameter("give --stream and --json after the command")


@offsets_app.callback()
def offsets(context: typer.Context, stream: OneStream = None, as_json: AsJson = False) -> None:
    """Print committed offset, log end offset, lag and state of every topic-partition."""
    if context.invoked_subcommand is None:
        offsets_ls(stream, as_json)
    else:
        _refuse_misplaced(stream, as_json)


@offsets_app.command("ls")
def offsets_ls(stream: OneStream = None, as_json: AsJson = False) -> None:
    """Print committed offset, log end offset, lag and state of every topic-partition."""
    from waybill.cli import offsets as command

    command.run(stream, as_json=as_json)


@offsets_app.command("rebuild")
def offsets_rebuild(
    stream: OneStream = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Also replace committed offsets that differ.")] = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild committed offsets from the chains: missing ones at once, differing ones with --yes."""
    from waybill.cli import offset_changes as command

    command.run_rebuild(stream, topic, yes=yes, as_json=as_json)


@offsets_app.command("set")
def offsets_set(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    target: Annotated[str, typer.Argument(metavar="TOPIC/PARTITION", help="The topic-partition.")],
    offset: Annotated[int, typer.Argument(min=0, help="Where the next backup object starts.")],
    reason: Reason,
    by: By = None,
) -> None:
    """Set the offset at which a new chain starts. Refused if a chain exists and would get a gap or an overlap."""
    from waybill.cli import offset_changes as command

    command.run_set(stream, target, offset, reason, by)


@offsets_app.command("import")
def offsets_import(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    from_secor: Annotated[
        str | None, typer.Option("--from-secor", metavar="PATH", help="Secor's kafka.zookeeper.path; `/` if none.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", help="Secor's consumer group, if there are several.")] = None,
    zookeeper: Annotated[
        str | None, typer.Option("--zookeeper", help="The connection of Secor's ZooKeeper, if it has its own.")
    ] = None,
    from_group: Annotated[str | None, typer.Option("--from-group", help="A Kafka consumer group.")] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Start chains where Secor or a Kafka consumer group stopped reading. Stop that consumer first."""
    from waybill.cli import offset_changes as command

    command.run_import(
        stream,
        from_secor=from_secor,
        group=group,
        zookeeper=zookeeper,
        from_group=from_group,
        yes=yes,
        as_json=as_json,
    )


@gaps_app.callback()
def gaps(context: typer.Context, stream: OneStream = None, as_json: AsJson = False) -> None:
    """Print which topic-partitions are stopped, why and what to do, and the gaps that were accepted."""
    if context.invoked_subcommand is None:
        gaps_ls(stream, as_json)
    else:
        _refuse_misplaced(stream, as_json)


@gaps_app.command("ls")
def gaps_ls(stream: OneStream = None, as_json: AsJson = False) -> None:
    """Print which topic-partitions are stopped, why and what to do, and the gaps that were accepted."""
    from waybill.cli import gaps as command

    command.list_gaps(stream, as_json=as_json)


@gaps_app.command("accept")
def gaps_accept(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    partition: Annotated[int, typer.Argument(min=0, help="Its partition.")],
    reason: Reason,
    stream: Annotated[
        str | None, typer.Option("--stream", "-s", help="The stream, if several archive the topic.")
    ] = None,
    by: By = None,
    from_offset: Annotated[
        int | None, typer.Option("--from", min=0, help="The first lost offset of a broken chain.")
    ] = None,
    to_offset: Annotated[int | None, typer.Option("--to", min=0, help="The last lost offset.")] = None,
    as_json: AsJson = False,
) -> None:
    """Record a gap with reason, name and time, so that ingest resumes after it.

    Without --from and --to: the offsets that Kafka's retention (RetentionGap) or an unclean election (LogTruncated)
    removed; they are read from Kafka again. With them: a backup object that is lost from the middle of a chain, by its
    offsets as `waybill verify` prints them.
    """
    from waybill.cli import gaps as command

    command.run_accept(
        topic,
        partition,
        reason,
        stream=stream,
        by=by,
        from_offset=from_offset,
        to_offset=to_offset,
        as_json=as_json,
    )


StageOption = Annotated[
    list[Stage] | None,
    typer.Option("--stage", help="Only this stage; may be repeated. Without it, all stages of the stream."),
]


@app.command()
def streams(as_json: AsJson = False) -> None:
    """List the streams: the DAGs that work on each, what is paused, by whom and why, and its problems."""
    from waybill.cli import streams as command

    command.list_streams(as_json=as_json)


@app.command()
def pause(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    reason: Annotated[str, typer.Option(help="Why; recorded with the decision.")],
    stage: StageOption = None,
    by: Annotated[str | None, typer.Option(help="Who decides; without it, this user.")] = None,
    as_json: AsJson = False,
) -> None:
    """Leave a stream out of scheduled runs until it is resumed. Who, when and why are recorded."""
    from waybill.cli import streams as command
    from waybill.coordination.pauses import PauseAction

    command.run_decision(PauseAction.PAUSE, stream, stage or (), reason=reason, by=by, as_json=as_json)


@app.command()
def resume(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    reason: Annotated[str, typer.Option(help="Why; recorded with the decision.")],
    stage: StageOption = None,
    by: Annotated[str | None, typer.Option(help="Who decides; without it, this user.")] = None,
    as_json: AsJson = False,
) -> None:
    """Include a paused stream in scheduled runs again. Who, when and why are recorded."""
    from waybill.cli import streams as command
    from waybill.coordination.pauses import PauseAction

    command.run_decision(PauseAction.RESUME, stream, stage or (), reason=reason, by=by, as_json=as_json)


@app.command()
def ls(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC[/PARTITION]]", help="Only these chains.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the backup objects of a stream: offsets, size, time of modification."""
    from waybill.cli import objects as command

    command.run_ls(stream, topic, as_json=as_json)


@uploads_app.command("ls")
def uploads_ls(
    stream: Annotated[str | None, typer.Argument(help="The stream; default: the whole archive.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the multipart uploads that are not completed, including those of running lanes."""
    from waybill.cli import objects as command

    command.list_uploads(stream, as_json=as_json)


@uploads_app.command("abort")
def uploads_abort(
    stream: Annotated[str | None, typer.Argument(help="The stream; default: the whole archive.")] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="2h, 1d; default: storage.abort_uploads_after of the config.")
    ] = None,
) -> None:
    """Abort old uploads. If a lane still uses one, it archives the messages again: nothing is lost."""
    from waybill.cli import objects as command

    command.abort_uploads(stream, older_than)


@app.command()
def cat(
    key: Annotated[
        str, typer.Argument(metavar="KEY|s3://BUCKET/KEY", help="A backup object, as `waybill ls` shows it.")
    ],
    from_offset: Annotated[int | None, typer.Option("--from", min=0, help="The first offset.")] = None,
    to_offset: Annotated[int | None, typer.Option("--to", min=0, help="The last offset.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most so many messages.")] = None,
) -> None:
    """Print the messages of a backup object as JSON lines. Bytes that are not UTF-8 are {"base64": …}."""
    from waybill.cli import objects as command

    command.run_cat(key, from_offset, to_offset, limit)


OfReason = Annotated[
    list[str] | None, typer.Option("--reason", metavar="KIND", help="Only this reason, such as not_json; repeatable.")
]
OfTopicPartition = Annotated[
    list[str] | None,
    typer.Option("--topic-partition", metavar="TOPIC[/PARTITION]", help="Only these; repeatable."),
]
FromOffset = Annotated[int | None, typer.Option("--from", min=0, help="The first offset.")]
ToOffset = Annotated[int | None, typer.Option("--to", min=0, help="The last offset.")]


@quarantine_app.command("ls")
def quarantine_ls(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    reason: OfReason = None,
    topic_partition: OfTopicPartition = None,
    as_json: AsJson = False,
) -> None:
    """Count the messages in quarantine by reason, parser and topic; `first` and `last` are PARTITION@OFFSET."""
    from waybill.cli import quarantine as command
    from waybill.quarantine.row_filter import RowFilter

    choice = RowFilter.parse(reasons=reason or (), targets=topic_partition or ())
    command.list_groups(stream, choice, as_json=as_json)


@quarantine_app.command("show")
def quarantine_show(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    messages: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC[/PARTITION[@OFFSET]]]...", help="Only these.")
    ] = None,
    reason: OfReason = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many messages.")] = 10,
    raw: Annotated[bool, typer.Option("--raw", help="Write one message's value, and nothing else.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Print messages in quarantine: reason, offset, key, headers, and the value as text or in hexadecimal."""
    from waybill.cli import quarantine as command
    from waybill.quarantine.row_filter import RowFilter

    choice = RowFilter.parse(reasons=reason or (), targets=messages or ())
    command.show_messages(stream, choice, limit=limit, raw=raw, as_json=as_json)


@quarantine_app.command("retry")
def quarantine_retry(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    reason: OfReason = None,
    topic_partition: OfTopicPartition = None,
    from_offset: FromOffset = None,
    to_offset: ToOffset = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be moved.")] = False,
    accepted: Annotated[
        str | None,
        typer.Option(
            "--accept-failed-checks",
            metavar="REASON",
            help="Move messages although critical checks of their rows fail; the reason is stored.",
        ),
    ] = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Parse messages again with the current config. Those that can be parsed move to the table, exactly once.

    The rows are audited first. If a critical check fails, nothing is moved.
    """
    from waybill.cli import quarantine as command
    from waybill.quarantine.row_filter import RowFilter

    choice = RowFilter.parse(
        reasons=reason or (), targets=topic_partition or (), first_offset=from_offset, last_offset=to_offset
    )
    command.run_retry(stream, choice, dry_run=dry_run, accepted_because=accepted, by=by, as_json=as_json)


@generation_app.command("ls")
def generation_ls(stream: Annotated[str, typer.Argument(help="The stream.")], as_json: AsJson = False) -> None:
    """Print the generations that the table of a stream holds, and which one is live."""
    from waybill.cli import generations

    generations.list_generations(stream, as_json=as_json)


@generation_app.command("promote")
def generation_promote(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    reason: Reason,
    to: Annotated[
        int | None, typer.Option("--to", min=1, help="The generation; default: the one of the config.")
    ] = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Let consumers read another generation of a stream. To undo it, promote the earlier generation again."""
    from waybill.cli import generations

    generations.run_promote(stream, to, reason=reason, by=by, as_json=as_json)


@quality_app.command("show")
def quality_show(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    plan: Annotated[str | None, typer.Option("--plan", help="The plan; default: that of the last audit.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the results of the last audit: each check, what was observed, and examples of failed rows."""
    from waybill.cli import quality as command

    command.show(stream, plan, as_json=as_json)


@quality_app.command("history")
def quality_history(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    since: Annotated[str, typer.Option("--since", metavar="DURATION", help="How far back: 24h, 30d.")] = "7d",
    as_json: AsJson = False,
) -> None:
    """List the audits of a stream, newest first, with the checks that failed."""
    from waybill.cli import quality as command

    command.history(stream, since, as_json=as_json)


@quality_app.command("release")
def quality_release(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    reason: Reason,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Publish the held rows of a stream as they are. The decision is stored with who made it, when and why."""
    from waybill.audit.decisions import DecisionKind
    from waybill.cli import quality as command

    command.decide(stream, DecisionKind.RELEASED, reason=reason, by=by, as_json=as_json)


@quality_app.command("reject")
def quality_reject(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    reason: Reason,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Drop the held rows of a stream. The next run parses the same messages again, with the config of that time."""
    from waybill.audit.decisions import DecisionKind
    from waybill.cli import quality as command

    command.decide(stream, DecisionKind.REJECTED, reason=reason, by=by, as_json=as_json)


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
    stream: Annotated[str, typer.Argument(help="The stream.")],
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
    from waybill.backfill import Choice
    from waybill.cli import backfill as command

    choice = Choice.parse(
        offsets=offsets or (),
        topic_partitions=topic_partition or (),
        since=since,
        until=until,
        everything=everything,
    )
    command.run_plan(stream, choice, generation=generation, source=source, as_json=as_json)


@backfill_app.command("run")
def backfill_run(
    stream: Annotated[str, typer.Argument(help="The stream.")],
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
    from waybill.backfill import Choice
    from waybill.cli import backfill as command

    chosen = None
    if continued is None:
        chosen = Choice.parse(
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
    from waybill.cli import backfill as command

    command.print_status(stream, backfill, as_json=as_json)


@backfill_app.command("diff")
def backfill_diff(
    stream: Annotated[str, typer.Argument(help="The stream.")], backfill: BackfillId, as_json: AsJson = False
) -> None:
    """Print what the promotion of a backfill changes: messages by kind, column and hour, with examples."""
    from waybill.cli import backfill as command

    command.print_diff(stream, backfill, as_json=as_json)


@backfill_app.command("promote")
def backfill_promote(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    backfill: BackfillId,
    reason: Reason,
    by: By = None,
    accept_failed_checks: Annotated[
        bool, typer.Option("--accept-failed-checks", help="Promote even though a critical check has failed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Replace the table's rows of the range by those of the backfill. What was appended meanwhile stays."""
    from waybill.backfill import Action
    from waybill.cli import backfill as command

    command.run_change(
        Action.PROMOTE,
        stream,
        backfill,
        reason=reason,
        by=by,
        accept_failed_checks=accept_failed_checks,
        as_json=as_json,
    )


@backfill_app.command("undo")
def backfill_undo(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    backfill: BackfillId,
    reason: Reason,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Restore the rows that a promotion replaced, within 7 days. What was appended since stays."""
    from waybill.backfill import Action
    from waybill.cli import backfill as command

    command.run_change(Action.UNDO, stream, backfill, reason=reason, by=by, accept_failed_checks=False, as_json=as_json)


@backfill_app.command("cancel")
def backfill_cancel(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    backfill: BackfillId,
    reason: Reason,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Give up a backfill that is not promoted: its branches are removed, and others may be requested."""
    from waybill.backfill import Action
    from waybill.cli import backfill as command

    command.run_change(
        Action.CANCEL, stream, backfill, reason=reason, by=by, accept_failed_checks=False, as_json=as_json
    )


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
    from waybill.cli import dedup as command

    command.run_status(stream, last, as_json=as_json)


@dedup_app.command("rebuild")
def dedup_rebuild(stream: Annotated[str, typer.Argument(help="The stream.")], as_json: AsJson = False) -> None:
    """Rebuild the key index from the unique table. Sweeps may run meanwhile; their results do not change."""
    from waybill.cli import dedup as command

    command.run_rebuild(stream, as_json=as_json)


@dedup_app.command("merge")
def dedup_merge(stream: Annotated[str, typer.Argument(help="The stream.")], as_json: AsJson = False) -> None:
    """Merge small sorted runs of the key index, as the DAG does after each sweep. Sweeps may run meanwhile."""
    from waybill.cli import dedup as command

    command.run_merge(stream, as_json=as_json)


@app.command()
def lateness(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    since: Annotated[str, typer.Option("--since", metavar="DURATION", help="Of commits since then: 36h, 7d.")] = "7d",
    as_json: AsJson = False,
) -> None:
    """Print how late rows arrive: Kafka's timestamp minus the event time, from the table's snapshots."""
    from waybill.cli import lateness as command

    command.run(stream, since, as_json=as_json)


@app.command()
def finalize(
    stream: Annotated[str, typer.Argument(help="The stream; its sink must be `files`.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")] = False,
    all_hours: Annotated[bool, typer.Option("--all", help="Also print the hours that were final before.")] = False,
    as_json: AsJson = False,
) -> None:
    """Mark the final hours of a `files` sink with `_SUCCESS`. Exit code 1: the files of an hour are not as recorded."""
    from waybill.cli import finalize as command

    command.run(stream, dry_run=dry_run, all_hours=all_hours, as_json=as_json)


@app.command()
def ledger(
    stream: Annotated[str, typer.Argument(metavar="STREAM|check", help="The stream; or check, and a file.")],
    file: Annotated[Path | None, typer.Argument(help="With check: the signed ledger.")] = None,
    kafka: Annotated[bool, typer.Option("--kafka/--no-kafka", help="Ask Kafka for what is not archived yet.")] = True,
    read_objects: Annotated[
        bool, typer.Option("--read-objects", help="Also count the messages in the backup objects.")
    ] = False,
    as_json: AsJson = False,
    sign: Annotated[
        str | None, typer.Option("--sign", metavar="CONNECTION", help="Print signed JSON; the key is its password.")
    ] = None,
    public_key: Annotated[
        str | None, typer.Option("--public-key", metavar="KEY|FILE", help="With check: the key it must be signed with.")
    ] = None,
) -> None:
    """Balance the log, the archive and the tables by topic-partition. Exit code 1 if something does not balance.

    `waybill ledger check FILE` checks the signature of a ledger that was printed with --sign.
    """
    from waybill.cli import ledger as command

    if file is not None:
        if stream != "check":
            raise typer.BadParameter(f"a file follows `check`, not {stream!r}")
        command.run_check(file, public_key)
        return
    if public_key is not None:
        raise typer.BadParameter("--public-key belongs to `waybill ledger check FILE`")
    command.run(stream, kafka=kafka, read_objects=read_objects, as_json=as_json, sign_with=sign)


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
    from waybill.cli import verify as command

    command.run(stream, table=table, keys=keys, as_json=as_json)


# --- the watch --------------------------------------------------------------------------------------------------------


@app.command("watch")
def watch(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only measure: store nothing, send nothing.")] = False,
    every: Annotated[
        str | None, typer.Option("--every", help="Watch again after each such time, such as 1m; default: once.")
    ] = None,
    test: Annotated[str | None, typer.Option("--test", help="Only send a test message to this channel.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the promises of all streams, and send an alert for each that is broken.

    It needs no Airflow. Run it each minute from cron, systemd or Kubernetes, in addition to the DAG `watch`: two
    watches send one message. It ends with code 1 if a promise is broken.
    """
    from waybill.cli import incidents as command
    from waybill.cli.targets import parse_duration_option

    if test is not None:
        command.test_channel(test)
        return
    seconds = None if every is None else int(parse_duration_option("--every", every).total_seconds())
    command.watch(dry_run=dry_run, every_seconds=seconds, as_json=as_json)


@app.command("metrics")
def metrics(
    serve: Annotated[
        str | None,
        typer.Option("--serve", help="Serve them at this address, such as 127.0.0.1:9464; default: print them once."),
    ] = None,
) -> None:
    """Print or serve the metrics of all streams for Prometheus, in the OpenMetrics format.

    It measures what `waybill watch` measures, each time that Prometheus asks, and stores nothing.
    """
    from waybill.cli import metrics as command

    command.run(serve)


@incidents_app.command("ls")
def incidents_ls(
    resolved: Annotated[bool, typer.Option("--all", help="Also those that were resolved in the last 30 days.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the open incidents."""
    from waybill.cli import incidents as command

    command.list_incidents(with_resolved=resolved, as_json=as_json)


@incidents_app.command("show")
def incidents_show(
    incident: Annotated[str, typer.Argument(help="The id, as `waybill incidents ls` prints it.")],
    as_json: AsJson = False,
) -> None:
    """Print all that is known of an incident, and what to do."""
    from waybill.cli import incidents as command

    command.show(incident, as_json=as_json)


@incidents_app.command("ack")
def incidents_ack(
    incident: Annotated[str, typer.Argument(help="The id, as `waybill incidents ls` prints it.")],
    reason: Annotated[str, typer.Option("--reason", help="What you do about it; it is stored.")],
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Acknowledge an incident: reminders and escalation end, and its end is still told."""
    from waybill.cli import incidents as command

    command.acknowledge(incident, reason=reason, by=by, as_json=as_json)
