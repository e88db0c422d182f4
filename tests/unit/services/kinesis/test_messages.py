"""Kinesis records as Kafka record batches, read back by `decode` and by kafka-python."""

from __future__ import annotations

from typing import Any

import pytest
from fake_kinesis import FIRST_SEQUENCE, SHARD, raw, raws, whole_shard
from hypothesis import given
from hypothesis import strategies as st
from test_aggregates import RECORDS, aggregate_of, sealed

from waybill.records.batches import Codec, check_crc, frames
from waybill.records.batches.decode import decode
from waybill.records.shards.lineage import Shard
from waybill.services.kinesis.answers import RawRecord
from waybill.services.kinesis.messages import encode_records

NUMBER = ("kinesis.sequence_number", str(FIRST_SEQUENCE).encode())
WHERE = ("kinesis.shard_id", SHARD.encode())


def decoded(records: list[RawRecord], shard: Shard | None = None, base_offset: int = 0) -> list[dict[str, Any]]:
    """Return the messages as rows, with headers as a list of pairs and the timestamp in ms."""
    encoded = encode_records(records, shard or whole_shard(), base_offset)
    rows = [row for batch in decode(encoded.data, where="test", verify_crc=True) for row in batch.to_pylist()]
    assert len(rows) == encoded.messages
    for row in rows:
        row["headers"] = [(each["key"], each["value"]) for each in row["headers"]]
        row["timestamp"] = round(row["timestamp"].timestamp() * 1000)
    return rows


def test_a_record_is_one_message() -> None:
    (row,) = decoded([raw(0, b"value", "schlüssel")], base_offset=7)
    assert row == {
        "offset": 7,
        "timestamp": 1_700_000_000_000,
        "key": "schlüssel".encode(),
        "value": b"value",
        "headers": [WHERE, NUMBER],
    }


def test_an_encrypted_record_says_so_and_a_key_may_be_missing() -> None:
    (row,) = decoded([raw(0, b"", None, "KMS")])
    assert (row["key"], row["value"]) == (None, b"")
    assert row["headers"] == [WHERE, ("kinesis.encryption_type", b"KMS"), NUMBER]


@given(
    st.lists(
        st.builds(
            RawRecord,
            st.integers(0, 1 << 128),
            st.integers(-1, 1 << 42),
            st.none() | st.text(st.characters(codec="utf-8"), max_size=256),
            st.binary(max_size=300),
            st.sampled_from(["NONE", "KMS"]),
        ),
        min_size=1,
        max_size=30,
    ),
    st.integers(0, 1 << 60),
)
def test_records_come_back(records: list[RawRecord], base_offset: int) -> None:
    rows = decoded(records, base_offset=base_offset)
    for number, (record, row) in enumerate(zip(records, rows, strict=True)):
        assert row["offset"] == base_offset + number
        assert row["timestamp"] == record.arrival_ms
        assert row["key"] == (None if record.partition_key is None else record.partition_key.encode())
        assert row["value"] == record.data
        assert dict(row["headers"])["kinesis.sequence_number"] == str(record.sequence_number).encode()


@given(RECORDS)
def test_each_user_record_of_an_aggregate_is_one_message(records: list[tuple[str, str | None, bytes]]) -> None:
    rows = decoded([raw(0, aggregate_of(records), "a"), raw(1)])
    assert [(row["key"], row["value"]) for row in rows[:-1]] == [(key.encode(), data) for key, _, data in records]
    for number, (row, (_, hash_key, _)) in enumerate(zip(rows, records, strict=False)):
        expected = {"kinesis.shard_id": SHARD.encode(), NUMBER[0]: NUMBER[1]}
        expected["kinesis.sub_sequence_number"] = str(number).encode()
        if hash_key is not None:
            expected["kinesis.explicit_hash_key"] = hash_key.encode()
        assert dict(row["headers"]) == expected
    assert rows[-1]["value"] == b"data"


@pytest.mark.parametrize("key", ["a", None])
def test_a_damaged_aggregate_is_kept_as_it_is(key: str | None) -> None:
    damaged = bytearray(aggregate_of([("key", None, b"data")]))
    damaged[10] ^= 1
    encoded = encode_records([raw(0, bytes(damaged), key)], whole_shard(), 0)
    assert (encoded.messages, encoded.damaged_aggregates) == (1, 1)
    (row,) = decoded([raw(0, bytes(damaged), key)])
    assert row["value"] == bytes(damaged)
    assert row["headers"] == [WHERE, NUMBER, ("kinesis.damaged_aggregate", b"its MD5 is wrong")]


def test_a_user_record_outside_the_shard_is_marked() -> None:
    """The KPL sends it again to the right shard, after a split."""
    lower = Shard(SHARD, 0, (1 << 127) - 1, "1")
    rows = decoded([raw(0, aggregate_of([("x", "0", b"in"), ("x", str(1 << 127), b"out")]))], lower)
    marks = [dict(row["headers"]).get("kinesis.outside_shard") for row in rows]
    assert marks == [None, b"true"]


def test_batches_are_small_enough_for_a_topic() -> None:
    records = [raw(number, bytes([number % 256]) * 300_000) for number in range(10)] + [raw(10, b"x" * 3_000_000)]
    encoded = encode_records(records, whole_shard(), 5, codec=Codec.NONE)
    found = list(frames(encoded.data, where="test"))
    for frame in found:
        check_crc(frame, "test")
    assert [frame.header.record_count for frame in found] == [3, 3, 3, 1, 1]
    assert [frame.header.base_offset for frame in found] == [5, 8, 11, 14, 15]
    assert max(len(frame.data) for frame in found[:-1]) < 1 << 20


def test_no_records_are_no_bytes() -> None:
    assert encode_records([], whole_shard(), 0) == (b"", 0, 0)


def test_the_codec_is_zstd() -> None:
    encoded = encode_records(raws(100), whole_shard(), 0)
    assert [frame.header.codec for frame in frames(encoded.data, where="test")] == [Codec.ZSTD]


def field(number: int, value: bytes) -> bytes:
    """Return a field of Protocol Buffers with a length, as any producer may write it."""
    return bytes([number << 3 | 2, len(value)]) + value


SHORT = st.binary(max_size=12)


@given(key=SHORT, hash_key=SHORT, tag=SHORT, tag_value=SHORT, data=SHORT, number=st.integers(0, 2))
def test_any_bytes_in_the_texts_of_an_aggregate_stop_no_other_record(
    key: bytes, hash_key: bytes, tag: bytes, tag_value: bytes, data: bytes, number: int
) -> None:
    record = bytes([1 << 3, 0]) + (bytes([2 << 3, 0]) if number else b"") + field(3, data)
    record += field(4, field(1, tag) + field(2, tag_value)) if number == 2 else b""
    aggregate = field(1, key) + (field(2, hash_key) if number else b"") + field(3, record)
    rows = decoded([raw(0, sealed(aggregate)), raw(1, b"next")])
    assert [row["value"] for row in rows[1:]] == [b"next"]
    damaged = [name for name, _ in rows[0]["headers"] if name == "kinesis.damaged_aggregate"]
    assert rows[0]["value"] == (sealed(aggregate) if damaged else data)


def test_an_aggregate_whose_partition_key_is_not_utf8_is_damaged() -> None:
    aggregate = bytes.fromhex("f3899ac20a01ff1a0508001a017871f21278d47b36e0ed3346a7a269ecb9")
    (row,) = decoded([raw(0, aggregate)])
    assert row["value"] == aggregate
    assert ("kinesis.damaged_aggregate", b"a partition key is not UTF-8: b'\\xff'") in row["headers"]


def test_half_of_a_surrogate_pair_in_a_partition_key_is_kept() -> None:
    (row,) = decoded([raw(0, b"value", "a\ud83d")])
    assert row["key"] == b"a\xed\xa0\xbd"
