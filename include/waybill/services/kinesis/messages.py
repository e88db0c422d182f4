"""Kinesis records as messages of Kafka record batches.

| part of the message | from the Kinesis record |
|---|---|
| key | partition key; null if the producer gave none |
| value | data |
| timestamp | approximate arrival time, ms (CreateTime) |
| headers | the shard's id, the sequence number, and what `KinesisHeader` lists |

The user records of a KPL aggregate become a message each, with the arrival time and sequence number of the aggregate,
and with their position in it as the sub-sequence number. An aggregate that cannot be unpacked becomes one message with
its data unchanged, and a header with the reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from waybill.records.batches.dense import DenseMessage, encode_dense, length, varint
from waybill.records.batches.framing import Codec
from waybill.records.shards.lineage import Shard
from waybill.services.kinesis.aggregates import MAGIC, DamagedAggregate, unpack
from waybill.services.kinesis.answers import RawRecord

_TAG_PREFIX = "kinesis.tag."


class KinesisHeader(StrEnum):
    """The headers of a message. Numbers are decimal digits in ASCII."""

    SHARD_ID = "kinesis.shard_id"
    ENCRYPTION_TYPE = "kinesis.encryption_type"
    """`KMS`; absent for records that are not encrypted in Kinesis."""
    SEQUENCE_NUMBER = "kinesis.sequence_number"
    SUB_SEQUENCE_NUMBER = "kinesis.sub_sequence_number"
    """User records of an aggregate only: 0, 1, and so on."""
    EXPLICIT_HASH_KEY = "kinesis.explicit_hash_key"
    """User records of an aggregate only: GetRecords does not return the explicit hash key of a record."""
    OUTSIDE_SHARD = "kinesis.outside_shard"
    """`true` for a user record whose hash is not in the shard's range: the shards have changed after the KPL chose the
    shard. The KPL then sends it again, to the right one, so the Kinesis Client Library ignores this one."""
    DAMAGED_AGGREGATE = "kinesis.damaged_aggregate"
    """Why the value, which starts as a KPL aggregate does, cannot be unpacked."""


class EncodedRecords(NamedTuple):
    """Kinesis records as concatenated record batches."""

    data: bytes
    messages: int
    damaged_aggregates: int


def encode_records(
    records: Iterable[RawRecord], shard: Shard, base_offset: int, *, codec: Codec = Codec.ZSTD
) -> EncodedRecords:
    """Return record batches of all records of one shard. The offsets begin with `base_offset` and lack none."""
    writer = _MessageWriter(shard)
    data, messages = encode_dense(writer.messages(records), base_offset, codec=codec)
    return EncodedRecords(data, messages, writer.damaged_aggregates)


def to_messages(records: Iterable[RawRecord], shard: Shard) -> Iterator[DenseMessage]:
    """Yield the messages of records, at least one for each record."""
    return _MessageWriter(shard).messages(records)


class _Route(NamedTuple):
    """The encoded fields that all user records of an aggregate with the same keys share, except headers of tags."""

    key: bytes
    front: bytes
    """The headers up to the sequence number."""
    shared: list[bytes]
    """The headers after the sub-sequence number."""


class _MessageWriter:
    """Writes headers as bytes: those that many messages share are encoded once."""

    def __init__(self, shard: Shard) -> None:
        self.damaged_aggregates = 0
        self._shard = shard
        self._fronts: dict[tuple[str, int], bytes] = {}

    def messages(self, records: Iterable[RawRecord]) -> Iterator[DenseMessage]:
        for record in records:
            if record.data.startswith(MAGIC):
                yield from self._aggregate(record)
                continue
            number = b"%d" % record.sequence_number
            headers = b"".join((self._front(record.encryption_type, 0), length(len(number)), number))
            yield record.arrival_ms, _key(record), record.data, headers

    def _aggregate(self, record: RawRecord) -> Iterator[DenseMessage]:
        number = _field(b"%d" % record.sequence_number)
        key = _key(record)
        try:
            found = unpack(record.data)
        except DamagedAggregate as error:
            self.damaged_aggregates += 1
            front = self._front(record.encryption_type, 1) + number
            headers = front + _header(KinesisHeader.DAMAGED_AGGREGATE, str(error).encode(errors="replace"))
            yield record.arrival_ms, key, record.data, headers
            return
        routes: dict[tuple[str, str | None], _Route] = {}
        for position, (partition_key, hash_key, data, tags) in enumerate(found or ()):
            route = routes.get((partition_key, hash_key))
            if route is None:
                route = routes[partition_key, hash_key] = self._route(record, partition_key, hash_key)
            key, front, shared = route
            if tags:
                more = [_sub_sequence(position), *shared]
                more += [_header(_TAG_PREFIX + name, value.encode()) for name, value in tags]
                headers = b"".join((self._front(record.encryption_type, len(more)), number, *more))
            else:
                headers = b"".join((front, _sub_sequence(position), *shared))
            yield record.arrival_ms, key, data, headers

    def _route(self, record: RawRecord, partition_key: str, hash_key: str | None) -> _Route:
        """Return the fields that all user records with these keys share."""
        key = partition_key.encode()
        shared = []
        if hash_key is None:
            hashed = int.from_bytes(hashlib.md5(key, usedforsecurity=False).digest(), "big")
        else:
            hashed = int(hash_key)
            shared.append(_header(KinesisHeader.EXPLICIT_HASH_KEY, hash_key.encode()))
        if not self._shard.first_hash <= hashed <= self._shard.last_hash:
            shared.append(_header(KinesisHeader.OUTSIDE_SHARD, b"true"))
        front = self._front(record.encryption_type, 1 + len(shared)) + _field(b"%d" % record.sequence_number)
        return _Route(key, front, shared)

    def _front(self, encryption_type: str, more: int) -> bytes:
        """Return the encoded headers up to the sequence number's name, for a message with `more` headers after it."""
        front = self._fronts.get((encryption_type, more))
        if front is None:
            headers = [_header(KinesisHeader.SHARD_ID, self._shard.shard_id.encode())]
            if encryption_type != "NONE":
                headers.append(_header(KinesisHeader.ENCRYPTION_TYPE, encryption_type.encode()))
            name = _field(KinesisHeader.SEQUENCE_NUMBER.encode())
            front = varint(len(headers) + 1 + more) + b"".join(headers) + name
            self._fronts[encryption_type, more] = front
        return front


def _key(record: RawRecord) -> bytes | None:
    """Return the partition key.

    JSON can hold one half of a surrogate pair, which has no UTF-8 form: its bytes are kept.
    """
    key = record.partition_key
    return None if key is None else key.encode(errors="surrogatepass")


@lru_cache(maxsize=4096)
def _sub_sequence(position: int) -> bytes:
    return _header(KinesisHeader.SUB_SEQUENCE_NUMBER, b"%d" % position)


def _header(name: str, value: bytes) -> bytes:
    return _field(name.encode()) + _field(value)


def _field(value: bytes) -> bytes:
    return length(len(value)) + value
