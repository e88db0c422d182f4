"""Lateness of rows, and watermarks of topic-partitions."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.base.errors import DocumentTooNew
from waybill.config.names import TopicPartition
from waybill.parsers.protocol import EVENT_TIME_TYPE
from waybill.records.batches.message_rows import MESSAGE_SCHEMA, NO_TIMESTAMP_US
from waybill.tables.audit.counts import COUNTS_PROPERTY
from waybill.tables.iceberg.state import WATERMARKS_PROPERTY
from waybill.tables.partition.lateness import BOUNDS_SECONDS, LATENESS_PROPERTY, Lateness
from waybill.tables.partition.rows import QUARANTINE_ROWS, TABLE_ROWS, Rows
from waybill.tables.partition.statistics import RunStatistics, StatisticsBuilder

TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
PLANNED = datetime(2026, 1, 31, tzinfo=UTC)
PLANNED_US = int(PLANNED.timestamp()) * 1_000_000
HOUR, DAY = 3600, 86_400


def rows(late_us: list[int | None]) -> pa.RecordBatch:
    """Return rows with this lateness; None: a row without a Kafka timestamp."""
    times = {
        "kafka_timestamp": pa.array([None if late is None else 10**15 + late for late in late_us], pa.int64()),
        "event_time": pa.array([10**15] * len(late_us), pa.int64()),
    }
    return pa.record_batch({name: array.cast(EVENT_TIME_TYPE) for name, array in times.items()})


def bucket(late_us: int) -> int:
    return sum(late_us > bound * 1_000_000 for bound in BOUNDS_SECONDS)


@given(st.lists(st.none() | st.integers(-(10**15), 10**15) | st.sampled_from([b * 10**6 for b in BOUNDS_SECONDS])))
def test_a_row_is_counted_in_the_first_bucket_whose_bound_it_does_not_exceed(late_us: list[int | None]) -> None:
    found = Lateness.of(rows(late_us))
    known = [late for late in late_us if late is not None]
    assert found.rows == tuple(sum(bucket(late) == at for late in known) for at in range(len(BOUNDS_SECONDS) + 1))
    assert found.unknown == len(late_us) - len(known)
    assert found.known == len(known)
    assert (found.most_seconds - 1) * 10**6 < max([0, *known]) <= found.most_seconds * 10**6


def test_histograms_add_up_and_give_quantiles() -> None:
    first = Lateness.of(rows([-5, 0, 0, 30 * 10**6, 61 * 10**6, None]))
    second = Lateness.of(rows([2 * HOUR * 10**6, 40 * DAY * 10**6]))
    total = Lateness.sum([first, second])
    assert (total.known, total.unknown, total.most_seconds) == (7, 1, 40 * DAY)
    assert (total.later_than(60), total.later_than(HOUR), total.later_than(DAY)) == (3, 2, 1)
    assert [total.quantile_seconds(share) for share in (0.25, 0.5, 0.7, 0.85, 1)] == [0, 60, 300, 3 * HOUR, 40 * DAY]
    assert Lateness.of(rows([70 * 10**6])).quantile_seconds(0.5) == 70, "never above the largest lateness"
    assert Lateness().quantile_seconds(0.5) is None


def test_a_histogram_is_read_back_and_a_newer_version_is_refused() -> None:
    found = Lateness.of(rows([5, None]))
    assert Lateness.from_text(found.to_text(), "x") == found
    with pytest.raises(DocumentTooNew, match="snapshot 1 was written by a newer Waybill"):
        Lateness.from_text('{"v": 2}', "snapshot 1")


def collect(*by_tp: tuple[TopicPartition, list[int]]) -> RunStatistics:
    """Return the statistics of messages with these Kafka timestamps, in microseconds, and no rows."""
    builder = StatisticsBuilder(PLANNED)
    nothing = Rows(pa.RecordBatch.from_pylist([], TABLE_ROWS), pa.RecordBatch.from_pylist([], QUARANTINE_ROWS))
    for tp, timestamps in by_tp:
        messages = [
            {"offset": n, "timestamp": at, "key": None, "value": b"", "headers": []} for n, at in enumerate(timestamps)
        ]
        builder.add(tp, pa.RecordBatch.from_pylist(messages, MESSAGE_SCHEMA), nothing)
    return builder.result()


def test_a_watermark_is_the_newest_timestamp_before_the_plan_was_made() -> None:
    assert collect((TP, [5000, 9999, 7000]), (TP, [3000]), (OTHER, [NO_TIMESTAMP_US])).watermarks == {TP: 9}
    assert collect((TP, [PLANNED_US, PLANNED_US + 1])).watermarks == {TP: PLANNED_US // 1000}
    assert collect((TP, [PLANNED_US + 1])).watermarks == {}
    assert collect((TP, [])).watermarks == {}


def test_statistics_of_tasks_add_up_to_the_properties_of_the_snapshot() -> None:
    together = RunStatistics.sum([collect((TP, [5000])), collect((TP, [4000]), (OTHER, [6000])), RunStatistics()])
    assert together.watermarks == {TP: 5, OTHER: 6}
    assert together.snapshot_properties() == {
        WATERMARKS_PROPERTY: '{"v":1,"newest":{"t/0":5,"t/1":6}}',
        LATENESS_PROPERTY: Lateness().to_text(),
        COUNTS_PROPERTY: together.counts.to_text(),
    }
    assert set(RunStatistics().snapshot_properties()) == {LATENESS_PROPERTY, COUNTS_PROPERTY}
