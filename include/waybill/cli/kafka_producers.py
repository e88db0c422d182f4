"""`waybill kafka producers`: how producers write to a topic."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import typer

from waybill.brokers.batch_savings import Saving, measure_savings
from waybill.brokers.forecast_inputs import connect_cluster
from waybill.brokers.producers import NO_PRODUCER_ID, ProducerFigures, ProducerStatistics
from waybill.cli.render import Column, bytes_text, count, print_json, print_table
from waybill.cli.targets import load_streams
from waybill.config import IsolationLevel
from waybill.config.quantities import counted, rough_duration
from waybill.names import TopicPartition, check_topic
from waybill.records.framing import Frame
from waybill.sources.cluster import Cluster
from waybill.sources.kafka import KafkaSource

__all__ = ["report_producers"]

_SAMPLE_BYTES = 2 << 20
"""Of one topic-partition: encoding it nine times takes some seconds."""


def report_producers(topic: str, messages: int, *, as_json: bool) -> None:
    """Print how producers write to a topic; see `waybill kafka producers --help`."""
    check_topic(topic)
    config = load_streams()
    statistics = ProducerStatistics(time.time_ns() // 1_000_000)
    with connect_cluster(config) as cluster:
        sample = _read(cluster, topic, messages, statistics)
    savings = measure_savings(sample, topic)
    if as_json:
        print_json(_document(topic, statistics, savings))
        return
    _print_producers(statistics)
    _print_savings(sample, savings)


def _read(cluster: Cluster, topic: str, messages: int, statistics: ProducerStatistics) -> list[Frame]:
    """Count the newest batches of each topic-partition, and return a sample of the one with the most bytes."""
    source = KafkaSource.sharing(cluster, IsolationLevel.READ_UNCOMMITTED)
    tps = [TopicPartition(topic, number) for number in source.topic(topic).partitions]
    largest: list[Frame] = []
    for tp, log in sorted(source.offsets(tps).items()):
        sample: list[Frame] = []
        size = 0
        for chunk in source.read(tp, max(log.earliest, log.end - messages), log.end):
            for frame in chunk.frames:
                statistics.add(tp, frame.header)
                if size < _SAMPLE_BYTES and not frame.header.is_control and frame.header.record_count:
                    sample.append(frame)
                    size += len(frame.data)
        largest = max(largest, sample, key=_size)
    return largest


def _size(sample: Sequence[Frame]) -> int:
    return sum(len(frame.data) for frame in sample)


def _print_producers(statistics: ProducerStatistics) -> None:
    if not statistics.producers:
        typer.echo("The topic holds no message.")
        return
    columns = [
        Column("producer id"),
        Column("mode"),
        Column("codec"),
        Column("messages", figure=True),
        Column("messages in a batch", figure=True),
        Column("bytes of a batch", figure=True),
        Column("sent twice", figure=True),
        Column("left out", figure=True),
        Column("timestamps behind", figure=True),
        Column("ahead", figure=True),
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
    print_table([Column("codec"), Column("batches"), Column("bytes", figure=True), Column("saved", figure=True)], rows)


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
