"""When a run's quarantine is an alert, and what it says."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from waybill.config.partitioning import QuarantineAlert
from waybill.names import TopicPartition
from waybill.partition.alert import alert_of
from waybill.partition.observed import OTHER, Refusal, Refused

TP = TopicPartition("t", 3)


def rows(*reasons: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"reason": list(reasons), "offset": [10 * n for n in range(len(reasons))]})


def test_refused_are_counted_by_kind_with_the_first_as_an_example() -> None:
    found = Refused.of(TP, rows("not_json: a: b", "event_time_missing", "not_json: c")) + Refused.of(
        TopicPartition("u", 0), rows("event_time_missing: x", "event_time_missing: y")
    )
    assert found.most() == {"event_time_missing": Refusal(3, "t/3@10"), "not_json": Refusal(2, "t/3@0")}
    assert list(found.most(1)) == ["event_time_missing"]
    assert Refused.from_text(found.to_text()) == found
    assert found.messages == 5


def test_a_text_has_the_most_frequent_kinds() -> None:
    found = Refused({f"kind_{n}": Refusal(n, "t/0@0") for n in range(100)})
    kept = Refused.from_text(found.to_text())
    assert list(kept.by_kind) == [f"kind_{n}" for n in range(99, 79, -1)]


def test_kinds_that_are_too_many_are_counted_together() -> None:
    total = Refused()
    for n in range(3000):
        total += Refused({f"kind_{n}": Refusal(1 + (n == 7), f"t/0@{n}")})
    assert len(total.by_kind) <= 1000
    assert total.messages == 3001
    assert total.most(2).keys() == {OTHER, "kind_7"}


def test_a_text_of_a_newer_version_says_nothing() -> None:
    assert Refused.from_text('{"v": 9}') == Refused()


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
def test_more_than_the_share_and_enough_messages(rate: str, least: int, good: int, bad: int, is_alert: bool) -> None:
    settings = QuarantineAlert(max_rate=Decimal(rate), min_messages=least)
    assert (alert_of("s", settings, good, bad, Refused()) is not None) is is_alert


def test_an_alert_names_share_reasons_and_where_to_look() -> None:
    counts = {"a": (1, "t/0@1"), "b": (40, "t/0@2"), "c": (5, "t/0@3"), "d": (4, "t/0@4")}
    refused = Refused({kind: Refusal(*found) for kind, found in counts.items()})
    text = alert_of("s", QuarantineAlert(max_rate=Decimal("0.015")), 950, 50, refused)
    assert text == (
        "s: 50 of 1,000 messages (5.0%) went to quarantine, more than 1.5% (quarantine.max_rate); the run is "
        "committed. b: 40, such as t/0@2; c: 5, such as t/0@3; d: 4, such as t/0@4. Look at them: "
        "waybill quarantine show s t/0@2; once they can be read: waybill quarantine retry s"
    )
