"""The commands and their options. What they do is in the module of each."""

from __future__ import annotations

from typing import Annotated

import typer

from waybill import __version__

__all__ = ["app"]

app = typer.Typer(
    name="waybill",
    help="Archive Kafka to S3 without losing or repeating a message, and check that nothing was.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(help="Check and describe the config.", no_args_is_help=True)
app.add_typer(config_app, name="config")
uploads_app = typer.Typer(help="Uploads that lanes left behind when they were killed.", no_args_is_help=True)
app.add_typer(uploads_app, name="uploads")
gaps_app = typer.Typer(help="Named stops, and accepted gaps.", invoke_without_command=True)
app.add_typer(gaps_app, name="gaps")
offsets_app = typer.Typer(help="Committed offsets, and what stands still.", invoke_without_command=True)
app.add_typer(offsets_app, name="offsets")
quarantine_app = typer.Typer(help="Messages that could not be parsed, and another try at them.", no_args_is_help=True)
app.add_typer(quarantine_app, name="quarantine")
dedup_app = typer.Typer(help="Sweeps that keep each message id once, and their index of keys.", no_args_is_help=True)
app.add_typer(dedup_app, name="dedup")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


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
    """Say whether the config is right; else what is wrong, a line for each fault, and exit code 1."""
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
Reason = Annotated[str, typer.Option("--reason", help="Why, for whoever looks at it later.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; otherwise only say what would be done.")]


def _refuse_misplaced(stream: str | None, as_json: bool) -> None:
    """Options of a group are not those of its commands: passed over, `--stream` would mean every stream."""
    if stream is not None or as_json:
        raise typer.BadParameter("give --stream and --json after the command")


@offsets_app.callback()
def offsets(context: typer.Context, stream: OneStream = None, as_json: AsJson = False) -> None:
    """Committed offset, end of the log and lag of every topic-partition, and which are stopped."""
    if context.invoked_subcommand is None:
        offsets_ls(stream, as_json)
    else:
        _refuse_misplaced(stream, as_json)


@offsets_app.command("ls")
def offsets_ls(stream: OneStream = None, as_json: AsJson = False) -> None:
    """Committed offset, end of the log and lag of every topic-partition, and which are stopped."""
    from waybill.cli import offsets as command

    command.run(stream, as_json=as_json)


@offsets_app.command("rebuild")
def offsets_rebuild(
    stream: OneStream = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Move those, too, where ZooKeeper has another offset.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the committed offsets anew as the chains say: at once where ZooKeeper has none, else with --yes."""
    from waybill.cli import offset_changes as command

    command.run_rebuild(stream, topic, yes=yes, as_json=as_json)


@offsets_app.command("set")
def offsets_set(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    target: Annotated[str, typer.Argument(metavar="TOPIC/PARTITION", help="The topic-partition.")],
    offset: Annotated[int, typer.Argument(min=0, help="Where the next backup object starts.")],
    reason: Reason,
    by: Annotated[str | None, typer.Option("--by", help="Who decides; default: you, on this host.")] = None,
) -> None:
    """Set a committed offset: where a chain that does not exist yet begins. Refused where it would tear one."""
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
        str | None, typer.Option("--zookeeper", help="The connection of Secor's ZooKeeper, if it is another one.")
    ] = None,
    from_group: Annotated[str | None, typer.Option("--from-group", help="A Kafka consumer group.")] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Begin chains where another tool stopped reading: Secor, or any Kafka consumer group. Stop that tool first."""
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
    """What stands still and waits for a decision, with the remedy; and the gaps that were accepted."""
    if context.invoked_subcommand is None:
        gaps_ls(stream, as_json)
    else:
        _refuse_misplaced(stream, as_json)


@gaps_app.command("ls")
def gaps_ls(stream: OneStream = None, as_json: AsJson = False) -> None:
    """What stands still and waits for a decision, with the remedy; and the gaps that were accepted."""
    from waybill.cli import gaps as command

    command.list_gaps(stream, as_json=as_json)


@gaps_app.command("accept")
def gaps_accept(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    partition: Annotated[int, typer.Argument(min=0, help="Its partition.")],
    reason: Reason,
    stream: Annotated[str | None, typer.Option("--stream", "-s", help="Where several archive the topic.")] = None,
    by: Annotated[str | None, typer.Option("--by", help="Who decides; default: you, on this host.")] = None,
    from_offset: Annotated[
        int | None, typer.Option("--from", min=0, help="The first offset that is lost, of a broken chain.")
    ] = None,
    to_offset: Annotated[int | None, typer.Option("--to", min=0, help="The last one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Record a gap, with who, when and why, and let ingest go on behind it.

    Kafka is looked at anew. Without --from and --to: what it deleted (RetentionGap) or took back (LogTruncated). With
    them: an object lost from the middle of a chain, its offsets as `waybill verify` prints them.
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


@app.command()
def ls(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC[/PARTITION]]", help="Only these chains.")] = None,
    as_json: AsJson = False,
) -> None:
    """The backup objects of a stream's chains: range, offsets, bytes, when modified."""
    from waybill.cli import objects as command

    command.run_ls(stream, topic, as_json=as_json)


@uploads_app.command("ls")
def uploads_ls(
    stream: Annotated[str | None, typer.Argument(help="The stream; the whole archive if left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """The multipart uploads of backup objects that are not completed, those of running lanes included."""
    from waybill.cli import objects as command

    command.list_uploads(stream, as_json=as_json)


@uploads_app.command("abort")
def uploads_abort(
    stream: Annotated[str | None, typer.Argument(help="The stream; the whole archive if left out.")] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="2h, 1d; if left out, storage.abort_uploads_after of the config.")
    ] = None,
) -> None:
    """Abort the uploads that were begun so long ago. A running lane's would be fetched again: nothing is lost."""
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
    """The messages of a backup object, as JSON lines. Bytes that are not UTF-8 are {"base64": …}."""
    from waybill.cli import objects as command

    command.run_cat(key, from_offset, to_offset, limit)


OfReason = Annotated[
    list[str] | None, typer.Option("--reason", metavar="KIND", help="Only these, such as not_json; may be repeated.")
]
OfTopicPartition = Annotated[
    list[str] | None,
    typer.Option("--topic-partition", metavar="TOPIC[/PARTITION]", help="Only messages of these; may be repeated."),
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
    """What is in quarantine, counted by kind of reason, parser and topic; `first` and `last` are PARTITION@OFFSET."""
    from waybill.cli import quarantine as command
    from waybill.quarantine import Choice

    choice = Choice.parse(reasons=reason or (), targets=topic_partition or ())
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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines, for machines.")] = False,
) -> None:
    """Messages in quarantine: why, where they are from, key, headers, and their bytes as text or in hexadecimal."""
    from waybill.cli import quarantine as command
    from waybill.quarantine import Choice

    choice = Choice.parse(reasons=reason or (), targets=messages or ())
    command.show_messages(stream, choice, limit=limit, raw=raw, as_json=as_json)


@quarantine_app.command("retry")
def quarantine_retry(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    reason: OfReason = None,
    topic_partition: OfTopicPartition = None,
    from_offset: FromOffset = None,
    to_offset: ToOffset = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would come of it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Parse messages again by the present config: those that can be read now move to the table, exactly once."""
    from waybill.cli import quarantine as command
    from waybill.quarantine import Choice

    choice = Choice.parse(
        reasons=reason or (), targets=topic_partition or (), first_offset=from_offset, last_offset=to_offset
    )
    command.run_retry(stream, choice, dry_run=dry_run, as_json=as_json)


@dedup_app.command("status")
def dedup_status(
    stream: Annotated[str | None, typer.Argument(help="The stream; all that have dedup if left out.")] = None,
    last: Annotated[
        str, typer.Option("--last", metavar="DURATION", help="Duplicates of how long before the newest row: 36h, 7d.")
    ] = "24h",
    as_json: AsJson = False,
) -> None:
    """How far a stream was swept, how far back sweeps see, the size of the index, and the duplicates by hour."""
    from waybill.cli import dedup as command

    command.run_status(stream, last, as_json=as_json)


@dedup_app.command("rebuild")
def dedup_rebuild(stream: Annotated[str, typer.Argument(help="The stream.")], as_json: AsJson = False) -> None:
    """Build the index of keys anew from the unique rows. Sweeps may run meanwhile, and decide the same with either."""
    from waybill.cli import dedup as command

    command.run_rebuild(stream, as_json=as_json)


@dedup_app.command("merge")
def dedup_merge(stream: Annotated[str, typer.Argument(help="The stream.")], as_json: AsJson = False) -> None:
    """Merge the small runs of the index into few, as the DAG does after each sweep. Sweeps may run meanwhile."""
    from waybill.cli import dedup as command

    command.run_merge(stream, as_json=as_json)


@app.command()
def lateness(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    since: Annotated[str, typer.Option("--since", metavar="DURATION", help="Of runs since then: 36h, 7d.")] = "7d",
    as_json: AsJson = False,
) -> None:
    """How late rows come: Kafka's timestamp minus the event time, from the table's snapshots."""
    from waybill.cli import lateness as command

    command.run(stream, since, as_json=as_json)


@app.command()
def finalize(
    stream: Annotated[str, typer.Argument(help="The stream; its sink must be `files`.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    all_hours: Annotated[bool, typer.Option("--all", help="Print the hours, too, that were final before.")] = False,
    as_json: AsJson = False,
) -> None:
    """Mark the hours of a `files` sink that are final with `_SUCCESS`. Exit code 1: one cannot become final."""
    from waybill.cli import finalize as command

    command.run(stream, dry_run=dry_run, all_hours=all_hours, as_json=as_json)


@app.command()
def verify(
    stream: Annotated[str | None, typer.Argument(help="The stream; all there are if left out.")] = None,
    table: Annotated[bool, typer.Option("--table/--no-table", help="Hold the tables against the chains.")] = True,
    keys: Annotated[
        bool, typer.Option("--keys", help="See whether dedup has found every duplicate, and no other. Reads all keys.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read the whole archive and hold the tables against it: each offset exactly once, or exit code 1."""
    from waybill.cli import verify as command

    command.run(stream, table=table, keys=keys, as_json=as_json)
