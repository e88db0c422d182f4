"""`waybill kafka producers`: how producers write to a topic."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import typer

from waybill.config.models import IsolationLevel
from waybill.config.models.quantities import counted, rough_duration
from waybill.config.names import TopicPartition, check_topic
from waybill.interfaces.cli.render import PrintedColumn, bytes_text, count, print_json, print_table
from waybill.interfaces.cli.targets import load_streams, parse_size_option
from waybill.records.batches.framing import Frame
from waybill.services.kafka.cluster import Cluster
from waybill.services.kafka.kafka import FETCH_BYTES, KafkaSource
from waybill.watch.kafka_cluster.batch_savings import Saving, measure_savings
from waybill.watch.kafka_cluster.forecast_inputs import connect_cluster
from waybill.watch.kafka_cluster.producers import NO_PRODUCER_ID, ProducerFigures, ProducerStatistics

_SAMPLE_BYTES = 2 << 20
"""The sample is of one topic-partition: encoding it nine times takes some seconds."""
_PROGRESS_SECONDS = 2.0
_MOST_CUT = 5
"""How many of the topic-partitions that were cut are printed; `--json` has all."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """The part of a topic-partition that was read."""

    tp: TopicPartition
    first_offset: int
    next_offset: int
    """The first offset that was not read."""
    end_offset: int
    """The end without the limit."""
    size_bytes: int

    @property
    def is_cut(self) -> bool:
        return self.next_offset < self.end_offset

    def document(self) -> dict[str, Any]:
        return {
            "partition": self.tp.partition,
            "first_offset": self.first_offset,
            "next_offset": self.next_offset,
            "end_offset": self.end_offset,
            "bytes": self.size_bytes,
        }


def report_producers(topic: str, messages: int, limit: str, *, as_json: bool) -> None:
    """Print how producers write to a topic; see `waybill kafka producers --help`."""
    check_topic(topic)
    limit_bytes = parse_size_option("--limit", limit)
    config = load_streams()
    statistics = ProducerStatistics(time.time_ns() // 1_000_000)
    with connect_cluster(config) as cluster:
        samples, largest = _read(cluster, topic, messages, limit_bytes, statistics)
    savings = measure_savings(largest, topic)
    if as_json:
        print_json({**_document(topic, statistics, savings), "samples": [each.document() for each in samples]})
        return
    _print_producers(statistics)
    _print_samples(samples, limit)
    _print_savings(largest, savings)


def _read(
    cluster: Cluster, topic: str, messages: int, limit_bytes: int, statistics: ProducerStatistics
) -> tuple[list[_Sample], list[Frame]]:
    """Count batches among the newest of each topic-partition.

    Return the samples, and some batches of the topic-partition with the most bytes.
    """
    source = KafkaSource.sharing(cluster, IsolationLevel.READ_UNCOMMITTED)
    logs = sorted(source.offsets([TopicPartition(topic, number) for number in source.topic(topic).partitions]).items())
    samples: list[_Sample] = []
    largest: list[Frame] = []
    left, told = limit_bytes, time.monotonic()
    for number, (tp, log) in enumerate(logs):
        share = max(1, left // (len(logs) - number))  # the unused shares of others are divided again
        sample, frames = _read_partition(source, tp, max(log.earliest, log.end - messages), log.end, share, statistics)
        samples.append(sample)
        largest = max(largest, frames, key=_size)
        left -= min(left, sample.size_bytes)
        if time.monotonic() - told > _PROGRESS_SECONDS:
            told = time.monotonic()
            read_bytes = sum(each.size_bytes for each in samples)
            typer.echo(f"{number + 1} of {len(logs)} topic-partitions read, {bytes_text(read_bytes)}", err=True)
    return samples, largest


def _read_partition(
    source: KafkaSource, tp: TopicPartition, first: int, end: int, share_bytes: int, statistics: ProducerStatistics
) -> tuple[_Sample, list[Frame]]:
    """Count the batches of `[first, end)` until they have `share_bytes`, and return some of them."""
    limited = source.with_settings(
        IsolationLevel.READ_UNCOMMITTED, fetch_bytes=min(FETCH_BYTES, share_bytes), fetch_ahead=False
    )
    frames: list[Frame] = []
    size = frames_bytes = 0
    at = first
    with closing(limited.read(tp, first, end)) as chunks:
        for chunk in chunks:
            for frame in chunk.frames:
                statistics.add(tp, frame.header)
                size += frame.header.size_bytes
                at = frame.header.next_offset
                if frames_bytes < _SAMPLE_BYTES and not frame.header.is_control and frame.header.record_count:
                    frames.append(frame)
                    frames_bytes += len(frame.data)
            if size >= share_bytes:
                break
        else:
            at = end  # the last offsets may hold no batch: compaction, or the abort of a transaction
    return _Sample(tp, first, min(at, end), end, size), frames


def _size(sample: Sequence[Frame]) -> int:
    return sum(len(frame.data) for frame in sample)


def _print_producers(statistics: ProducerStatistics) -> None:
    if not statistics.producers:
        typer.echo("The topic holds no message.")
        return
    columns = [
        PrintedColumn("producer id"),
        PrintedColumn("mode"),
        PrintedColumn("codec"),
        PrintedColumn("messages", figure=True),
        PrintedColumn("messages in a batch", figure=True),
        PrintedColumn("bytes of a batch", figure=True),
        PrintedColumn("sent twice", figure=True),
        PrintedColumn("left out", figure=True),
        PrintedColumn("timestamps behind", figure=True),
        PrintedColumn("ahead", figure=True),
    ]
    print_table(columns, [_row(each) for each in statistics.producers])
    typer.echo()
    if statistics.control_batches:
        typer.echo(f"{counted(statistics.control_batches, 'transaction')} ended.")
    if statistics.log_append_batches:
        typer.echo(
            f"Record batches whose timestamps the brokers set (LogAppendTime): {count(statistics.log_append_batches)}."
        )
    if any(each.producer_id == NO_PRODUCER_ID for each in statistics.producers):
        typer.echo("Producers without idempotence can write a message twice when they retry: set enable.idempotence.")


def _print_samples(samples: Sequence[_Sample], limit: str) -> None:
    offsets = sum(each.next_offset - each.first_offset for each in samples)
    size = bytes_text(sum(each.size_bytes for each in samples))
    typer.echo(
        f"Sample: {counted(offsets, 'offset')} of {counted(len(samples), 'topic-partition')}, {size}: the newest "
        f"offsets of each, as many as --messages."
    )
    cut = [each for each in samples if each.is_cut]
    if not cut:
        return
    texts = [
        f"{each.tp} (offsets {each.first_offset}–{each.next_offset - 1} of {each.first_offset}–{each.end_offset - 1})"
        for each in cut[:_MOST_CUT]
    ]
    more = f" and {len(cut) - _MOST_CUT} more" if len(cut) > _MOST_CUT else ""
    typer.echo(
        f"{counted(len(cut), 'topic-partition')} had more bytes than their share of --limit {limit}, and only the "
        f"beginning was read: {', '.join(texts)}{more}"
    )


def _row(each: ProducerFigures) -> list[str]:
    sizes = each.sizes
    return [
        str(each.producer_id) if each.is_idempotent else "none",
        _mode(each),
        ", ".join(codec.name.lower() for codec, _ in each.codecs.most_common()),
        count(each.messages),
        f"{sizes.median_messages:g} (largest {count(sizes.largest_messages)})",
        bytes_text(int(sizes.median_bytes)),
        count(each.repeated) if each.is_idempotent else "not known",
        count(each.missing) if each.is_idempotent else "not known",
        rough_duration(each.behind_ms / 1000),
        rough_duration(each.ahead_ms / 1000),
    ]


def _mode(each: ProducerFigures) -> str:
    if each.is_transactional:
        return "transactional"
    return "idempotent" if each.is_idempotent else "neither idempotent nor transactional"


def _print_savings(sample: Sequence[Frame], savings: Sequence[Saving]) -> None:
    if not savings:
        return
    typer.echo()
    typer.echo(f"{bytes_text(_size(sample))} in {count(len(sample))} record batches would become:")
    rows = [[each.codec.name.lower(), _batches(each), bytes_text(each.size_bytes), _share(each)] for each in savings]
    print_table(
        [
            PrintedColumn("codec"),
            PrintedColumn("batches"),
            PrintedColumn("bytes", figure=True),
            PrintedColumn("saved", figure=True),
        ],
        rows,
    )


def _batches(each: Saving) -> str:
    return "as sent" if each.batch_bytes is None else f"up to {each.batch_bytes >> 10} KiB before compression"


def _share(each: Saving) -> str:
    return f"{100 * each.share:.0f} %"


def _document(topic: str, statistics: ProducerStatistics, savings: Sequence[Saving]) -> dict[str, Any]:
    return {
        "topic": topic,
        "control_batches": statistics.control_batches,
        "log_append_batches": statistics.log_append_batches,
        "producers": [
            {
                "producer_id": each.producer_id if each.is_idempotent else None,
                "epochs": sorted(each.epochs),
                "idempotent": each.is_idempotent,
                "transactional": each.is_transactional,
                "batches": each.batches,
                "messages": each.messages,
                "bytes": each.size_bytes,
                "batches_by_codec": {codec.name.lower(): number for codec, number in each.codecs.items()},
                "median_messages_in_batch": each.sizes.median_messages,
                "median_batch_bytes": each.sizes.median_bytes,
                "largest_batch_bytes": each.sizes.largest_bytes,
                "messages_sent_twice": each.repeated if each.is_idempotent else None,
                "sequence_numbers_left_out": each.missing if each.is_idempotent else None,
                "timestamps_behind_ms": each.behind_ms,
                "timestamps_ahead_ms": each.ahead_ms,
            }
            for each in statistics.producers
        ],
        "savings": [
            {
                "codec": each.codec.name.lower(),
                "batch_bytes": each.batch_bytes,
                "bytes": each.size_bytes,
                "saved_share": round(each.share, 4),
            }
            for each in savings
        ],
    }
