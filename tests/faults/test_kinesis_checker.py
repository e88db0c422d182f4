"""The checker of Kinesis archives finds a record that is lost, repeated, foreign, changed or out of order."""

from __future__ import annotations

import io
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from aws_kinesis_agg.aggregator import RecordAggregator
from chaos.checker import Checked
from kafka.record.memory_records import MemoryRecordsBuilder
from kinesis_chaos.checker import Identity, ShardTruth, Truth, compare, read_archive, read_kinesis

pytestmark = pytest.mark.faults

PREFIX = "chaos/backup/"
PARENT, LEFT, RIGHT = "shardId-000000000000", "shardId-000000000001", "shardId-000000000002"
Message = tuple[Identity, bytes, bytes]


def message(shard_id: str, sequence: int, key: str) -> Message:
    return Identity(shard_id, sequence, 0), key.encode(), f"{key}:{sequence}".encode()


# Both keys begin in the parent; after its split `a` goes on in the left child, and `b` in the right one.
IN_PARENT = [message(PARENT, number, "ab"[number % 2]) for number in range(6)]
IN_LEFT = [message(LEFT, 10 + number, "a") for number in range(4)]
IN_RIGHT = [message(RIGHT, 10 + number, "b") for number in range(4)]


def truth() -> Truth:
    def shard(parents: tuple[str, ...], messages: Sequence[Message]) -> ShardTruth:
        return ShardTruth(parents, {identity: (key, value) for identity, key, value in messages})

    return Truth({LEFT: shard((PARENT,), IN_LEFT), PARENT: shard((), IN_PARENT), RIGHT: shard((PARENT,), IN_RIGHT)})


class Objects:
    """S3 with the objects of an archive, in the order of their creation."""

    def __init__(self, *objects: tuple[int, Sequence[Message]]) -> None:
        self.data: dict[str, bytes] = {}
        ends: Counter[int] = Counter()
        for slot, messages in objects:
            self.data[f"{PREFIX}kinesis/1_{slot}_{ends[slot]:020d}.kafka"] = batch(ends[slot], messages)
            ends[slot] += len(messages)

    def get_paginator(self, _: str) -> Objects:
        return self

    def paginate(self, **_: str) -> Iterator[dict[str, Any]]:
        yield {"Contents": [{"Key": key} for key in sorted(self.data)]}

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: N803 (botocore's names)
        assert Bucket
        return {"Body": io.BytesIO(self.data[Key])}


def batch(first: int, messages: Sequence[Message]) -> bytes:
    """Record batches as Kafka's clients write them, with offsets from `first` on."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
    for identity, key, value in messages:
        headers = [
            ("kinesis.shard_id", identity.shard_id.encode()),
            ("kinesis.sequence_number", str(identity.sequence).encode()),
        ]
        assert builder.append(timestamp=1, key=key, value=value, headers=headers)
    builder.close()
    data = bytearray(builder.buffer())
    struct.pack_into(">q", data, 0, first)  # not covered by the CRC
    return bytes(data)


def check(*objects: tuple[int, Sequence[Message]]) -> dict[str, int]:
    s3, checked = Objects(*objects), Checked()
    found, _ = read_archive(s3, "bucket", PREFIX, list(s3.data), checked)
    acknowledged = {(i.shard_id, i.sequence, value) for i, _, value in (*IN_PARENT, *IN_LEFT, *IN_RIGHT)}
    compare(found, truth(), acknowledged, checked)
    kinds: Counter[str] = Counter()
    for fault in checked.faults:
        kinds[fault.kind] += fault.count
    return dict(kinds)


def exchanged(messages: Sequence[Message], first: int, second: int) -> list[Message]:
    found = list(messages)
    found[first], found[second] = found[second], found[first]
    return found


def test_a_sound_archive_has_no_faults() -> None:
    assert check((0, IN_PARENT), (0, IN_LEFT), (1, IN_RIGHT)) == {}
    assert check((1, IN_PARENT[:3]), (1, IN_PARENT[3:]), (0, IN_RIGHT), (0, IN_LEFT)) == {}


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        (((0, IN_PARENT), (0, IN_LEFT[1:]), (1, IN_RIGHT)), {"lost": 2}),  # for Kinesis, and for the producer
        (((0, IN_PARENT), (0, IN_LEFT)), {"lost": 8}),
        (((0, IN_PARENT), (0, [*IN_LEFT, IN_LEFT[-1]]), (1, IN_RIGHT)), {"repeated": 1}),
        (((0, IN_PARENT), (0, IN_LEFT), (1, [*IN_RIGHT, message(RIGHT, 99, "b")])), {"foreign": 1}),
        (((0, IN_PARENT), (0, exchanged(IN_LEFT, 1, 2)), (1, IN_RIGHT)), {"out of order": 1}),
        (((0, exchanged(IN_PARENT, 0, 1)), (0, IN_LEFT), (1, IN_RIGHT)), {}),  # of two keys
        (((0, IN_LEFT), (1, IN_PARENT), (1, IN_RIGHT)), {"out of order": 3}),  # a child before its parent
        (((0, IN_PARENT), (0, IN_LEFT[:2]), (1, IN_LEFT[2:]), (1, IN_RIGHT)), {"broken": 1}),  # a shard in two slots
    ],
)
def test_each_fault_is_found(objects: tuple[tuple[int, Sequence[Message]], ...], expected: dict[str, int]) -> None:
    assert check(*objects) == expected


def test_a_changed_value_is_found() -> None:
    identity, key, _ = IN_LEFT[0]
    found = check((0, IN_PARENT), (0, [(identity, key, b"else"), *IN_LEFT[1:]]), (1, IN_RIGHT))
    assert found == {"foreign": 1, "lost": 1}


class OneShard:
    """boto3's client of a stream with one closed shard."""

    def __init__(self, *records: tuple[int, str, bytes]) -> None:
        self._records = [
            {"SequenceNumber": str(number), "PartitionKey": key, "Data": data, "ApproximateArrivalTimestamp": 0}
            for number, key, data in records
        ]

    def list_shards(self, **_: str) -> dict[str, Any]:
        return {"Shards": [{"ShardId": PARENT}]}

    def get_shard_iterator(self, **_: str) -> dict[str, str]:
        return {"ShardIterator": "first"}

    def get_records(self, **_: Any) -> dict[str, Any]:
        return {"Records": self._records, "MillisBehindLatest": 0}


def test_aggregates_are_taken_apart() -> None:
    aggregator = RecordAggregator()
    for number in range(3):
        aggregator.add_user_record(f"user-{number % 2}", b"%d" % number)
    packed = aggregator.clear_and_get().get_contents()[2]
    (shard,) = read_kinesis(OneShard((5, "user-0", packed), (6, "plain", b"text")), "stream").shards.values()
    assert dict(shard.records) == {
        Identity(PARENT, 5, 0): (b"user-0", b"0"),
        Identity(PARENT, 5, 1): (b"user-1", b"1"),
        Identity(PARENT, 5, 2): (b"user-0", b"2"),
        Identity(PARENT, 6, 0): (b"plain", b"text"),
    }
