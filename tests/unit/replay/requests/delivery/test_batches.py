"""Batches: every message once, in order, within the limits, and the same after a restart."""

from __future__ import annotations

import base64
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from waybill.config.names import TopicPartition
from waybill.replay.requests.delivery.batches import Batch, cut_batches, message_json
from waybill.replay.requests.message import ReplayedMessage

BYTES = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(str.encode)
NAMES = st.text(st.characters(codec="utf-8"), max_size=5) | st.binary(max_size=4).map(
    lambda data: data.decode(errors="surrogateescape")
)
MESSAGES = st.lists(
    st.tuples(st.integers(-1, 4 * 10**12), BYTES, BYTES, st.lists(st.tuples(NAMES, BYTES), max_size=3)), max_size=30
).map(
    lambda rows: [
        ReplayedMessage(TopicPartition("flights", number % 3), number, at, key, value, tuple(headers))
        for number, (at, key, value, headers) in enumerate(rows)
    ]
)


def cut(messages: list[ReplayedMessage], max_messages: int, max_bytes: int, first: int = 0) -> list[Batch]:
    return list(cut_batches(messages, "R1", first, max_messages=max_messages, max_bytes=max_bytes))


def original(value: Any) -> bytes | None:
    """What a receiver makes of the JSON form of bytes."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    assert list(value) == ["base64"]
    return base64.b64decode(value["base64"], validate=True)


@given(MESSAGES, st.integers(1, 7), st.integers(1, 2000))
def test_each_message_is_in_one_batch_in_order_and_within_the_limits(
    messages: list[ReplayedMessage], max_messages: int, max_bytes: int
) -> None:
    batches = cut(messages, max_messages, max_bytes)
    assert [message for batch in batches for message in batch.messages] == messages
    assert [batch.number for batch in batches] == list(range(len(batches)))
    assert len({batch.idempotency_key for batch in batches}) == len(batches)
    for batch in batches:
        assert 1 <= len(batch.messages) <= max_messages
        assert len(batch.messages) == 1 or sum(map(len, batch.encoded)) <= max_bytes


@given(MESSAGES, st.integers(1, 7), st.integers(1, 2000), st.data())
def test_a_restart_at_the_end_of_a_batch_cuts_the_same_batches(
    messages: list[ReplayedMessage], max_messages: int, max_bytes: int, data: st.DataObject
) -> None:
    batches = cut(messages, max_messages, max_bytes)
    done = data.draw(st.integers(0, len(batches)))
    start = sum(len(batch.messages) for batch in batches[:done])
    assert cut(messages[start:], max_messages, max_bytes, done) == batches[done:]


@given(MESSAGES)
def test_receivers_get_the_bytes_back(messages: list[ReplayedMessage]) -> None:
    for batch in cut(messages, 10, 1 << 20):
        body = json.loads(batch.body())
        assert {name: body[name] for name in ("v", "type", "request", "batch")} == {
            "v": 1,
            "type": "messages",
            "request": "R1",
            "batch": batch.number,
        }
        assert len(body["messages"]) == len(batch.messages)
        for message, found in zip(batch.messages, body["messages"], strict=True):
            assert (found["topic"], found["partition"], found["offset"]) == (
                message.topic_partition.topic,
                message.topic_partition.partition,
                message.offset,
            )
            assert (original(found["key"]), original(found["value"])) == (message.key, message.value)
            headers = [(original(entry["name"]), original(entry["value"])) for entry in found["headers"]]
            assert headers == [(name.encode(errors="surrogateescape"), value) for name, value in message.headers]


@given(MESSAGES.filter(lambda messages: len(messages) >= 2))
def test_halves_hold_all_messages_under_keys_of_their_own(messages: list[ReplayedMessage]) -> None:
    [batch] = cut(messages, 100, 1 << 20)
    first, second = batch.halves()
    assert first.messages + second.messages == batch.messages
    assert first.encoded + second.encoded == batch.encoded
    assert len({batch.idempotency_key, first.idempotency_key, second.idempotency_key}) == 3
    assert batch.halves() == (first, second)


def test_times_are_iso_8601_with_milliseconds() -> None:
    def time_of(timestamp_ms: int) -> Any:
        return message_json(ReplayedMessage(TopicPartition("t", 0), 0, timestamp_ms, None, None))["timestamp"]

    assert time_of(1_763_892_000_123) == "2025-11-23T10:00:00.123Z"
    assert time_of(0) == "1970-01-01T00:00:00.000Z"
    assert time_of(-1) is None
    assert time_of(1 << 62) is None
