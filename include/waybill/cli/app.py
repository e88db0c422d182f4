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


@app.command()
def offsets(
    stream: Annotated[str | None, typer.Option("--stream", "-s", help="Only this stream.")] = None,
    as_json: AsJson = False,
) -> None:
    """Committed offset, end of the log and lag of every topic-partition, and which are stopped."""
    from waybill.cli import offsets as command

    command.run(stream, as_json=as_json)


OneStream = Annotated[str | None, typer.Option("--stream", "-s", help="Only this stream.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for whoever looks at it later.")]


@gaps_app.callback()
def gaps(context: typer.Context, stream: OneStream = None, as_json: AsJson = False) -> None:
    """What stands still and waits for a decision, with the remedy; and the gaps that were accepted."""
    if context.invoked_subcommand is None:
        gaps_ls(stream, as_json)


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
    from waybill.cli import ls as command

    command.run(stream, topic, as_json=as_json)


@uploads_app.command("ls")
def uploads_ls(
    stream: Annotated[str | None, typer.Argument(help="The stream; the whole archive if left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """The multipart uploads of backup objects that are not completed, those of running lanes included."""
    from waybill.cli import uploads

    uploads.ls(stream, as_json=as_json)


@uploads_app.command("abort")
def uploads_abort(
    stream: Annotated[str | None, typer.Argument(help="The stream; the whole archive if left out.")] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="2h, 1d; if left out, storage.abort_uploads_after of the config.")
    ] = None,
) -> None:
    """Abort the uploads that were begun so long ago. A running lane's would be fetched again: nothing is lost."""
    from waybill.cli import uploads

    uploads.abort(stream, older_than)


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
    from waybill.cli import cat as command

    command.run(key, from_offset, to_offset, limit)


@app.command()
def verify(
    stream: Annotated[str | None, typer.Argument(help="The stream; all there are if left out.")] = None,
    table: Annotated[bool, typer.Option("--table/--no-table", help="Hold the tables against the chains.")] = True,
    as_json: AsJson = False,
) -> None:
    """Read the whole archive and hold the tables against it: each offset exactly once, or exit code 1."""
    from waybill.cli import verify as command

    command.run(stream, table=table, as_json=as_json)
