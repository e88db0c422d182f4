"""The records of messages that are published again: which offsets they have, and abandoning one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.base.decision import Decision
from waybill.base.errors import RestoreRefused
from waybill.config.names import TopicPartition
from waybill.replay.republish.records import (
    Abandoned,
    Republished,
    abandon,
    abandoned_runs,
    create_record,
    list_records,
    not_recorded,
    record_done,
)
from waybill.replay.republish.republish import republish
from waybill.replay.republish.truncations import EpochRun, check_same_topic
from waybill.services.store import Store

TP = TopicPartition("flights", 0)
ANN, BEN = Decision("power cut", "ann"), Decision("the topic was cleaned", "ben")


class Objects:
    """What the records need of a `Store`."""

    prefix = ""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}

    def exists(self, key: str) -> bool:
        return key in self.content

    def read_if_exists(self, key: str) -> bytes | None:
        return self.content.get(key)

    def create_or_read_existing(self, key: str, data: bytes) -> bytes | None:
        existing = self.content.get(key)
        self.content.setdefault(key, data)
        return existing


@pytest.fixture
def store() -> Store:
    return cast("Store", Objects())


def order(store: Store, number: int, *runs: EpochRun) -> Republished:
    record = create_record(store, 1, TP, number, runs, ANN, 5, {})
    assert record is not None
    return record


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=6))
def test_what_no_record_has_is_what_is_left(taken: list[tuple[int, int]]) -> None:
    lost = [EpochRun(5, 12, 1), EpochRun(12, 30, 2)]
    records = [
        Republished(TP, 1, number, (EpochRun(first, first + length, 1),), "ann", "x", 1, {})
        for number, (first, length) in enumerate(taken)
    ]
    found = [offset for run in not_recorded(lost, records) for offset in range(run.first_offset, run.next_offset)]
    gone = {offset for first, length in taken for offset in range(first, first + length)}
    assert found == [offset for offset in range(5, 30) if offset not in gone]


def test_record_is_read_as_it_was_written() -> None:
    record = Republished(TP, 2, 3, (EpochRun(5, 9, 1),), "ann", "power cut", 7, {"producer_id": 4, "ends": [1]})
    assert Republished.from_json("key", record.to_json()) == record


def test_abandoned_record_is_not_continued_and_names_who_decided(store: Store) -> None:
    order(store, 0, EpochRun(10, 20, 1))
    abandon(store, 1, TP, 0, BEN, 9)
    abandon(store, 1, TP, 0, ANN, 10)
    (record,) = list_records(store, 1, TP)
    assert (record.is_unfinished, record.abandoned) == (False, Abandoned("ben", "the topic was cleaned", 9))
    lost = [EpochRun(10, 25, 1)]
    assert not_recorded(lost, [record]) == [EpochRun(20, 25, 1)], "some of it may be published already"
    assert abandoned_runs(lost, [record]) == [EpochRun(10, 20, 1)]
    order(store, 1, EpochRun(10, 20, 1), EpochRun(20, 25, 1))
    records = list_records(store, 1, TP)
    assert (abandoned_runs(lost, records), not_recorded(lost, records)) == ([], [])
    assert [each.is_unfinished for each in records] == [False, True]


def test_only_an_unfinished_record_can_be_abandoned(store: Store) -> None:
    record = order(store, 0, EpochRun(10, 20, 1))
    with pytest.raises(RestoreRefused, match="there is no publication 1; unfinished are: 0"):
        abandon(store, 1, TP, 1, BEN, 9)
    record_done(store, record, 7, 10)
    with pytest.raises(RestoreRefused, match="all messages of publication 0 are published"):
        abandon(store, 1, TP, 0, BEN, 9)


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_compacted_topic_is_refused_before_anything_is_stored(store: Store, policy: str) -> None:
    target: Any = SimpleNamespace(find_topic=lambda _: SimpleNamespace(config={"cleanup.policy": policy}))
    with pytest.raises(RestoreRefused, match=r"replaces a newer value.*--allow-compacted"):
        republish(store, target, 1, TP, [EpochRun(10, 20, 1)], ANN)
    assert list_records(store, 1, TP) == []


def test_topic_that_was_created_again_is_refused_by_name() -> None:
    source: Any = SimpleNamespace(topic=lambda _: SimpleNamespace(topic_id="new"))
    with pytest.raises(RestoreRefused, match=r"TopicRecreated: .*`waybill restore run`"):
        check_same_topic(source, 1, TP, "old")
    check_same_topic(source, 1, TP, "new")
    check_same_topic(source, 1, TP, "")
