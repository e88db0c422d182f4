"""Counts of the messages that a retry still cannot parse."""

from __future__ import annotations

import pyarrow as pa

from waybill.names import TopicPartition
from waybill.quarantine.reparse import StayedCounter

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
