"""The commands `waybill replay …`."""

from __future__ import annotations

from typing import Annotated

import typer

from waybill.interfaces.cli.commands.options import AsJson, Reason, StreamName, argument, option
from waybill.interfaces.operations import parameters as p

app = typer.Typer()
replay_app = typer.Typer(help="Deliver the messages of some keys between two times again.", no_args_is_help=True)
app.add_typer(replay_app, name="replay")

RequestId = Annotated[str, argument(p.REPLAY)]
Requester = Annotated[str | None, typer.Option("--by", help="Who requests it; default: USER@HOST.")]


@replay_app.command("create")
def replay_create(
    stream: StreamName,
    begin: Annotated[str, option(p.FROM_TIME)],
    end: Annotated[str, option(p.TO_TIME)],
    key: Annotated[list[str] | None, typer.Option("--key", help="A message key, as text; repeatable.")] = None,
    key_base64: Annotated[
        list[str] | None, typer.Option("--key-base64", metavar="BASE64", help="A key that is no text; repeatable.")
    ] = None,
    webhook: Annotated[str | None, option(p.URL)] = None,
    kafka: Annotated[
        str | None, typer.Option("--kafka", metavar="CONNECTION/TOPIC", help="Deliver to this Kafka topic.")
    ] = None,
    s3: Annotated[str | None, option(p.COMPRESSION)] = None,
    priority: Annotated[int, typer.Option("--priority", help="0 to 9; higher ones are served first.")] = 0,
    by: Requester = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option("--idempotency-key", help="A second call with this key gives the request of the first."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Request the messages of some keys between two times, for a webhook, a Kafka topic or S3."""
    from waybill.interfaces.cli import replay as command

    command.create(
        {
            "stream": stream,
            "keys": [*(key or []), *({"base64": each} for each in key_base64 or [])],
            "from": begin,
            "to": end,
            "target": command.target_of(webhook=webhook, kafka=kafka, s3=s3),
            "priority": priority,
        },
        by,
        idempotency_key,
        as_json=as_json,
    )


@replay_app.command("ls")
def replay_ls(
    state: Annotated[
        str | None,
        typer.Option("--state", help="Only these: open, started, ongoing, completed, failed or cancelled."),
    ] = None,
    by: Annotated[str | None, typer.Option("--by", help="Only those of this requester.")] = None,
    before: Annotated[
        str | None, typer.Option("--before", metavar="ID", help="The next page: those before this one.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many, up to 1000.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List requests, the newest first."""
    from waybill.interfaces.cli import replay as command

    command.print_list(state=state, requester=by, before=before, limit=limit, as_json=as_json)


@replay_app.command("show")
def replay_show(
    request: RequestId,
    rejected: Annotated[
        bool, typer.Option("--rejected", help="List the messages that the target rejected instead.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print a request with its state and progress."""
    from waybill.interfaces.cli import replay as command

    if rejected:
        command.print_rejected(request, as_json=as_json)
    else:
        command.show(request, as_json=as_json)


@replay_app.command("cancel")
def replay_cancel(
    request: RequestId,
    reason: Reason,
    by: Annotated[str | None, typer.Option("--by", help="Who cancels it; default: USER@HOST.")] = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a request. Its worker stops at its next heartbeat; what is delivered stays."""
    from waybill.interfaces.cli import replay as command

    command.cancel(request, reason, by, as_json=as_json)


@replay_app.command("serve")
def replay_serve(
    seconds: Annotated[float, typer.Option("--seconds", help="After about how long no other request is begun.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Serve open requests until none is left, as the DAG `replay` does every minute."""
    from waybill.interfaces.cli import replay as command

    command.serve_requests(seconds, as_json=as_json)


@replay_app.command("index")
def replay_index(
    stream: Annotated[list[str] | None, typer.Option("--stream", help="Only these streams; repeatable.")] = None,
    as_json: AsJson = False,
) -> None:
    """Note which parts of the archive hold which keys, as the DAG `replay_index` does every hour."""
    from waybill.interfaces.cli import replay as command

    command.index_streams(stream or [], as_json=as_json)


@replay_app.command("migrate")
def replay_migrate() -> None:
    """Create the tables of the requests, or bring them to this version of Waybill."""
    from waybill.interfaces.cli import replay as command

    command.migrate_database()
