"""`waybill gaps`: what stands still and waits for a decision, and what was decided."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import typer

from waybill.archive import gaps
from waybill.archive.gaps import Gap
from waybill.cli.render import Column, count, print_json, print_table, time_text
from waybill.cli.targets import decision, open_coordinator, open_store, stream_names, stream_of_topic
from waybill.config import load_config
from waybill.coordination import Stop
from waybill.errors import ConfigError
from waybill.ingest import connect
from waybill.ingest.gap_acceptance import Accepted, accept, accept_lost
from waybill.names import TopicPartition

__all__ = ["list_gaps", "run_accept"]


@dataclass(frozen=True, slots=True)
class _Found:
    """What there is of one stream."""

    stream: str
    stops: list[Stop]
    accepted: list[Gap]


def list_gaps(stream: str | None, *, as_json: bool) -> None:
    """Print them; see `waybill gaps --help`."""
    config = load_config()
    found = []
    with open_store(config) as store:
        for name in stream_names(config, stream):
            with open_coordinator(config, name) as coordinator:
                stops = coordinator.list_stops()
            chosen = config.stream(name)
            found.append(_Found(name, stops, gaps.of_topics(store, chosen.generation, chosen.matches)))
    if as_json:
        print_json(
            {
                "stops": [_stop_document(each.stream, stop) for each in found for stop in each.stops],
                "accepted": [{"stream": each.stream, **gap.document()} for each in found for gap in each.accepted],
            }
        )
        return
    _print_stops(found)
    typer.echo()
    _print_accepted(found)


def run_accept(
    topic: str,
    partition: int,
    reason: str,
    *,
    stream: str | None,
    by: str | None,
    from_offset: int | None,
    to_offset: int | None,
    as_json: bool,
) -> None:
    """Accept a gap, print what follows; see `waybill gaps accept --help`."""
    decided = decision(reason, by)
    if (from_offset is None) != (to_offset is None):
        raise ConfigError("--from and --to belong together: the first and the last offset that are lost")
    config = load_config()
    name = stream_of_topic(config, topic, stream)
    tp = TopicPartition(topic, partition)
    with connect(config, name) as services:
        if from_offset is None or to_offset is None:
            accepted = accept(services, config.stream(name), tp, decided)
        else:
            accepted = accept_lost(services, config.stream(name), tp, from_offset, to_offset + 1, decided)
    if as_json:
        print_json(
            {
                "stream": name,
                "new": accepted.is_new,
                "accepted": [gap.document() for gap in accepted.gaps],
                "committed_offset": accepted.committed_offset,
                "end_offset": accepted.end_offset,
            }
        )
        return
    for gap in accepted.gaps:
        before = "" if accepted.is_new else f" before, by {gap.accepted_by} at {_time(gap.accepted_at_ms)}"
        typer.echo(f"accepted{before}: {gap}, up to {count(gap.messages_at_most)} messages: {gap.reason}")
    typer.echo(_what_follows(accepted))


def _what_follows(accepted: Accepted) -> str:
    offset, end = accepted.committed_offset, accepted.end_offset
    if end < offset:
        return f"ingest goes on at offset {offset}, once the log is that long: it ends at {end} now"
    return f"ingest goes on at offset {offset}"


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


def _print_stops(found: Iterable[_Found]) -> None:
    stops = [(each.stream, stop) for each in found for stop in each.stops]
    if not stops:
        typer.echo("nothing stands still")
        return
    columns = [
        Column("stream"),
        Column("topic-partition"),
        Column("stopped by"),
        Column("messages at most", figure=True),
        Column("since", figure=True),
    ]
    print_table(
        columns,
        (
            [stream, str(stop.tp), stop.error, count(_at_most(stop)), _time(stop.stopped_at_ms)]
            for stream, stop in stops
        ),
    )
    for _, stop in stops:
        typer.echo(f"\n{stop.error}: {stop.message}")


def _at_most(stop: Stop) -> int | None:
    figure = stop.figures.get("messages_at_most")
    return figure if isinstance(figure, int) else None


def _print_accepted(found: Iterable[_Found]) -> None:
    accepted = [(each.stream, gap) for each in found for gap in each.accepted]
    if not accepted:
        typer.echo("no gap was ever accepted")
        return
    columns = [
        Column("stream"),
        Column("topic-partition"),
        Column("from", figure=True),
        Column("to", figure=True),
        Column("messages at most", figure=True),
        Column("accepted gap"),
        Column("when", figure=True),
        Column("by"),
        Column("reason"),
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
                _time(gap.accepted_at_ms),
                gap.accepted_by,
                gap.reason,
            ]
            for stream, gap in accepted
        ),
    )


def _time(milliseconds: int) -> str:
    return time_text(datetime.fromtimestamp(milliseconds / 1000, UTC))
