"""Duplicates within a request, against a model that keeps every message, with restarts at any message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.base.errors import DocumentDamaged, DocumentTooNew
from waybill.config.names import TopicPartition
from waybill.replay.requests.delivery.seen import ENTRY_BYTES, SeenIds

Message = tuple[bytes, TopicPartition, int]


def messages_of(ids: list[int]) -> list[Message]:
    return [(b"id-%d" % each, TopicPartition(f"t{number % 2}", number % 3), number) for number, each in enumerate(ids)]


def first_of_each_id(messages: list[Message]) -> list[Message]:
    found: dict[bytes, Message] = {}
    for message in messages:
        found.setdefault(message[0], message)
    return list(found.values())


IDS = st.lists(st.integers(0, 15), max_size=60)


@given(IDS)
def test_the_first_message_of_each_id_is_delivered(ids: list[int]) -> None:
    messages, seen = messages_of(ids), SeenIds()
    assert [message for message in messages if not seen.is_duplicate(*message)] == first_of_each_id(messages)


@given(IDS, st.data())
def test_across_restarts_each_id_is_delivered_once(ids: list[int], data: st.DataObject) -> None:
    """A worker stores changes, then its cursor, now and then; it dies between any two steps, and the next one goes on.

    Delivery is that of a target which drops repeated places, such as objects in S3, so what is left are duplicates.
    """
    messages = messages_of(ids)
    stored: list[tuple[str, bytes]] = []
    delivered: dict[tuple[TopicPartition, int], Message] = {}
    cursor = 0
    for _ in range(data.draw(st.integers(1, 5))):
        seen = SeenIds()
        seen.add_stored(stored)
        end = data.draw(st.integers(cursor, len(messages)))
        for position in range(cursor, end):
            if not seen.is_duplicate(*messages[position]):
                delivered[messages[position][1:]] = messages[position]
            step = data.draw(st.sampled_from(["read on", "store the changes", "store both"]))
            if step != "read on" and (changes := seen.changes()) is not None:
                stored.append((f"changes-{len(stored)}", changes))
            if step == "store both":
                cursor = position + 1
    seen = SeenIds()
    seen.add_stored(stored)
    for position in range(cursor, len(messages)):
        if not seen.is_duplicate(*messages[position]):
            delivered[messages[position][1:]] = messages[position]
    assert sorted(delivered.values(), key=lambda message: message[2]) == first_of_each_id(messages)


@given(IDS)
def test_the_changes_of_two_workers_at_once_do_no_harm(ids: list[int]) -> None:
    messages, stored = messages_of(ids), list[tuple[str, bytes]]()
    for worker in ("a", "b"):
        seen = SeenIds()
        for message in messages:
            seen.is_duplicate(*message)
        if (changes := seen.changes()) is not None:
            stored.append((worker, changes))
    third = SeenIds()
    third.add_stored(stored)
    assert [message for message in messages if not third.is_duplicate(*message)] == first_of_each_id(messages)


@given(IDS, st.integers(1, 8))
def test_the_first_different_ids_are_remembered_and_no_others(ids: list[int], limit: int) -> None:
    seen, remembered = SeenIds(limit), list[bytes]()
    for message in messages_of(ids):
        assert seen.is_duplicate(*message) == (message[0] in remembered)
        if message[0] not in remembered and len(remembered) < limit:
            remembered.append(message[0])
        assert len(seen) == len(remembered)


@given(IDS, st.integers(1, 8), st.data())
def test_a_worker_behind_a_state_that_is_ahead_decides_as_the_one_before(
    ids: list[int], limit: int, data: st.DataObject
) -> None:
    messages = messages_of(ids)
    ahead = SeenIds(limit)
    before = [ahead.is_duplicate(*message) for message in messages]
    changes, cursor = ahead.changes(), data.draw(st.integers(0, len(messages)))
    seen = SeenIds(limit)
    seen.add_stored([("seen/1", changes)] if changes is not None else [])
    assert [seen.is_duplicate(*message) for message in messages[cursor:]] == before[cursor:]


def test_the_state_is_small() -> None:
    seen = SeenIds()
    for number in range(1_000):
        seen.is_duplicate(b"%d" % number, TopicPartition("flights", 0), number)
    changes = seen.changes()
    assert changes is not None
    assert len(changes) <= 1_000 * ENTRY_BYTES + 64
    assert seen.changes() is None


def test_damaged_and_newer_state_is_refused_by_name() -> None:
    seen = SeenIds()
    seen.is_duplicate(b"id", TopicPartition("flights", 0), 7)
    good = seen.changes()
    assert good is not None
    SeenIds().add_stored([("seen/1", good)])
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1
        with pytest.raises(DocumentDamaged, match="seen/1"):
            SeenIds().add_stored([("seen/1", bytes(bad))])
    for length in range(len(good)):
        with pytest.raises(DocumentDamaged, match="seen/1"):
            SeenIds().add_stored([("seen/1", good[:length])])


def test_a_newer_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = SeenIds()
    seen.is_duplicate(b"id", TopicPartition("flights", 0), 7)
    with monkeypatch.context() as newer:
        newer.setattr("waybill.replay.requests.delivery.seen._VERSION", 2)
        data = seen.changes()
    assert data is not None
    with pytest.raises(DocumentTooNew, match="seen/1"):
        SeenIds().add_stored([("seen/1", data)])


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="below 1"):
        SeenIds(0)
