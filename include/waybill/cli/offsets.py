"""`waybill offsets`: how far the archive is, and what stands still."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import typer

from waybill.archive import chain
from waybill.cli.render import Column, count, print_json, print_table
from waybill.cli.targets import stream_names
from waybill.config import Config, StartPosition, load_config
from waybill.coordination import Stop
from waybill.ingest import connect
from waybill.names import TopicPartition
from waybill.sources.kafka import LogRange
from waybill.store import Store

__all__ = ["Row", "run", "stream_offsets"]


@dataclass(frozen=True, slots=True)
class Row:
    """A topic-partition of a stream. None: there is no such figure."""

    stream: str
    tp: TopicPartition
    committed_offset: int | None
    earliest: int | None
    end: int | None
    lag: int | None
    state: str
    stop: Stop | None

    def document(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "committed_offset": self.committed_offset,
            "earliest_offset": self.earliest,
            "end_offset": self.end,
            "lag": self.lag,
            "state": self.state,
            "stop": self.stop
            and {
                "error": self.stop.error,
                "message": self.stop.message,
                "figures": self.stop.figures,
                "stopped_at_ms": self.stop.stopped_at_ms,
            },
        }


def run(stream: str | None, *, as_json: bool) -> None:
    """Print them; see `waybill offsets --help`."""
    config = load_config()
    rows = [row for name in stream_names(config, stream) for row in stream_offsets(config, name)]
    if as_json:
        print_json([row.document() for row in rows])
        return
    columns = [
        Column("stream"),
        Column("topic-partition"),
        Column("committed", figure=True),
        Column("end", figure=True),
        Column("lag", figure=True),
        Column("state"),
    ]
    print_table(
        columns,
        ([r.stream, str(r.tp), count(r.committed_offset), count(r.end), count(r.lag), r.state] for r in rows),
    )
    for row in rows:
        if row.stop:
            typer.echo(f"\n{row.stop.error}: {row.stop.message}")


def stream_offsets(config: Config, name: str) -> list[Row]:
    """A row for each topic-partition that Kafka or the archive has, sorted."""
    stream = config.stream(name)
    with connect(config, name) as services:
        coordinator, kafka, store = services.coordinator, services.source, services.store
        # The committed offsets first: what is committed later only makes the lag look larger than it is.
        committed = {tp: found.committed_offset for tp, found in coordinator.list_committed().items()}
        stops = {stop.tp: stop for stop in coordinator.list_stops()}
        in_kafka = kafka.topic_partitions(stream)
        logs = kafka.offsets(in_kafka)
        from_chain = _from_chains(store, stream.generation, [tp for tp in in_kafka if tp not in committed])
        rows = _Rows(name, stream.start, committed, from_chain, logs, stops)
        return [rows.row(tp) for tp in sorted({*committed, *logs, *stops})]


def _from_chains(store: Store, generation: int, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Where chains end that ZooKeeper knows nothing of: its data was lost, or the first commit is still to come."""
    ends = ((tp, chain.end_offset(store, generation, tp)) for tp in tps)
    return {tp: end for tp, end in ends if end is not None}


@dataclass(frozen=True, slots=True)
class _Rows:
    stream: str
    start: object
    committed: Mapping[TopicPartition, int]
    from_chain: Mapping[TopicPartition, int]
    logs: Mapping[TopicPartition, LogRange]
    stops: Mapping[TopicPartition, Stop]

    def row(self, tp: TopicPartition) -> Row:
        committed = self.committed.get(tp, self.from_chain.get(tp))
        log = self.logs.get(tp)
        stop = self.stops.get(tp)
        state = ", ".join(self._states(tp, committed, log, stop)) or "ok"
        return Row(
            self.stream,
            tp,
            committed,
            log.earliest if log else None,
            log.end if log else None,
            self._lag(committed, log),
            state,
            stop,
        )

    def _lag(self, committed: int | None, log: LogRange | None) -> int | None:
        if log is None:
            return None
        if committed is not None:
            return max(log.end - committed, 0)
        # Not started: from where is only known for `earliest` before the first lane looks.
        return log.end - log.earliest if self.start is StartPosition.EARLIEST else None

    def _states(
        self, tp: TopicPartition, committed: int | None, log: LogRange | None, stop: Stop | None
    ) -> Iterator[str]:
        if stop:
            yield f"stopped: {stop.error}"
        if committed is None:
            yield "not started"
        elif tp not in self.committed:
            yield "from the chain: ZooKeeper has no committed offset"
        if log is None:
            yield "not in Kafka"
        elif committed is not None and committed > log.end and not stop:
            yield "waits until the log is as long as the archive"
