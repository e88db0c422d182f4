"""The stored plan of a restore."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from waybill.archive.restore import PartitionPlan, RestorePlan
from waybill.base.errors import DocumentDamaged, DocumentTooNew
from waybill.records.batches.produced import Producer

PLAN = RestorePlan(
    id="20261122_7f3a",
    stream="flights",
    generation=2,
    connection="kafka_dr",
    topic_ids={"restored": "abc"},
    producer_id=4711,
    producer_epoch=0,
    partitions=(PartitionPlan("flights", 0, 100, 200, "restored", 0, 4096),),
    by="ann",
    reason="the cluster is lost",
    at=datetime(2026, 11, 22, 10, tzinfo=UTC),
    suspended={"restored": {"retention.ms": "86400000", "retention.bytes": None}},
    warnings=("topic 'restored' will be created with message.timestamp.type=CreateTime",),
)


def test_plan_is_the_same_after_it_was_stored() -> None:
    assert RestorePlan.from_json("key", PLAN.to_json()) == PLAN


def test_plan_of_an_earlier_waybill_is_read() -> None:
    fields = json.loads(PLAN.to_json())
    del fields["warnings"]
    earlier = RestorePlan.from_json("key", json.dumps({**fields, "v": 1}).encode())
    assert earlier == replace(PLAN, warnings=())


def test_plan_of_a_newer_waybill_and_a_damaged_one_are_refused() -> None:
    with pytest.raises(DocumentTooNew):
        RestorePlan.from_json("key", PLAN.to_json().replace(b'{"v":2', b'{"v":3'))
    with pytest.raises(DocumentDamaged, match="key is not a valid plan"):
        RestorePlan.from_json("key", b'{"v": 1, "id": "x"}')


def test_sequence_number_is_the_position_and_begins_again_after_the_largest() -> None:
    producer = Producer(4711, 0)
    assert [producer.sequence(index) for index in (0, 5, 2**31 - 1, 2**31, 2**32 + 7)] == [0, 5, 2**31 - 1, 0, 7]
