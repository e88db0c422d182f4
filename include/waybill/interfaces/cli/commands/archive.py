"""Commands about the archive: offsets, gaps, objects, uploads, and pausing streams."""

from __future__ import annotations

from typing import Annotated

import typer

from waybill.config.names import Stage
from waybill.interfaces.cli.commands.options import AsJson, By, OneStream, Reason, StreamName, Yes, argument, option
from waybill.interfaces.operations import parameters as p

app = typer.Typer()
offsets_app = typer.Typer(help="Committed offsets, lag and stopped topic-partitions.", invoke_without_command=True)
app.add_typer(offsets_app, name="offsets")
gaps_app = typer.Typer(help="Stopped topic-partitions and accepted gaps.", invoke_without_command=True)
app.add_typer(gaps_app, name="gaps")
uploads_app = typer.Typer(help="Multipart uploads that killed lanes left behind.", no_args_is_help=True)
app.add_typer(uploads_app, name="uploads")


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
    from waybill.interfaces.cli import offsets as command

    command.run(stream, as_json=as_json)


@offsets_app.command("rebuild")
def offsets_rebuild(
    stream: OneStream = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Also replace committed offsets that differ.")] = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild committed offsets from the chains: missing ones at once, differing ones with --yes."""
    from waybill.interfaces.cli import offset_changes as command

    command.run_rebuild(stream, topic, yes=yes, as_json=as_json)


@offsets_app.command("set")
def offsets_set(
    stream: StreamName,
    target: Annotated[str, argument(p.TOPIC_PARTITION)],
    offset: Annotated[int, argument(p.OFFSET)],
    reason: Reason,
    by: By = None,
) -> None:
    """Set the offset at which a new chain starts. Refused if a chain exists and would get a gap or an overlap."""
    from waybill.interfaces.cli import offset_changes as command

    command.run_set(stream, target, offset, reason, by)


@offsets_app.command("import")
def offsets_import(
    stream: StreamName,
    from_secor: Annotated[
        str | None, typer.Option("--from-secor", metavar="PATH", help="Secor's kafka.zookeeper.path; `/` if none.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", help="Secor's consumer group, if there are several.")] = None,
    zookeeper: Annotated[
        str | None, typer.Option("--zookeeper", help="The connection of Secor's ZooKeeper, if it has its own.")
    ] = None,
    from_group: Annotated[str | None, typer.Option("--from-group", help="A Kafka consumer group.")] = None,
    from_kcl: Annotated[
        str | None,
        typer.Option("--from-kcl", metavar="TABLE", help="The lease table of a Kinesis Client Library, in DynamoDB."),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Start chains where Secor, a Kafka consumer group or a Kinesis consumer stopped reading. Stop it first."""
    from waybill.interfaces.cli import kcl_import
    from waybill.interfaces.cli import offset_changes as command

    if from_kcl is not None:
        if from_secor or from_group or group or zookeeper:
            from waybill.base.errors import ConfigError

            raise ConfigError("--from-kcl cannot be used together with another source of offsets")
        kcl_import.run(stream, from_kcl, yes=yes, as_json=as_json)
        return

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
    from waybill.interfaces.cli import gaps as command

    command.list_gaps(stream, as_json=as_json)


@gaps_app.command("accept")
def gaps_accept(
    topic: Annotated[str, argument(p.TOPIC)],
    partition: Annotated[int, argument(p.PARTITION)],
    reason: Reason,
    stream: Annotated[str | None, option(p.STREAM_OF_TOPIC, "-s")] = None,
    by: By = None,
    from_offset: Annotated[int | None, option(p.FIRST_LOST)] = None,
    to_offset: Annotated[int | None, option(p.LAST_LOST)] = None,
    within: Annotated[str | None, option(p.WITHIN)] = None,
    as_json: AsJson = False,
) -> None:
    """Record a gap with reason, name and time, so that ingest resumes after it.

    Without --from and --to: the offsets that Kafka's retention (RetentionGap) or an unclean election (LogTruncated)
    removed; they are read from Kafka again. With them: a backup object that is lost from the middle of a chain, by its
    offsets as `waybill verify` prints them.
    """
    from waybill.interfaces.cli import gaps as command

    command.run_accept(
        topic,
        partition,
        reason,
        stream=stream,
        by=by,
        from_offset=from_offset,
        to_offset=to_offset,
        within=within,
        as_json=as_json,
    )


StageOption = Annotated[list[Stage] | None, option(p.STAGES)]


@app.command()
def trace(
    stream: StreamName,
    message: Annotated[
        str | None, typer.Argument(metavar="[TOPIC/PARTITION@OFFSET]", help="The message, such as flights/3@1200.")
    ] = None,
    message_id: Annotated[str | None, typer.Option("--id", help="The messages with this message id.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print what is known of one message: its backup object, its row, what it repeats and what repeats it."""
    from waybill.interfaces.cli import trace as command

    command.run_trace(stream, message, message_id, as_json=as_json)


@app.command()
def streams(as_json: AsJson = False) -> None:
    """List the streams: the DAGs that work on each, what is paused, by whom and why, and its problems."""
    from waybill.interfaces.cli import streams as command

    command.list_streams(as_json=as_json)


@app.command()
def pause(
    stream: StreamName,
    reason: Annotated[str, option(p.PAUSE_REASON)],
    stage: StageOption = None,
    by: Annotated[str | None, typer.Option(help="Who decides; without it, this user.")] = None,
    as_json: AsJson = False,
) -> None:
    """Leave a stream out of scheduled runs until it is resumed. Who, when and why are recorded."""
    from waybill.interfaces.cli import streams as command
    from waybill.services.coordination.pauses import PauseAction

    command.run_decision(PauseAction.PAUSE, stream, stage or (), reason=reason, by=by, as_json=as_json)


@app.command()
def resume(
    stream: StreamName,
    reason: Annotated[str, option(p.PAUSE_REASON)],
    stage: StageOption = None,
    by: Annotated[str | None, typer.Option(help="Who decides; without it, this user.")] = None,
    as_json: AsJson = False,
) -> None:
    """Include a paused stream in scheduled runs again. Who, when and why are recorded."""
    from waybill.interfaces.cli import streams as command
    from waybill.services.coordination.pauses import PauseAction

    command.run_decision(PauseAction.RESUME, stream, stage or (), reason=reason, by=by, as_json=as_json)


@app.command()
def ls(
    stream: StreamName,
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC[/PARTITION]]", help="Only these chains.")] = None,
    shards: Annotated[
        bool, typer.Option("--shards", help="Of Kinesis: the sequence numbers of each shard. Reads the objects.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the backup objects of a stream: offsets, size, time of modification."""
    from waybill.interfaces.cli import objects as command

    command.run_ls(stream, topic, shards=shards, as_json=as_json)


@uploads_app.command("ls")
def uploads_ls(
    stream: Annotated[str | None, typer.Argument(help="The stream; default: the whole archive.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the multipart uploads that are not completed, including those of running lanes."""
    from waybill.interfaces.cli import objects as command

    command.list_uploads(stream, as_json=as_json)


@uploads_app.command("abort")
def uploads_abort(
    stream: Annotated[str | None, typer.Argument(help="The stream; default: the whole archive.")] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="2h, 1d; default: storage.abort_uploads_after of the config.")
    ] = None,
) -> None:
    """Abort old uploads. If a lane still uses one, it archives the messages again: nothing is lost."""
    from waybill.interfaces.cli import objects as command

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
    from waybill.interfaces.cli import objects as command

    command.run_cat(key, from_offset, to_offset, limit)


@app.command()
def cost(
    stream: StreamName,
    since: Annotated[str | None, typer.Option("--since", metavar="DAY", help="The first day; default: a week.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="DAY", help="The last day; default: today.")] = None,
    max_bytes: Annotated[
        str | None, typer.Option("--max-bytes", metavar="SIZE", help="What this upload.max_bytes would change.")
    ] = None,
    max_age: Annotated[
        str | None, typer.Option("--max-age", metavar="DURATION", help="What this upload.max_age would change.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print S3 requests, bytes and CPU seconds of a stream, by day and by million messages. Days are those of UTC."""
    from waybill.interfaces.cli import cost as command

    command.run(stream, since=since, until=until, max_bytes=max_bytes, max_age=max_age, as_json=as_json)
