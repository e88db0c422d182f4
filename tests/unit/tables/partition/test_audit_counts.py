"""What tasks count for the built-in checks of an audit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.config.models import EventTimeBounds, JsonParser
from waybill.config.names import TopicPartition
from waybill.parsers import build_parser
from waybill.records.batches.message_rows import MESSAGE_SCHEMA
from waybill.tables.audit.counts import CLOCK_TOLERANCE_SECONDS, COUNTS_PROPERTY, AuditCounts
from waybill.tables.partition.rows import RowBuilder
from waybill.tables.partition.statistics import RunStatistics, StatisticsBuilder

TP, OTHER = TopicPartition("flights", 0), TopicPartition("flights", 1)
PLANNED = datetime(2026, 3, 2, 12, tzinfo=UTC)
PLANNED_MS = int(PLANNED.timestamp()) * 1000
LATEST_MS = PLANNED_MS + CLOCK_TOLERANCE_SECONDS * 1000
PARSER = JsonParser.model_validate({"event_time": {"field": "at", "format": "epoch_ms"}, "message_id": "id"})

Message = dict[str, Any]


def message(offset: int, timestamp_ms: int = PLANNED_MS, **fields: Any) -> Message:
    value = json.dumps({"at": PLANNED_MS, "id": "x", **fields}).encode()
    return {"offset": offset, "timestamp": timestamp_ms * 1000, "key": None, "value": value, "headers": []}


def count(*batches: Sequence[Message], tp: TopicPartition = TP) -> AuditCounts:
    """Return the counts of a task that gets these batches of messages."""
    rows, statistics = RowBuilder(build_parser(PARSER), 1, PLANNED, EventTimeBounds()), StatisticsBuilder(PLANNED)
    for messages in batches:
        batch = pa.RecordBatch.from_pylist(list(messages), MESSAGE_SCHEMA)
        statistics.add(tp, batch, rows.build(tp, batch))
    return statistics.result().counts


def test_messages_are_counted_with_those_in_quarantine() -> None:
    broken = {**message(2), "value": b"{"}
    assert count([message(1), broken], [message(3)]).messages == 3


def test_only_messages_without_an_event_time_count_as_such() -> None:
    found = count([message(1), message(2, at=None), message(3, at="never"), {**message(4), "value": b"{"}])
    assert found.without_event_time == 1


@pytest.mark.parametrize("with_quarantine", [False, True])
def test_assigned_ids_are_counted_without_tombstones_and_quarantine(with_quarantine: bool) -> None:
    tombstone = {**message(4), "value": None}
    messages = [message(1), message(2, id=None), message(3, id=None), tombstone]
    if with_quarantine:
        messages.append(message(5, id=None, at=None))
    assert count(messages).assigned_ids == 2


def test_times_are_ahead_beyond_the_tolerance() -> None:
    late = [message(1, LATEST_MS), message(2, LATEST_MS + 1), message(3, at=LATEST_MS), message(4, at=LATEST_MS + 7001)]
    found = count(late, [message(5)])
    assert (found.kafka_timestamps_ahead, found.event_times_ahead) == (1, 1)
    assert found.ahead_seconds == CLOCK_TOLERANCE_SECONDS + 8
    assert count([message(1)]).ahead_seconds == 0


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=5), max_size=4))
def test_offsets_are_repeated_unless_they_increase(batches: list[list[int]]) -> None:
    found = count(*[[message(offset) for offset in batch] for batch in batches])
    offsets = [offset for batch in batches for offset in batch]
    increase = all(a < b for a, b in pairwise(offsets))
    assert (found.repeated_offsets == 0) is increase
    assert (found.repeated_example == "") is increase
    if offsets and increase:
        assert found.ranges == {TP: ((offsets[0], offsets[-1]),)}


def test_tasks_that_read_the_same_offsets_are_found_when_they_are_summed_up() -> None:
    first, second = count([message(1), message(5)]), count([message(5), message(9)])
    other = count([message(1), message(9)], tp=OTHER)

    def total(*counts: AuditCounts) -> AuditCounts:
        statistics = RunStatistics.sum(RunStatistics(counts=each) for each in counts)
        found = AuditCounts.from_text(statistics.snapshot_properties()[COUNTS_PROPERTY])
        assert found is not None
        return found

    assert total(first, other).repeated_offsets == 0
    repeated = total(first, other, second)
    assert (repeated.messages, repeated.repeated_offsets, repeated.repeated_example) == (6, 1, "flights/0@5")
