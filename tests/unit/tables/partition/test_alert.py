"""The quarantine alert of a run, and the counts of reasons that it quotes."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from waybill.config.models.partition_by import QuarantineAlert
from waybill.config.names import TopicPartition
from waybill.tables.partition.alerts import quarantine_alert
from waybill.tables.partition.statistics import OTHER, ReasonCount, ReasonCounts

TP = TopicPartition("t", 3)


def rows(*reasons: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"reason": list(reasons), "offset": [10 * n for n in range(len(reasons))]})


def test_reasons_are_counted_by_kind_with_the_first_message_as_example() -> None:
    found = ReasonCounts.of(TP, rows("not_json: a: b", "event_time_missing", "not_json: c")) + ReasonCounts.of(
        TopicPartition("u", 0), rows("event_time_missing: x", "event_time_missing: y")
    )
    assert found.most_frequent() == {
        "event_time_missing": ReasonCount(3, "t/3@10"),
        "not_json": ReasonCount(2, "t/3@0"),
    }
    assert list(found.most_frequent(1)) == ["event_time_missing"]
    assert ReasonCounts.from_text(found.to_text()) == found
    assert found.messages == 5


def test_the_snapshot_property_has_only_the_most_frequent_kinds() -> None:
    found = ReasonCounts({f"kind_{n}": ReasonCount(n, "t/0@0") for n in range(100)})
    kept = ReasonCounts.from_text(found.to_text())
    assert list(kept.by_kind) == [f"kind_{n}" for n in range(99, 79, -1)]


def test_rare_kinds_are_counted_together_when_there_are_too_many() -> None:
    total = ReasonCounts()
    for n in range(3000):
        total += ReasonCounts({f"kind_{n}": ReasonCount(1 + (n == 7), f"t/0@{n}")})
    assert len(total.by_kind) <= 1000
    assert total.messages == 3001
    assert total.most_frequent(2).keys() == {OTHER, "kind_7"}


def test_a_property_of_a_newer_version_counts_as_empty() -> None:
    assert ReasonCounts.from_text('{"v": 9}') == ReasonCounts()


@pytest.mark.parametrize(
    ("rate", "least", "good", "bad", "is_alert"),
    [
        ("0.01", 100, 99, 1, False),
        ("0.01", 100, 98, 2, True),
        ("0.01", 100, 0, 99, False),
        ("0", 1, 1_000_000, 1, True),
        ("0", 1, 5, 0, False),
        ("1", 1, 0, 5, False),
    ],
)
def test_an_alert_needs_a_high_share_and_enough_messages(
    rate: str, least: int, good: int, bad: int, is_alert: bool
) -> None:
    settings = QuarantineAlert(max_rate=Decimal(rate), min_messages=least)
    assert (quarantine_alert("s", settings, good, bad, ReasonCounts()) is not None) is is_alert


def test_an_alert_states_share_reasons_and_the_commands_to_run() -> None:
    counts = {"a": (1, "t/0@1"), "b": (40, "t/0@2"), "c": (5, "t/0@3"), "d": (4, "t/0@4")}
    counts_by_kind = ReasonCounts({kind: ReasonCount(*found) for kind, found in counts.items()})
    text = quarantine_alert("s", QuarantineAlert(max_rate=Decimal("0.015")), 950, 50, counts_by_kind)
    assert text == (
        "s: 50 of 1,000 messages (5.0%) went to quarantine, more than 1.5% (quarantine.max_rate); the run is "
        "committed. b: 40, such as t/0@2; c: 5, such as t/0@3; d: 4, such as t/0@4. Look at them: "
        "waybill quarantine show s t/0@2; once they can be read: waybill quarantine retry s"
    )
