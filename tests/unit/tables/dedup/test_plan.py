"""Plans of sweeps: their documents, and the bounds that follow from watermarks."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from waybill.base.errors import DocumentDamaged, DocumentTooNew
from waybill.config.names import TopicPartition
from waybill.tables.dedup.appends import TABLE_START, AppendedFile, TablePosition
from waybill.tables.dedup.sweep_plan import SweepPlan, earliest_arrival_ms, epoch_ms, horizon_after
from waybill.tables.iceberg import FirstSweepStart
from waybill.tables.iceberg.dedup import NO_HORIZON_MS

A, B = TopicPartition("flights", 0), TopicPartition("flights", 1)
PLAN = SweepPlan(
    key="p/sweeps/flights/1/uuid/00000000000000000007.json",
    stream="flights",
    generation=1,
    created_at=datetime(2026, 11, 21, 12, 30, 0, 999_999, UTC),
    main="main-uuid",
    start=TablePosition(1234567890123456789, 7),
    end=TablePosition(42, 9),
    files=(AppendedFile("s3://bucket/a.parquet", 1000, 10), AppendedFile("s3://bucket/b.parquet", 500, 5)),
    topic_partitions=(A, B),
    watermarks={A: 1_000_000},
    window_ms=1000,
    horizon_ms=998_000,
    key_columns=("topic", "message_id"),
    source="device",
    buckets=16,
)


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        replace(PLAN, start=TABLE_START, horizon_ms=NO_HORIZON_MS, watermarks={}, files=(), source=None),
        replace(PLAN, beginning=FirstSweepStart(1_500, 99, 3, 1_499, 1_000, {A: 7, B: 1 << 40})),
    ],
)
def test_plan_is_restored_from_its_document(plan: SweepPlan) -> None:
    found = SweepPlan.from_json(plan.key, plan.to_json())
    assert found == plan
    assert found.digest == plan.digest


def test_plan_properties_are_computed_from_its_fields() -> None:
    assert PLAN.id == "00000000000000000007"
    assert (PLAN.records, PLAN.size_bytes) == (15, 1500)
    assert PLAN.latest_arrival_ms == 1_795_264_200_999, "whole milliseconds, never later than the plan"
    assert PLAN.digest != replace(PLAN, horizon_ms=998_001).digest
    assert PLAN.digest != replace(PLAN, beginning=FirstSweepStart(1_500, 99, 3, 1_499, 1_000, {})).digest


def test_plan_of_a_newer_waybill_is_refused() -> None:
    document = json.loads(PLAN.to_json()) | {"v": 2}
    with pytest.raises(DocumentTooNew, match=r"newer Waybill.*execute it, or remove the object"):
        SweepPlan.from_json(PLAN.key, json.dumps(document).encode())


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"v":1}', PLAN.to_json()[:-20]])
def test_unreadable_plan_is_refused_with_its_object_key(text: bytes) -> None:
    with pytest.raises(DocumentDamaged, match=r"00000000000000000007\.json cannot be read .* remove the object"):
        SweepPlan.from_json(PLAN.key, text)


def test_arrival_bound_and_horizon_are_unset_before_the_first_row() -> None:
    assert earliest_arrival_ms({}, A, 1000) == NO_HORIZON_MS
    assert horizon_after({}, 1000) == NO_HORIZON_MS


def test_topic_partition_without_recent_rows_is_bounded_by_the_newest_watermark() -> None:
    watermarks = {A: 100_000, B: 5_000}
    assert earliest_arrival_ms(watermarks, A, 1000) == 100_000
    assert earliest_arrival_ms(watermarks, B, 1000) == 99_000
    assert horizon_after(watermarks, 1000) == 98_000


def test_rows_of_a_new_topic_partition_arrive_within_the_horizon() -> None:
    new = TopicPartition("flights", 2)
    for watermarks in ({A: 100_000, B: 5_000}, {A: 100_000, B: 99_990}, {A: 100_000}):
        assert earliest_arrival_ms(watermarks, new, 1000) - 1000 >= horizon_after(watermarks, 1000)
    assert earliest_arrival_ms({A: 100_000, B: 99_990}, new, 1000) == 99_990


def test_epoch_milliseconds_are_rounded_down_before_1970_too() -> None:
    assert epoch_ms(datetime(1969, 12, 31, 23, 59, 59, 999_500, UTC)) == -1
