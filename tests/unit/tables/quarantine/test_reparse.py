"""Counts of the messages that a retry moves, and of those that it still cannot parse."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from waybill.config.names import TopicPartition
from waybill.tables.audit.counts import AuditCounts
from waybill.tables.partition.rows import QUARANTINE_ROWS, TABLE_ROWS, Rows
from waybill.tables.quarantine.reparse import MovedCounter, StayedCounter

TP = TopicPartition("t", 3)


def rows(*reasons: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"reason": list(reasons), "offset": [10 * n for n in range(len(reasons))]})


def test_messages_are_counted_by_kind_with_an_example() -> None:
    stayed = StayedCounter()
    stayed.add(TP, rows("not_json: a: b", "event_time_missing: field at is missing", "not_json: c"))
    stayed.add(TP, rows())
    stayed.add(TP, rows("not_json: d"))
    assert [(each.reason, each.messages, each.example) for each in stayed.result()] == [
        ("not_json", 3, "t/3@0: a: b"),
        ("event_time_missing", 1, "t/3@10: field at is missing"),
    ]


def test_rare_kinds_are_counted_together_when_there_are_too_many() -> None:
    stayed = StayedCounter()
    stayed.add(TP, rows(*(f"kind_{n}: x" for n in range(1500))))
    found = stayed.result()
    assert (len(found), found[0].reason, found[0].messages) == (1001, "other", 500)
    assert sum(each.messages for each in found) == 1500


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def moved(offset: int, event_time: datetime, kafka_timestamp: datetime | None, assigned_ids: int = 0) -> Rows:
    row = {
        "topic": TP.topic, "partition": TP.partition, "offset": offset, "kafka_timestamp": kafka_timestamp,
        "key": None, "headers": [], "value": b"{}", "event_time": event_time, "message_id": "a", "generation": 1,
    }  # fmt: skip
    quarantine = pa.RecordBatch.from_pylist([], schema=QUARANTINE_ROWS)
    return Rows(pa.RecordBatch.from_pylist([row], schema=TABLE_ROWS), quarantine, assigned_ids)


def test_moved_messages_are_counted_for_the_built_in_checks() -> None:
    counter = MovedCounter(NOON)
    counter.add(TP, moved(1, NOON, None, assigned_ids=1))
    counter.add(TP, moved(2, NOON + timedelta(minutes=4), NOON + timedelta(minutes=4)))
    counter.add(TP, moved(2, NOON + timedelta(minutes=6), NOON + timedelta(minutes=7)))
    assert counter.result() == AuditCounts(
        messages=3,
        assigned_ids=1,
        event_times_ahead=1,
        kafka_timestamps_ahead=1,
        ahead_seconds=420,
        repeated_offsets=1,
        repeated_example="t/3@2",
    )
    assert MovedCounter(NOON).result() == AuditCounts()
