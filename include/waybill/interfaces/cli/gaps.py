"""`waybill gaps`: which topic-partitions are stopped, what to do about it, and the gaps that were accepted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from waybill.archive.chain import gaps
from waybill.archive.chain.gaps import Gap
from waybill.archive.ingest import connect
from waybill.archive.ingest.gap_acceptance import AcceptedGaps, SeenGap, accept_gap, accept_lost_offsets
from waybill.base.errors import ConfigError
from waybill.config.models import Config
from waybill.config.models.quantities import counted
from waybill.config.names import TopicPartition
from waybill.interfaces.cli.render import PrintedColumn, count, print_json, print_table, time_text_of
from waybill.interfaces.cli.targets import (
    StreamsAlone,
    load_streams,
    make_decision,
    open_coordinator,
    open_store,
    stream_names,
    stream_of_topic,
)
from waybill.interfaces.operations.audit_log import logged
from waybill.interfaces.operations.catalogue import ACCEPT_GAP
from waybill.services.coordination import Stop
from waybill.services.store import Store


@dataclass(frozen=True, slots=True)
class _StreamGaps:
    """The named stops and the accepted gaps of one stream."""

    stream: str
    stops: list[Stop]
    accepted: list[Gap]


@dataclass(frozen=True, slots=True)
class _Remedy:
    """The meaning of a kind of stop, and how to end it. The texts are templates for stream and topic-partition."""

    event: str | None
    """The event in one sentence; None: print the message of the stop, since causes differ."""
    action: str
    command: str | None = None


_ACCEPT = 'waybill gaps accept {topic} {partition} --reason "…"'
_NEW_CHAIN = "Or raise streams.{stream}.generation in the config, to start a new chain with what Kafka has now."

_REMEDIES = {
    "RetentionGap": _Remedy(
        "Kafka's retention deleted offsets before they were archived.",
        f"Record the gap; ingest then resumes at the first offset that Kafka still has. {_NEW_CHAIN}",
        _ACCEPT,
    ),
    "LogTruncated": _Remedy(
        "An unclean leader election removed archived offsets from Kafka's log.",
        f"Keep the archived messages; ingest then resumes at the committed offset as soon as the log reaches it. "
        f"{_NEW_CHAIN}",
        _ACCEPT,
    ),
    "TopicRecreated": _Remedy(
        "The topic was deleted and created again; one chain cannot hold the offsets of two topics.",
        "Raise streams.{stream}.generation in the config, to archive the new topic in a new chain.",
    ),
    "ChainBroken": _Remedy(
        None,
        "List all missing and damaged objects and restore them; the next run of ingest then ends the stop. If they "
        "cannot be restored, accept the lost offsets with `waybill gaps accept` and its options --from and --to.",
        "waybill verify {stream} --no-table",
    ),
    "UnexpectedFailure": _Remedy(
        None,
        "No offset is lost: the topic-partition stays at its committed offset, and a run tries again in ten minutes. "
        "The lane's log has the stack trace. Report it, or correct its cause, before retention deletes what is not "
        "archived:",
        "waybill offsets --stream {stream}",
    ),
}
"""By the name of the stop. The messages of the other kinds contain their own remedy."""


# --- gaps ls ----------------------------------------------------------------------------------------------------------


def list_gaps(stream: str | None, *, as_json: bool) -> None:
    """Print the stops with a remedy for each kind of stop, then the accepted gaps; see `waybill gaps --help`."""
    config = load_streams()
    with StreamsAlone() as alone:
        with open_store(config) as store:
            found = alone.read(stream_names(config, stream), lambda name: _read_gaps(config, store, name))
        _print_all(list(found.values()), as_json=as_json)


def _read_gaps(config: Config, store: Store, name: str) -> _StreamGaps:
    with open_coordinator(config, name) as coordinator:
        stops = coordinator.list_stops()
    chosen = config.stream(name)
    return _StreamGaps(name, stops, gaps.list_gaps_of_topics(store, chosen.generation, chosen.matches))


def _print_all(streams: Sequence[_StreamGaps], *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "stops": [_stop_document(each.stream, stop) for each in streams for stop in each.stops],
                "accepted": [{"stream": each.stream, **gap.to_fields()} for each in streams for gap in each.accepted],
            }
        )
        return
    _print_stops([(each.stream, stop) for each in streams for stop in each.stops])
    typer.echo()
    _print_accepted([(each.stream, gap) for each in streams for gap in each.accepted])


def _stop_document(stream: str, stop: Stop) -> dict[str, Any]:
    return {
        "stream": stream,
        "topic": stop.tp.topic,
        "partition": stop.tp.partition,
        "error": stop.error,
        "message": stop.message,
        "figures": stop.figures,
        "stopped_at_ms": stop.stopped_at_ms,
    }


def _print_stops(stops: Sequence[tuple[str, Stop]]) -> None:
    if not stops:
        typer.echo("No topic-partition is stopped.")
        return
    columns = [
        PrintedColumn("stream"),
        PrintedColumn("topic-partition"),
        PrintedColumn("stopped by"),
        PrintedColumn("offsets lost at most", figure=True),
        PrintedColumn("since", figure=True),
    ]
    print_table(
        columns,
        (
            [stream, str(stop.tp), stop.error, count(_lost_at_most(stop)), time_text_of(stop.stopped_at_ms)]
            for stream, stop in stops
        ),
    )
    for kind in dict.fromkeys(stop.error for _, stop in stops):
        of_kind = [(stream, stop) for stream, stop in stops if stop.error == kind]
        typer.echo()
        for line in _remedy_lines(*of_kind[0], number=len(of_kind)):
            typer.echo(line)


def _lost_at_most(stop: Stop) -> int | None:
    figure = stop.figures.get("messages_at_most")
    return figure if isinstance(figure, int) else None


def _remedy_lines(stream: str, stop: Stop, *, number: int) -> Iterable[str]:
    """Yield the remedy of a kind of stop, with the first stopped topic-partition filled in."""
    remedy = _REMEDIES.get(stop.error)
    event = None if remedy is None else remedy.event
    yield f"{stop.error} ({counted(number, 'topic-partition')}): {event or stop.message}"
    if remedy is None:
        return
    values = {"stream": stream, "topic": stop.tp.topic, "partition": stop.tp.partition}
    yield remedy.action.format(**values)
    if remedy.command is not None:
        yield f"    {remedy.command.format(**values)}"


def _print_accepted(accepted: Sequence[tuple[str, Gap]]) -> None:
    if not accepted:
        typer.echo("No gap has been accepted.")
        return
    columns = [
        PrintedColumn("stream"),
        PrintedColumn("topic-partition"),
        PrintedColumn("from", figure=True),
        PrintedColumn("to", figure=True),
        PrintedColumn("messages at most", figure=True),
        PrintedColumn("accepted gap"),
        PrintedColumn("when", figure=True),
        PrintedColumn("by"),
        PrintedColumn("reason"),
    ]
    print_table(
        columns,
        (
            [
                stream,
                str(gap.tp),
                str(gap.first_offset),
                str(gap.next_offset - 1),
                count(gap.messages_at_most),
                gap.kind,
                time_text_of(gap.accepted_at_ms),
                gap.accepted_by,
                gap.reason,
            ]
            for stream, gap in accepted
        ),
    )


# --- gaps accept ------------------------------------------------------------------------------------------------------


def run_accept(
    topic: str,
    partition: int,
    reason: str,
    *,
    stream: str | None,
    by: str | None,
    from_offset: int | None,
    to_offset: int | None,
    within: str | None,
    as_json: bool,
) -> None:
    """Accept a gap and print where ingest resumes; see `waybill gaps accept --help`."""
    decision = make_decision(reason, by)
    if (from_offset is None) != (to_offset is None):
        raise ConfigError("give --from and --to together: the first and the last lost offset")
    if from_offset is not None and within is not None:
        raise ConfigError("--from and --to are the exact range already: do not give --within with them")
    seen = None if within is None else SeenGap.parse(within)
    config = load_streams()
    name = stream_of_topic(config, topic, stream)
    tp = TopicPartition(topic, partition)
    values = {
        "stream": name,
        "topic": topic,
        "partition": partition,
        "first_offset": from_offset,
        "last_offset": to_offset,
        "within": within,
    }
    with logged(config, ACCEPT_GAP, decision, values) as done, connect(config, name) as services:
        if from_offset is None or to_offset is None:
            accepted = accept_gap(services, config.stream(name), tp, decision, seen=seen)
        else:
            accepted = accept_lost_offsets(services, config.stream(name), tp, from_offset, to_offset + 1, decision)
        done.text = f"accepted: {'; '.join(map(str, accepted.gaps))}; {_where_ingest_resumes(accepted)}"
    if as_json:
        print_json(
            {
                "stream": name,
                "new": accepted.is_new,
                "accepted": [gap.to_fields() for gap in accepted.gaps],
                "committed_offset": accepted.committed_offset,
                "end_offset": accepted.end_offset,
            }
        )
        return
    for gap in accepted.gaps:
        before = "" if accepted.is_new else f" before, by {gap.accepted_by} at {time_text_of(gap.accepted_at_ms)}"
        typer.echo(f"accepted{before}: {gap}, up to {counted(gap.messages_at_most, 'message')}: {gap.reason}")
    typer.echo(_where_ingest_resumes(accepted))


def _where_ingest_resumes(accepted: AcceptedGaps) -> str:
    offset, end = accepted.committed_offset, accepted.end_offset
    if end < offset:
        return f"ingest resumes at offset {offset}, once Kafka's log reaches it: the log ends at {end} now"
    return f"ingest resumes at offset {offset}"
