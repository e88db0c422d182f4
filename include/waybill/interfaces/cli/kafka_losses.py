"""`waybill kafka losses` and `waybill kafka republish`: list messages that elections took back, and publish them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import typer

from waybill.archive.chain.chain import committed_from_chain, find_chain_start
from waybill.base.errors import ConfigError, GapRefused, WaybillError, expected
from waybill.config.connections import KafkaEndpoint, find_connection
from waybill.config.models import Config, IsolationLevel
from waybill.config.models.quantities import counted
from waybill.config.names import TopicPartition, chain_start_key, samples_key
from waybill.interfaces.cli.render import PrintedColumn, count, print_json, print_table, time_text_of
from waybill.interfaces.cli.targets import (
    archived_topic_partitions,
    load_streams,
    make_decision,
    open_store,
)
from waybill.interfaces.operations.audit_log import logged
from waybill.interfaces.operations.catalogue import ABANDON, REPUBLISH
from waybill.replay.republish.losses_report import LossCounts, LossFiles, read_losses
from waybill.replay.republish.records import Republished, abandon, abandoned_runs, list_records, not_recorded
from waybill.replay.republish.republish import RepublishResult
from waybill.replay.republish.republish import republish as publish_again
from waybill.replay.republish.truncations import EpochRun, SeenEnd, Truncation, check_same_topic, find_truncations
from waybill.services.coordination import Coordinator, ZooKeeperSession
from waybill.services.coordination.paths import ZkPaths
from waybill.services.kafka.kafka import KafkaSource
from waybill.services.kafka.target import TargetCluster
from waybill.services.store import Store
from waybill.watch.kafka_cluster.forecast_inputs import connect_cluster
from waybill.watch.promises.samples import OffsetSample, Samples

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Loss:
    """A truncation, its messages, and the messages that were published again."""

    truncation: Truncation
    counts: LossCounts
    records: list[Republished]

    @property
    def left(self) -> int:
        """Return how many archived offsets are in no record."""
        return _offsets(not_recorded(self.truncation.archived, self.records))

    @property
    def abandoned(self) -> int:
        """Return how many archived offsets are only in abandoned records."""
        return _offsets(abandoned_runs(self.truncation.archived, self.records))


def _offsets(runs: Iterable[EpochRun]) -> int:
    return sum(run.next_offset - run.first_offset for run in runs)


@dataclass(frozen=True, slots=True)
class _Failure:
    """A topic-partition whose losses could not be listed."""

    tp: TopicPartition
    error: WaybillError

    def document(self) -> dict[str, Any]:
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "error": type(self.error).__name__,
            "message": str(self.error),
        }


class _LossesReader:
    """Reads a stream for the commands: the archive of one generation, its committed offsets, and Kafka's logs."""

    def __init__(self, config: Config, stream: str, generation: int | None, store: Store) -> None:
        """`generation`: None stands for the config's generation. Raises `ConfigError` for a Kinesis stream."""
        if config.stream(stream).is_kinesis:
            raise ConfigError(f"stream {stream!r} reads Kinesis, which has no elections")
        self._config, self._stream, self._store = config, stream, store
        self.generation = config.stream(stream).generation if generation is None else generation
        self.is_current = self.generation == config.stream(stream).generation

    def topic_partitions(self, topic: str | None, partition: int | None) -> list[TopicPartition]:
        """Return the selected archived topic-partitions. Raises `ConfigError` if there is none."""
        found = [
            tp
            for tp in archived_topic_partitions(self._config, self._stream, self._store, self.generation)
            if topic in (None, tp.topic) and partition in (None, tp.partition)
        ]
        if not found and (topic is not None or partition is not None or not self.is_current):
            given = "/".join(str(part) for part in (topic, partition) if part is not None) or "its topics"
            raise ConfigError(
                f"stream {self._stream!r} has archived nothing of {given} in generation {self.generation}: see "
                f"`waybill offsets`"
            )
        return found

    def coordinator(self) -> Coordinator:
        """Return the ZooKeeper nodes of the generation. A context manager."""
        paths = ZkPaths(self._config.zookeeper.root, self._stream, self.generation)
        return Coordinator(ZooKeeperSession.of(self._config, find_connection), paths)

    def truncations(self, source: KafkaSource, coordinator: Coordinator, tp: TopicPartition) -> list[Truncation]:
        """Return the truncations of a topic-partition by unclean elections.

        Raises what `find_truncations` raises, and `GapRefused` without a committed offset, `RestoreRefused` if the
        topic was created again.
        """
        committed = coordinator.read_committed(tp)
        now = time.time_ns() // 1_000_000
        if committed is None and not self.is_current:
            committed = committed_from_chain(self._store, self.generation, tp, now)
        if committed is None:
            raise GapRefused(f"{tp}: ZooKeeper has no committed offset. First run `waybill offsets rebuild`")
        check_same_topic(source, self.generation, tp, committed.topic_id or self._topic_id_at_start(tp))
        drops = self._drops(source, tp, committed.committed_offset, now)
        return find_truncations(self._store, source, self.generation, tp, committed.committed_offset, drops)

    def _drops(self, source: KafkaSource, tp: TopicPartition, committed_offset: int, now: int) -> list[SeenEnd]:
        """Return the log ends that a watch read each time before the log became shorter, since this chain exists."""
        key, log = (self._stream, tp), source.offsets([tp])[tp]
        samples = self._samples.with_sample(now, {key: OffsetSample(log.earliest, log.end, committed_offset)})
        since = self._chain_began_ms(tp)
        return [
            SeenEnd(each.at_ms, each.end, each.committed)
            for each in samples.drops
            if each.key == key and each.at_ms >= since
        ]

    @cached_property
    def _samples(self) -> Samples:
        return Samples.parse(self._store.read_if_exists(samples_key(self._store.prefix)))

    def _topic_id_at_start(self, tp: TopicPartition) -> str:
        start = find_chain_start(self._store, self.generation, tp)
        return "" if start is None else start.topic_id

    def _chain_began_ms(self, tp: TopicPartition) -> int:
        key = chain_start_key(self._store.prefix, tp.topic, self.generation, tp.partition)
        found = [each for each in self._store.list_objects(key) if each.key == key]
        return int(found[0].modified.timestamp() * 1000) if found else 0


# --- losses -----------------------------------------------------------------------------------------------------------


def list_losses(
    stream: str,
    topic: str | None,
    partition: int | None,
    *,
    generation: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Print the messages that unclean elections took back; see `waybill kafka losses --help`."""
    config = load_streams()
    losses: list[_Loss] = []
    failures: list[_Failure] = []
    with ExitStack() as stack:
        store = stack.enter_context(open_store(config))
        reader = _LossesReader(config, stream, generation, store)
        coordinator = stack.enter_context(reader.coordinator())
        cluster = stack.enter_context(connect_cluster(config))
        source = KafkaSource.sharing(cluster, IsolationLevel.READ_UNCOMMITTED)
        files = None if out is None else stack.enter_context(LossFiles(out))
        for tp in reader.topic_partitions(topic, partition):
            try:
                records = list_records(store, reader.generation, tp)
                for truncation in reader.truncations(source, coordinator, tp):
                    counts = _count(store, source, truncation, files)
                    losses.append(_Loss(truncation, counts, records))
            except Exception as error:
                failures.append(_Failure(tp, expected(f"the losses of {tp}", error)))
                if not isinstance(error, WaybillError):
                    logger.exception("the stack trace of the failure of %s", tp)
    if as_json:
        failed = [each.document() for each in failures]
        print_json({"stream": stream, "truncations": [_document(each) for each in losses], "failed": failed})
    else:
        _print(stream, reader, losses, failures)
        if out is not None:
            typer.echo(f"Each lost offset is in {out / 'losses.parquet'} and {out / 'losses.jsonl'}.")
    for each in failures:
        typer.echo(f"{each.tp}: its losses are not known: {type(each.error).__name__}: {each.error}", err=True)
    if failures:
        raise typer.Exit(1)


def _count(store: Store, source: KafkaSource, truncation: Truncation, files: LossFiles | None) -> LossCounts:
    """Return how many offsets are lost, and write a row for each to `files`."""
    counts = LossCounts()
    for row in read_losses(store, source, truncation):
        counts = counts.with_row(row)
        if files is not None:
            files.add(row)
    return counts


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
        "may_begin_at": list(truncation.may_begin_later),
        "end_seen": None if seen is None else {"end_offset": seen.end_offset, "at_ms": seen.at_ms},
        "archived_messages": loss.counts.archived,
        "unknown_offsets": loss.counts.unknown,
        "replaced_offsets": loss.counts.replaced,
        "accepted": None if gap is None else gap.to_fields(),
        "not_published_offsets": loss.left,
        "abandoned_offsets": loss.abandoned,
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
        "abandoned": None
        if record.abandoned is None
        else {"by": record.abandoned.by, "reason": record.abandoned.reason, "at_ms": record.abandoned.at_ms},
    }


def _print(stream: str, reader: _LossesReader, losses: list[_Loss], failures: list[_Failure]) -> None:
    if not losses and failures:
        typer.echo("No loss was found in the other topic-partitions.")
    elif not losses:
        typer.echo(
            f"Kafka's log has every archived message of stream {stream} that its retention has kept, and no watch saw "
            f"a log become shorter."
        )
    if not losses:
        return
    columns = [
        PrintedColumn("topic-partition"),
        PrintedColumn("offsets taken back"),
        PrintedColumn("leader epochs"),
        PrintedColumn("archived", figure=True),
        PrintedColumn("never read", figure=True),
        PrintedColumn("offsets used again", figure=True),
        PrintedColumn("not published again", figure=True),
    ]
    rows = []
    for each in losses:
        truncation = each.truncation
        rows.append(
            [
                str(truncation.tp),
                f"{truncation.first_offset}–{truncation.unknown[1] - 1}",
                ", ".join(str(run.leader_epoch) for run in truncation.archived) or "not known",
                count(each.counts.archived),
                f"≥ {each.counts.unknown:,}" if truncation.seen_end else "not known",
                count(each.counts.replaced),
                count(each.left),
            ]
        )
    print_table(columns, rows)
    typer.echo()
    for line in _notes(stream, reader, losses):
        typer.echo(line)


def _notes(stream: str, reader: _LossesReader, losses: list[_Loss]) -> Iterator[str]:
    for each in losses:
        seen, later = each.truncation.seen_end, each.truncation.may_begin_later
        if seen is not None:
            yield (
                f"{each.truncation.tp}: a watch saw the lost log end at offset {seen.end_offset - 1} at "
                f"{time_text_of(seen.at_ms)}; it may have been longer."
            )
        if later:
            yield (
                f"{each.truncation.tp}: none of the lost messages was archived. The loss begins at one of the offsets "
                f"{each.truncation.resume_offset}, {', '.join(map(str, later))}, where leaders changed or the archive "
                f"ended; Kafka still has the offsets before it."
            )
    for record in {(r.tp, r.number): r for each in losses for r in each.records}.values():
        yield (
            f"{record.tp}: publication {record.number} of {record.by} at {time_text_of(record.at_ms)}: {record.reason} "
            f"({_state(record)})"
        )
    to_publish = {
        each.truncation.tp for each in losses if each.left or any(record.is_unfinished for record in each.records)
    }
    option = "" if reader.is_current else f" --generation {reader.generation}"
    for tp in sorted(to_publish):
        yield (
            f"To publish the archived messages again: waybill kafka republish {stream} --topic {tp.topic} "
            f'--partition {tp.partition}{option} --reason "…"'
        )


def _state(record: Republished) -> str:
    if record.is_done:
        return "published again"
    if record.abandoned is None:
        return "NOT FINISHED: run the command again"
    decided = record.abandoned
    return (
        f"abandoned by {decided.by} at {time_text_of(decided.at_ms)}: {decided.reason}; some of its messages may be "
        f"published"
    )


# --- republish --------------------------------------------------------------------------------------------------------


def republish(
    stream: str,
    topic: str,
    partition: int,
    *,
    reason: str,
    by: str | None,
    generation: int | None,
    again: bool,
    allow_compacted: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Publish archived messages again that an election took back; see `waybill kafka republish --help`."""
    config = load_streams()
    decision = make_decision(reason, by)
    with ExitStack() as stack:
        store = stack.enter_context(open_store(config))
        reader = _LossesReader(config, stream, generation, store)
        (tp,) = reader.topic_partitions(topic, partition)
        coordinator = stack.enter_context(reader.coordinator())
        target = stack.enter_context(TargetCluster(KafkaEndpoint.of(find_connection(config.kafka.connection))))
        truncations = reader.truncations(target.log, coordinator, tp)
        lost = [run for truncation in truncations for run in truncation.archived]
        records = list_records(store, reader.generation, tp)
        left, abandoned = _offsets(not_recorded(lost, records)), _offsets(abandoned_runs(lost, records))
        left += abandoned if again else 0
        if left and not yes:
            typer.confirm(f"Publish the messages of {counted(left, 'offset')} to {tp} again?", abort=True, err=True)
        values = {"stream": stream, "topic": topic, "partition": partition, "generation": generation}
        with logged(config, REPUBLISH, decision, values) as done:
            results = publish_again(
                store, target, reader.generation, tp, lost, decision, again=again, allow_compacted=allow_compacted
            )
            done.text = f"{counted(sum(each.messages for each in results), 'message')} published again"
    if as_json:
        print_json({"published": [{**_record_document(each.record), "messages": each.messages} for each in results]})
    else:
        _print_published(tp, results)
    if abandoned and not again:
        typer.echo(
            f"{tp}: {counted(abandoned, 'offset')} of abandoned publications are left out. Some may be published "
            f"already. To publish all of them, some for the second time, add --again.",
            err=True,
        )


def abandon_publication(
    stream: str,
    topic: str,
    partition: int,
    number: int,
    *,
    reason: str,
    by: str | None,
    generation: int | None,
) -> None:
    """Store the decision to leave a publication unfinished; see `waybill kafka republish --help`."""
    config = load_streams()
    decision = make_decision(reason, by)
    with open_store(config) as store:
        reader = _LossesReader(config, stream, generation, store)
        (tp,) = reader.topic_partitions(topic, partition)
        values = {"stream": stream, "topic": topic, "partition": partition, "generation": generation}
        with logged(config, ABANDON, decision, {**values, "abandon": number}):
            abandon(store, reader.generation, tp, number, decision, decision.at_ms)
    typer.echo(f"{tp}: publication {number} is abandoned: what is not published of it stays unpublished", err=True)


def _print_published(tp: TopicPartition, results: list[RepublishResult]) -> None:
    if not results:
        typer.echo(f"{tp}: nothing to publish: everything that the archive holds of its losses was published before.")
    for each in results:
        typer.echo(
            f"{tp}: {counted(each.messages, 'message')} published again, each once, with the header "
            f"waybill-republished ({each.record.by}: {each.record.reason})"
        )
