"""The commands `waybill restore …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from waybill.interfaces.cli.commands.options import AsJson, By, StreamName, option
from waybill.interfaces.operations import parameters as p

app = typer.Typer()
restore_app = typer.Typer(help="Restore archived messages to a Kafka topic, exactly once.", no_args_is_help=True)
app.add_typer(restore_app, name="restore")

_TO = option(p.TO)
To = Annotated[str, _TO]
ToTopic = Annotated[str, option(p.TO_TOPIC)]
OfOffsets = Annotated[list[str] | None, option(p.OFFSETS)]
OfPartition = Annotated[list[str] | None, option(p.TOPIC_PARTITIONS)]
Until = Annotated[str | None, option(p.UP_TO)]
Create = Annotated[bool, option(p.CREATE)]
Replication = Annotated[int, option(p.REPLICATION_FACTOR)]
Suspend = Annotated[bool, option(p.SUSPEND_CLEANUP)]
Registry = Annotated[str | None, option(p.REGISTRY)]
RestoreId = Annotated[str, typer.Argument(metavar="ID", help="The restore, as `waybill restore status` shows it.")]


@restore_app.command("plan")
def restore_plan(
    stream: StreamName,
    to: To,
    to_topic: ToTopic = "{topic}",
    offsets: OfOffsets = None,
    topic_partition: OfPartition = None,
    until: Until = None,
    create: Create = False,
    replication_factor: Replication = -1,
    suspend_cleanup: Suspend = False,
    registry: Registry = None,
    as_json: AsJson = False,
) -> None:
    """Print what a restore would do, and what the preflight finds. Nothing is changed."""
    from waybill.archive.restore import RestoreRequest
    from waybill.interfaces.cli import restore as command

    request = RestoreRequest.parse(
        stream,
        to,
        to_topic=to_topic,
        offsets=offsets or (),
        topic_partitions=topic_partition or (),
        until=until,
        create=create,
        replication_factor=replication_factor,
        suspend_cleanup=suspend_cleanup,
        registry=registry,
    )
    command.run_plan(request, as_json=as_json)


@restore_app.command("run")
def restore_run(
    stream: Annotated[str | None, typer.Argument(metavar="STREAM", help="The stream; not with --id.")] = None,
    to: Annotated[str | None, _TO] = None,
    to_topic: ToTopic = "{topic}",
    offsets: OfOffsets = None,
    topic_partition: OfPartition = None,
    until: Until = None,
    create: Create = False,
    replication_factor: Replication = -1,
    suspend_cleanup: Suspend = False,
    registry: Registry = None,
    reason: Annotated[str | None, option(p.PLAN_REASON)] = None,
    by: By = None,
    continued: Annotated[str | None, option(p.RESTORE)] = None,
    as_json: AsJson = False,
) -> None:
    """Restore, or continue a restore that was interrupted. Each message is in the target once, whatever happens."""
    from waybill.archive.restore import RestoreRequest
    from waybill.base.errors import RestoreRefused
    from waybill.interfaces.cli import restore as command

    if continued is not None:
        command.run_restore(continued, as_json=as_json)
        return
    if stream is None or to is None or reason is None:
        raise RestoreRefused("give the stream, --to and --reason; or --id to continue a restore")
    request = RestoreRequest.parse(
        stream,
        to,
        to_topic=to_topic,
        offsets=offsets or (),
        topic_partitions=topic_partition or (),
        until=until,
        create=create,
        replication_factor=replication_factor,
        suspend_cleanup=suspend_cleanup,
        registry=registry,
    )
    command.run_restore(command.begin(request, reason, by, as_json=as_json), as_json=as_json)


@restore_app.command("status")
def restore_status(
    restore: Annotated[str | None, typer.Argument(metavar="[ID]", help="Only this one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print how far restores are, from the ends of the target's logs."""
    from waybill.interfaces.cli import restore as command

    command.print_status(restore, as_json=as_json)


@restore_app.command("verify")
def restore_verify(
    restore: RestoreId,
    sign: Annotated[
        str | None, typer.Option("--sign", metavar="CONNECTION", help="Sign the report with this connection's key.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare every restored message with the archive, and store the report. Exit with 1 if anything differs."""
    from waybill.interfaces.cli import restore as command

    command.run_verify(restore, sign, as_json=as_json)


@restore_app.command("groups")
def restore_groups(
    restore: RestoreId,
    group: Annotated[
        list[str] | None, typer.Option("--group", help="A consumer group of the source cluster; repeatable.")
    ] = None,
    offsets_file: Annotated[
        Path | None,
        typer.Option(
            "--offsets-from",
            metavar="FILE",
            help="JSON with the groups' offsets, {group: {topic/partition: offset}}, where the source cluster is gone.",
        ),
    ] = None,
    commit: Annotated[bool, typer.Option("--commit", help="Commit the offsets in the target.")] = False,
    backwards: Annotated[bool, typer.Option("--backwards", help="Also move groups backwards.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print where consumer groups continue in the target; with --commit, commit that."""
    from waybill.interfaces.cli import restore as command

    command.run_groups(restore, group or [], offsets_file, commit=commit, backwards=backwards, as_json=as_json)
