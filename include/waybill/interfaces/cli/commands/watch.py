"""Commands about promises: the watch, its metrics, and incidents."""

from __future__ import annotations

from typing import Annotated

import typer

from waybill.interfaces.cli.commands.options import AsJson, By, argument, option
from waybill.interfaces.operations import parameters as p

app = typer.Typer()
incidents_app = typer.Typer(help="Broken promises: list, show, acknowledge.", no_args_is_help=True)
app.add_typer(incidents_app, name="incidents")


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
    from waybill.interfaces.cli import incidents as command
    from waybill.interfaces.cli.targets import parse_duration_option

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
    from waybill.interfaces.cli import metrics as command

    command.run(serve)


@incidents_app.command("ls")
def incidents_ls(
    resolved: Annotated[bool, typer.Option("--all", help="Also those that were resolved in the last 30 days.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the open incidents."""
    from waybill.interfaces.cli import incidents as command

    command.list_incidents(with_resolved=resolved, as_json=as_json)


@incidents_app.command("show")
def incidents_show(
    incident: Annotated[str, argument(p.INCIDENT)],
    as_json: AsJson = False,
) -> None:
    """Print all that is known of an incident, and what to do."""
    from waybill.interfaces.cli import incidents as command

    command.show(incident, as_json=as_json)


@incidents_app.command("ack")
def incidents_ack(
    incident: Annotated[str, argument(p.INCIDENT)],
    reason: Annotated[str, option(p.INCIDENT_REASON)],
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Acknowledge an incident: reminders and escalation end, and its end is still told."""
    from waybill.interfaces.cli import incidents as command

    command.acknowledge(incident, reason=reason, by=by, as_json=as_json)


@app.command("decisions")
def decisions(
    stream: Annotated[str | None, typer.Option("--stream", help="Only those about this stream.")] = None,
    as_json: AsJson = False,
) -> None:
    """List what people decided in the last 7 days, the newest 50: who, when, why, and through which surface."""
    from waybill.interfaces.cli import decisions as command

    command.list_decisions(stream, as_json=as_json)
