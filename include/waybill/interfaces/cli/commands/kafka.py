"""Commands about the Kafka cluster that the streams come from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from waybill.interfaces.cli.commands.options import AsJson, By, Reason, StreamName, option
from waybill.interfaces.operations import parameters as p

app = typer.Typer()
kafka_app = typer.Typer(help="Kafka itself: topics as declared, risks, losses, producers.", no_args_is_help=True)
app.add_typer(kafka_app, name="kafka")

Brokers = Annotated[list[int] | None, typer.Option("--broker", help="The id of a lost broker; can be repeated.")]
Generation = Annotated[int | None, option(p.OTHER_GENERATION)]
Rack = Annotated[str | None, typer.Option("--rack", help="All live brokers of this rack are lost.")]


@kafka_app.command("what-if")
def what_if(broker: Brokers = None, rack: Rack = None, as_json: AsJson = False) -> None:
    """Print what the loss of brokers, or of a rack, would do to topic-partitions and streams. It changes nothing."""
    from waybill.interfaces.cli import kafka_what_if as command

    command.run_what_if(broker or [], rack, as_json=as_json)


@kafka_app.command("drill")
def drill(
    broker: Brokers = None,
    rack: Rack = None,
    kill_with: Annotated[
        str | None, typer.Option("--kill-with", help="The command that ends a broker; {broker} is its id.")
    ] = None,
    start_with: Annotated[
        str | None, typer.Option("--start-with", help="The command that starts it again; {broker} is its id.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait for the forecast, and to recover.")] = 60,
    as_json: AsJson = False,
) -> None:
    """End brokers, compare what happens with `waybill kafka what-if`, and start them again.

    Without commands it ends brokers of the local stack. The exit code is 1 if the outcome differs from the forecast.
    """
    from waybill.interfaces.cli import kafka_what_if as command

    command.start_drill(
        broker or [], rack, kill_command=kill_with, start_command=start_with, timeout_seconds=timeout, as_json=as_json
    )


@kafka_app.command("producers")
def producers(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    messages: Annotated[
        int, typer.Option("--messages", min=1, help="So many of the newest offsets of each topic-partition.")
    ] = 100_000,
    limit: Annotated[
        str, typer.Option("--limit", help="So many bytes are read of all topic-partitions together, about.")
    ] = "1GiB",
    as_json: AsJson = False,
) -> None:
    """Print how producers write to a topic: idempotence, codecs, batch sizes, timestamps, and what they could save.

    It reads the newest offsets of each topic-partition. Each has an equal share of the limit; the output states which
    ones were cut. Progress is on stderr.

    The figures come from the headers of record batches. What another codec or larger batches would save is measured
    on a sample of a few megabytes.
    """
    from waybill.interfaces.cli import kafka_producers as command

    command.report_producers(topic, messages, limit, as_json=as_json)


@kafka_app.command("plan")
def plan(
    check: Annotated[bool, typer.Option("--check", help="Exit with code 1 if a topic is not as declared.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print what differs between Kafka and `kafka.topics` of the config. It changes nothing."""
    from waybill.interfaces.cli import kafka_topics as command

    command.print_plan(as_json=as_json, check=check)


@kafka_app.command("apply")
def apply(
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before data is copied or topic-partitions are added.")
    ] = False,
    allow_loss: Annotated[
        bool,
        typer.Option(
            "--allow-loss", help="Also make changes that let Kafka delete messages, or lose acknowledged ones."
        ),
    ] = False,
    throttle: Annotated[
        str,
        typer.Option("--throttle", help="The bytes per second that a broker sends, and receives, for copies; or none."),
    ] = "50MiB",
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait for the copies of one topic.")] = 86_400,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is stored with the steps.")] = "topics as declared",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Make Kafka have the topics of `kafka.topics`: create, configure, add topic-partitions, copy, elect.

    It removes no topic, topic-partition or replica. It asks before it copies data and before it adds topic-partitions.
    It changes no config such that Kafka deletes messages, or can lose acknowledged ones, without --allow-loss. It can
    be run again at any time: it does what is left, and waits for copies that are under way, which then get this
    --throttle. The exit code is 1 if a difference is left.
    """
    from waybill.interfaces.cli import kafka_topics as command

    command.apply_topics(
        yes=yes,
        allow_loss=allow_loss,
        throttle=throttle,
        timeout_seconds=timeout,
        reason=reason,
        by=by,
        as_json=as_json,
    )


@kafka_app.command("health")
def health(
    history: Annotated[
        bool, typer.Option("--history", help="Also when topic-partitions lacked replicas in the last 14 days.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the promises about the Kafka cluster (`kafka.promises`), as they are now.

    Durations come from what the watch has stored. The exit code is 1 if a promise is broken.
    """
    from waybill.interfaces.cli import kafka_health as command

    command.show_health(history=history, as_json=as_json)


@kafka_app.command("losses")
def losses(
    stream: StreamName,
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", help="Only the partition of this number.")] = None,
    generation: Generation = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write each lost offset to losses.parquet and losses.jsonl here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print which messages unclean elections took back: archived ones, those nobody read, and what replaced them.

    The archive is compared with Kafka's log by leader epoch. It changes nothing. The exit code is 1 if a
    topic-partition could not be read; the others are listed.
    """
    from waybill.interfaces.cli import kafka_losses as command

    command.list_losses(stream, topic, partition, generation=generation, out=out, as_json=as_json)


@kafka_app.command("republish")
def republish(
    stream: StreamName,
    topic: Annotated[str, typer.Option("--topic", help="The topic.")],
    partition: Annotated[int, typer.Option("--partition", help="The number of its partition.")],
    reason: Reason,
    by: By = None,
    generation: Generation = None,
    abandon: Annotated[int | None, option(p.PUBLICATION)] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also the messages of abandoned publications, some for the second time.")
    ] = False,
    allow_compacted: Annotated[
        bool,
        typer.Option("--allow-compacted", help="Also to a compacted topic, where old values then replace newer ones."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Publish archived messages again that an unclean election took back, each exactly once, to their topic-partition.

    Each has the header `waybill-republished`. The decision is stored first. A run that was ended is finished by the
    next one, and what was published before is not published again. A publication that cannot be finished can be
    abandoned; `waybill kafka losses` lists publications with their numbers.
    """
    from waybill.interfaces.cli import kafka_losses as command

    if abandon is not None:
        command.abandon_publication(stream, topic, partition, abandon, reason=reason, by=by, generation=generation)
        return
    command.republish(
        stream,
        topic,
        partition,
        reason=reason,
        by=by,
        generation=generation,
        again=again,
        allow_compacted=allow_compacted,
        yes=yes,
        as_json=as_json,
    )
