"""`waybill kafka losses` and `waybill kafka republish`: what unclean elections took back, and publishing it again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from waybill.brokers.forecast_inputs import connect_cluster
from waybill.cli.render import Column, count, print_json, print_table, time_text_of
from waybill.cli.targets import (
    archived_topic_partitions,
    load_streams,
    make_decision,
    open_coordinator,
    open_store,
)
from waybill.config import Config, IsolationLevel
from waybill.config.quantities import counted
from waybill.connections import KafkaEndpoint, find_connection
from waybill.coordination import Coordinator
from waybill.errors import ConfigError, GapRefused
from waybill.losses.records import Republished, list_records, not_recorded
from waybill.losses.report import LossCounts, LossFiles, read_losses
from waybill.losses.republish import RepublishResult
from waybill.losses.republish import republish as publish_again
from waybill.losses.truncations import SeenEnd, Truncation, find_truncations
from waybill.names import TopicPartition, samples_key
from waybill.sources.kafka import KafkaSource
from waybill.sources.target import KafkaTarget
from waybill.store import Store
from waybill.watch.samples import Offsets, Samples

__all__ = ["list_losses", "republish"]


@dataclass(frozen=True, slots=True)
class _Loss:
    """A truncation, what is in it, and what was published again."""

    truncation: Truncation
    counts: LossCounts
    records: list[Republished]

    @property
    def left(self) -> int:
        """Return how many archived offsets no record has."""
        runs = not_recorded(self.truncation.archived, self.records)
        return sum(run.next_offset - run.first_offset for run in runs)


# --- losses -----------------------------------------------------------------------------------------------------------


def list_losses(stream: str, topic: str | None, partition: int | None, *, out: Path | None, as_json: bool) -> None:
    """Print what unclean elections took back; see `waybill kafka losses --help`."""
    config = load_streams()
    with ExitStack() as stack:
        store = stack.enter_context(open_store(config))
        coordinator = stack.enter_context(open_coordinator(config, stream))
        cluster = stack.enter_context(connect_cluster(config))
        source = KafkaSource.sharing(cluster, IsolationLevel.READ_UNCOMMITTED)
        files = None if out is None else stack.enter_context(LossFiles(out))
        losses = []
        for tp in _topic_partitions(config, stream, store, topic, partition):
            records = list_records(store, config.stream(stream).generation, tp)
            for truncation in _truncations(config, stream, store, source, coordinator, tp):
                counts = LossCounts()
                for row in read_losses(store, source, truncation):
                    counts = counts.with_row(row)
                    if files is not None:
                        files.add(row)
                losses.append(_Loss(truncation, counts, records))
    if as_json:
        print_json({"stream": stream, "truncations": [_document(each) for each in losses]})
    else:
        _print(stream, losses)
        if out is not None:
            typer.echo(f"Each lost offset is in {out / 'losses.parquet'} and {out / 'losses.jsonl'}.")


def _topic_partitions(
    config: Config, stream: str, store: Store, topic: str | None, partition: int | None
) -> list[TopicPartition]:
    """Return the archived topic-partitions that are meant. Raises `ConfigError` if there is none."""
    if config.stream(stream).is_kinesis:
        raise ConfigError(f"stream {stream!r} reads Kinesis, which has no elections")
    found = [
        tp
        for tp in archived_topic_partitions(config, stream, store)
        if topic in (None, tp.topic) and partition in (None, tp.partition)
    ]
    if not found and (topic is not None or partition is not None):
        given = "/".join(str(part) for part in (topic, partition) if part is not None)
        raise ConfigError(f"stream {stream!r} has archived nothing of {given}: see `waybill offsets`")
    return found


def _truncations(
    config: Config, stream: str, store: Store, source: KafkaSource, coordinator: Coordinator, tp: TopicPartition
) -> list[Truncation]:
    committed = coordinator.read_committed(tp)
    if committed is None:
        raise GapRefused(f"{tp}: ZooKeeper has no committed offset. First run `waybill offsets rebuild`")
    samples, key, now = _samples(store), (stream, tp), time.time_ns() // 1_000_000
    log = source.offsets([tp])[tp]
    samples = samples.with_sample(now, {key: Offsets(log.earliest, log.end, committed.committed_offset)})

    def seen_end(resume_offset: int, until_ms: int | None) -> SeenEnd | None:
        drop = samples.end_before_drop(key, resume_offset, until_ms)
        return None if drop is None else SeenEnd(drop.at_ms, drop.end)

    generation = config.stream(stream).generation
    return find_truncations(store, source, generation, tp, committed.committed_offset, seen_end)


def _samples(store: Store) -> Samples:
    return Samples.parse(store.read_if_exists(samples_key(store.prefix)))


def _document(loss: _Loss) -> dict[str, Any]:
    truncation, gap = loss.truncation, loss.truncation.accepted
    unknown_first, unknown_next = truncation.unknown
    seen = truncation.seen_end
    return {
        "topic": truncation.tp.topic,
        "partition": truncation.tp.partition,
        "generation": truncation.generation,
        "taken_back": [
            {"leader_epoch": run.leader_epoch, "first_offset": run.first_offset, "next_offset": run.next_offset}
            for run in truncation.archived
        ],
        "unknown": {"first_offset": unknown_first, "next_offset": unknown_next},
        "end_seen": None if seen is None else {"end_offset": seen.end_offset, "at_ms": seen.at_ms},
        "archived_messages": loss.counts.archived,
        "unknown_offsets": loss.counts.unknown,
        "replaced_offsets": loss.counts.replaced,
        "accepted": None if gap is None else gap.document(),
        "not_published_offsets": loss.left,
        "published": [_record_document(each) for each in loss.records],
    }


def _record_document(record: Republished) -> dict[str, Any]:
    return {
        "number": record.number,
        "ranges": [[run.first_offset, run.next_offset] for run in record.runs],
        "by": record.by,
        "reason": record.reason,
        "at_ms": record.at_ms,
        "is_done": record.is_done,
    }


def _print(stream: str, losses: list[_Loss]) -> None:
    if not losses:
        typer.echo(f"Kafka's log has every archived message of stream {stream} that its retention has kept.")
        return
    columns = [
        Column("topic-partition"),
        Column("offsets taken back"),
        Column("leader epochs"),
        Column("archived", figure=True),
        Column("never read", figure=True),
        Column("offsets used again", figure=True),
        Column("not published again", figure=True),
    ]
    rows = []
    for each in losses:
        truncation = each.truncation
        rows.append(
            [
                str(truncation.tp),
                f"{truncation.first_offset}–{max(truncation.unknown[1], truncation.resume_offset) - 1}",
                ", ".join(str(run.leader_epoch) for run in truncation.archived),
                count(each.counts.archived),
                f"≥ {each.counts.unknown:,}" if truncation.seen_end else "not known",
                count(each.counts.replaced),
                count(each.left),
            ]
        )
    print_table(columns, rows)
    typer.echo()
    for line in _notes(stream, losses):
        typer.echo(line)


def _notes(stream: str, losses: list[_Loss]) -> Iterator[str]:
    for each in losses:
        seen = each.truncation.seen_end
        if seen is not None:
            yield (
                f"{each.truncation.tp}: a watch saw the lost log end at offset {seen.end_offset - 1} at "
                f"{time_text_of(seen.at_ms)}; it may have been longer."
            )
        for record in each.records:
            state = "published again" if record.is_done else "NOT FINISHED: run the command again"
            yield f"{record.tp}: {record.by} at {time_text_of(record.at_ms)}: {record.reason} ({state})"
    tps = sorted({each.truncation.tp for each in losses if each.left or not all(r.is_done for r in each.records)})
    for tp in tps:
        yield (
            f"To publish the archived messages again: waybill kafka republish {stream} --topic {tp.topic} "
            f'--partition {tp.partition} --reason "…"'
        )


# --- republish --------------------------------------------------------------------------------------------------------


def republish(
    stream: str, topic: str, partition: int, *, reason: str, by: str | None, yes: bool, as_json: bool
) -> None:
    """Publish archived messages again that an election took back; see `waybill kafka republish --help`."""
    config = load_streams()
    decision = make_decision(reason, by)
    generation = config.stream(stream).generation
    with ExitStack() as stack:
        store = stack.enter_context(open_store(config))
        (tp,) = _topic_partitions(config, stream, store, topic, partition)
        coordinator = stack.enter_context(open_coordinator(config, stream))
        target = stack.enter_context(KafkaTarget(KafkaEndpoint.of(find_connection(config.kafka.connection))))
        truncations = _truncations(config, stream, store, target.log, coordinator, tp)
        lost = [run for truncation in truncations for run in truncation.archived]
        records = list_records(store, generation, tp)
        left = sum(run.next_offset - run.first_offset for run in not_recorded(lost, records))
        if left and not yes:
            typer.confirm(f"Publish the messages of {counted(left, 'offset')} to {tp} again?", abort=True, err=True)
        results = publish_again(store, target, generation, tp, lost, decision)
    if as_json:
        print_json({"published": [{**_record_document(each.record), "messages": each.messages} for each in results]})
    else:
        _print_published(tp, results)


def _print_published(tp: TopicPartition, results: list[RepublishResult]) -> None:
    if not results:
        typer.echo(f"{tp}: nothing to publish: everything that the archive holds of its losses was published before.")
    for each in results:
        typer.echo(
            f"{tp}: {counted(each.messages, 'message')} published again, each once, with the header "
            f"waybill-republished ({each.record.by}: {each.record.reason})"
        )
