"""KPL aggregates, built by aws-kinesis-agg: each user record once, and nothing of a damaged aggregate."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from aws_kinesis_agg.aggregator import RecordAggregator
from aws_kinesis_agg.deaggregator import iter_deaggregate_records
from hypothesis import given
from hypothesis import strategies as st

from waybill.services.kinesis.aggregates import MAGIC, DamagedAggregate, UserRecord, aggregate_class, unpack

KEYS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
HASH_KEYS = st.integers(0, (1 << 128) - 1).map(str)
RECORDS = st.lists(st.tuples(KEYS, st.none() | HASH_KEYS, st.binary(max_size=60)), min_size=1, max_size=20)


def aggregate_of(records: list[tuple[str, str | None, bytes]]) -> bytes:
    aggregator = RecordAggregator()
    for key, hash_key, data in records:
        assert aggregator.add_user_record(key, data, hash_key) is None
    packed: bytes = aggregator.clear_and_get().get_contents()[2]
    return packed


def sealed(message: bytes) -> bytes:
    """Return an aggregate of a Protocol Buffers message, with a valid MD5."""
    return MAGIC + message + hashlib.md5(message).digest()


def built(change: Callable[[Any], None]) -> bytes:
    """Return an aggregate of one record `(key, data)` after a change of the message."""
    message = aggregate_class()()
    message.partition_key_table.append("key")
    message.records.add(partition_key_index=0, data=b"data")
    change(message)
    return sealed(message.SerializePartialToString())


@given(RECORDS)
def test_user_records_come_back(records: list[tuple[str, str | None, bytes]]) -> None:
    expected = [UserRecord(key, hash_key, data, ()) for key, hash_key, data in records]
    assert unpack(aggregate_of(records)) == expected


@given(st.lists(st.tuples(KEYS, st.none(), st.binary(max_size=60)), min_size=1, max_size=20))
def test_the_package_of_aws_unpacks_the_same(records: list[tuple[str, str | None, bytes]]) -> None:
    """Without explicit hash keys: the package gives the first one to records that have none."""
    data = aggregate_of(records)
    kinesis = {"SequenceNumber": "1", "PartitionKey": "a", "ApproximateArrivalTimestamp": 0, "Data": data}
    theirs = [each["kinesis"] for each in iter_deaggregate_records([kinesis], data_format="Boto3")]
    ours = unpack(data)
    assert ours is not None
    assert [each["partitionKey"] for each in theirs] == [each.partition_key for each in ours]
    assert [each["subSequenceNumber"] for each in theirs] == list(range(len(ours)))


@pytest.mark.parametrize("data", [b"", b"data", MAGIC[:3], b"\0" + MAGIC + bytes(40)])
def test_other_data_is_no_aggregate(data: bytes) -> None:
    assert unpack(data) is None


@given(RECORDS, st.data())
def test_a_flipped_bit_is_noticed(records: list[tuple[str, str | None, bytes]], data: st.DataObject) -> None:
    packed = bytearray(aggregate_of(records))
    packed[data.draw(st.integers(len(MAGIC), len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DamagedAggregate, match="MD5"):
        unpack(bytes(packed))


@given(RECORDS, st.data())
def test_a_cut_is_noticed(records: list[tuple[str, str | None, bytes]], data: st.DataObject) -> None:
    packed = aggregate_of(records)
    with pytest.raises(DamagedAggregate):
        unpack(packed[: data.draw(st.integers(len(MAGIC), len(packed) - 1))])


@given(st.binary(max_size=100))
def test_any_message_with_a_valid_checksum_is_unpacked_or_damaged(message: bytes) -> None:
    with contextlib.suppress(DamagedAggregate):
        assert unpack(sealed(message))


def set_(**fields: int) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        for name, value in fields.items():
            setattr(message.records[0], name, value)

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (set_(partition_key_index=1), "user record 0 has partition key 1, and there are 1"),
        (set_(explicit_hash_key_index=0), "user record 0 has explicit hash key 0, and there are 0"),
        (lambda message: message.records[0].ClearField("data"), r"it lacks records\[0\].data"),
        (lambda message: message.ClearField("records"), "no user records"),
        (lambda message: message.partition_key_table.append("x" * 257), "257 characters"),
        (lambda message: message.explicit_hash_key_table.append("-1"), "'-1' is no hash key"),
        (lambda message: message.explicit_hash_key_table.append(str(1 << 128)), "is no hash key"),
    ],
)
def test_the_reason_of_a_damage_is_named(change: Callable[[Any], None], reason: str) -> None:
    with pytest.raises(DamagedAggregate, match=reason):
        unpack(built(change))


def test_tags_and_unknown_fields() -> None:
    data = built(lambda message: message.records[0].tags.add(key="tag", value="v"))
    assert unpack(data) == [UserRecord("key", None, b"data", (("tag", "v"),))]
    assert unpack(sealed(data[len(MAGIC) : -16] + b"\x52\x01x")) == unpack(data)
