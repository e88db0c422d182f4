"""`waybill offsets`: committed offset, log end, lag and state of every topic-partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import typer

from waybill.archive.chain import chain
from waybill.archive.ingest import connect
from waybill.config.models import Config, StartPosition
from waybill.config.models.quantities import counted
from waybill.config.names import TopicPartition
from waybill.interfaces.cli.render import PrintedColumn, count, print_json, print_table, time_text_of
from waybill.interfaces.cli.targets import StreamsAlone, load_streams, stream_names
from waybill.services.coordination import Coordinator, Stop
from waybill.services.kafka.kafka import LogRange
from waybill.services.store import Store

if TYPE_CHECKING:
    from waybill.archive.ingest.kinesis.shard_states import ShardState
    from waybill.archive.ingest.target import Source


@dataclass(frozen=True, slots=True)
class Row:
    """One topic-partition of a stream. An unknown figure is None."""

    stream: str
    tp: TopicPartition
    committed_offset: int | None
    earliest: int | None
    """Kafka's log start offset."""
    end: int | None
    """Kafka's log end offset."""
    lag: int | None
    state: str
    stop: Stop | None
    shards: tuple[ShardState, ...] | None = None
    """The shards of a Kinesis slot; None for Kafka."""
    archived_to_ms: int | None = None
    """For a Kinesis slot, the arrival time up to which all records are archived, in epoch ms."""

    def document(self) -> dict[str, Any]:
        """Return the row as a JSON object."""
        slot: dict[str, Any] = {}
        if self.shards is not None:
            slot = {"archived_to_ms": self.archived_to_ms, "shards": [_shard_document(each) for each in self.shards]}
        return slot | {
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
    """Print the offsets of one stream or of all; see `waybill offsets --help`."""
    config = load_streams()
    names = stream_names(config, stream)

    def read(name: str) -> tuple[list[Row], list[ShardState]]:
        waiting = _shards_without_slot(config, name) if config.stream(name).is_kinesis else ()
        return list(stream_offsets(config, name)), list(waiting)

    with StreamsAlone() as alone:
        found = alone.read(names, read).values()
        rows = [row for of_stream, _ in found for row in of_stream]
        waiting = [each for _, of_stream in found for each in of_stream]
        if as_json:
            without_slot = [
                {"topic": each.topic, "partition": None, "shards": [_shard_document(each)]} for each in waiting
            ]
            print_json([*(row.document() for row in rows), *without_slot])
        else:
            _print_rows(rows, waiting)


def _print_rows(rows: Sequence[Row], waiting: Sequence[ShardState]) -> None:
    columns = [
        PrintedColumn("stream"),
        PrintedColumn("topic-partition"),
        PrintedColumn("committed", figure=True),
        PrintedColumn("end", figure=True),
        PrintedColumn("lag", figure=True),
        PrintedColumn("state"),
    ]
    print_table(
        columns,
        ([r.stream, str(r.tp), count(r.committed_offset), count(r.end), count(r.lag), r.state] for r in rows),
    )
    _print_shards([*((str(row.tp), each) for row in rows for each in row.shards or ()), *(("-", w) for w in waiting)])
    stopped = sum(row.stop is not None for row in rows)
    if stopped:
        verb = "is" if stopped == 1 else "are"
        typer.echo(f"\n{counted(stopped, 'topic-partition')} {verb} stopped: `waybill gaps` shows why and what to do")


def _print_shards(shards: Sequence[tuple[str, ShardState]]) -> None:
    """Print shards of Kinesis, each with its slot."""
    if not shards:
        return
    typer.echo("")
    columns = [
        PrintedColumn("slot"),
        PrintedColumn("shard"),
        PrintedColumn("parents"),
        PrintedColumn("archived to"),
        PrintedColumn("state"),
    ]
    print_table(
        columns,
        (
            [slot, each.shard_id, ", ".join(each.parents) or "-", _position_text(each), each.progress.value]
            for slot, each in shards
        ),
    )


def _position_text(shard: ShardState) -> str:
    position = shard.position
    if position is None or position.is_ended:
        return "-" if position is None else "its end"
    return position.sequence or ("its start" if position.timestamp_ms < 0 else time_text_of(position.timestamp_ms))


def _shard_document(shard: ShardState) -> dict[str, Any]:
    return {
        "shard": shard.shard_id,
        "parents": list(shard.parents),
        "position": None if shard.position is None else shard.position.to_fields(),
        "state": shard.progress.name.lower(),
    }


def _shards_without_slot(config: Config, name: str) -> list[ShardState]:
    from waybill.archive.ingest.kinesis.slot_source import slots_of

    with connect(config, name) as services:
        return [each for each in slots_of(services.source).shard_states({}) if each.slot is None]


def stream_offsets(config: Config, name: str) -> list[Row]:
    """Return a row for each topic-partition in Kafka or in the archive, sorted."""
    stream = config.stream(name)
    with connect(config, name) as services:
        coordinator, kafka, store = services.coordinator, services.source, services.store
        # Committed offsets are read before Kafka's: a commit in between only makes the lag look larger than it is.
        committed = {tp: read.committed_offset for tp, read in coordinator.list_committed().items()}
        stops = {stop.tp: stop for stop in coordinator.list_stops()}
        in_kafka = kafka.topic_partitions(stream)
        logs = kafka.offsets(in_kafka)
        chain_ends = _chain_ends(store, stream.generation, [tp for tp in in_kafka if tp not in committed])
        state = _StreamState(name, stream.start, committed, chain_ends, logs, stops)
        rows = [state.row(tp) for tp in sorted({*committed, *logs, *stops})]
        return _slot_rows(rows, services.source, coordinator) if stream.is_kinesis else rows


def _slot_rows(rows: Sequence[Row], source: Source, coordinator: Coordinator) -> list[Row]:
    """Return the rows of slots with their shards. Kinesis does not count records, so the ends are unknown."""
    from waybill.archive.ingest.kinesis.slot_source import slots_of

    states = slots_of(source).shard_states(coordinator.list_committed())
    read_to = coordinator.read_slot_reads(row.tp for row in rows)
    found = []
    for row in rows:
        own = tuple(each for each in states if (each.topic, each.slot) == (row.tp.topic, row.tp.partition))
        state, read = row.state, read_to.get(row.tp)
        at_ms = None if read is None else read.archived_to_ms
        if row.stop is None and any(not (each.position and each.position.is_ended) for each in own):
            state = "not read yet" if at_ms is None else f"archived up to {time_text_of(at_ms)}"
        found.append(replace(row, earliest=None, end=None, lag=None, state=state, shards=own, archived_to_ms=at_ms))
    return found


def _chain_ends(store: Store, generation: int, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the next offset of each chain that exists.

    For topic-partitions without a committed offset: ZooKeeper lost its data, or the first commit has not happened yet.
    """
    ends = ((tp, chain.read_chain_end(store, generation, tp)) for tp in tps)
    return {tp: end for tp, end in ends if end is not None}


@dataclass(frozen=True, slots=True)
class _StreamState:
    """What ZooKeeper, the archive and Kafka hold of one stream."""

    stream: str
    start: object
    committed: Mapping[TopicPartition, int]
    chain_ends: Mapping[TopicPartition, int]
    logs: Mapping[TopicPartition, LogRange]
    stops: Mapping[TopicPartition, Stop]

    def row(self, tp: TopicPartition) -> Row:
        committed = self.committed.get(tp, self.chain_ends.get(tp))
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
        # Before the first lane has run, the start offset is known only if it is `earliest`.
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
