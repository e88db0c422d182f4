"""Aggregates of the Kinesis Producer Library, compared with a reader of their wire format that is written here."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fuzzers.engine import Target
from fuzzers.mutation import Mutator, edge, text, varint
from waybill.records.batches.decode import decode
from waybill.records.batches.encode import to_records
from waybill.records.shards.lineage import Shard
from waybill.services.kinesis.aggregates import MAGIC, DamagedAggregate, unpack
from waybill.services.kinesis.answers import RawRecord, UnreadableAnswer, parse_records
from waybill.services.kinesis.messages import KinesisHeader, encode_records

SHARD = Shard("shardId-000000000000", 0, (1 << 128) - 1, "0")


# --- making aggregates ------------------------------------------------------------------------------------------------


def _field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def _key(chance: random.Random) -> bytes:
    return chance.choice([
        b"k", b"", text(chance).encode(), b"a" * 256, "ä".encode() * 257, b"\xff", b"\xed\xa0\x80", b"\xc3", b"q\xf1",
    ])  # fmt: skip


def _hash_key(chance: random.Random) -> bytes:
    written = chance.choice(["0", "7", str((1 << 128) - 1), str(1 << 128), "-1", "٣", "1" * 40, "", "0x1", "½"])
    return written.encode()


def _record(chance: random.Random) -> bytes:
    index = chance.choice([0, 0, 0, 1, 2, abs(edge(chance))])
    parts = [_number(1, index), _field(3, chance.randbytes(chance.randrange(8)))]
    if chance.random() < 0.3:
        parts.append(_number(2, chance.choice([0, 0, 1, abs(edge(chance))])))
    if chance.random() < 0.2:
        tag = _field(1, _key(chance)) + (_field(2, _key(chance)) if chance.random() < 0.8 else b"")
        parts.append(_field(4, tag))
    if chance.random() < 0.05:
        parts.pop(chance.randrange(len(parts)))
    chance.shuffle(parts)
    return b"".join(parts)


def _usual_or(chance: random.Random, usual: bytes, unusual: bytes) -> bytes:
    return usual if chance.random() < 0.8 else unusual


_mutate = Mutator(
    [b"\x0a\x01k\x1a\x05\x08\x00\x1a\x01d"], [varint(1 << 63), b"\x0a", b"\x1a", b"\x08\x80\x80\x80\x80\x10"]
)


def _make(chance: random.Random) -> bytes:
    parts = [_field(1, _usual_or(chance, b"key", _key(chance))) for _ in range(chance.choice([0, 1, 1, 2]))]
    parts += [_field(2, _usual_or(chance, b"12", _hash_key(chance))) for _ in range(chance.choice([0, 0, 1, 2]))]
    parts += [_field(3, _record(chance)) for _ in range(chance.choice([0, 1, 1, 3]))]
    body = b"".join(parts)
    if chance.random() < 0.4:
        body = _mutate.changed(body, chance)
    return b"\0" + body if chance.random() < 0.95 else b"\1" + _mutate.changed(_packed(body), chance)


def _packed(body: bytes) -> bytes:
    return MAGIC + body + hashlib.md5(body, usedforsecurity=False).digest()


# --- the oracle -------------------------------------------------------------------------------------------------------


class _Malformed(Exception):
    """The bytes are no message, or one that Protobuf's readers need not agree on."""


class _Record(NamedTuple):
    key: str
    hash_key: str | None
    data: bytes
    tags: tuple[tuple[str, str], ...]


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise _Malformed
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return number & (1 << 64) - 1, at


def _fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint_at(data, at)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise _Malformed
        if kind == 0:
            value, at = _varint_at(data, at)
            yield number, kind, value
            continue
        if kind == 2:
            size, at = _varint_at(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise _Malformed
        if size > len(data) - at:
            raise _Malformed
        yield number, kind, data[at : at + size]
        at += size


def _expected(message: bytes) -> list[_Record]:
    """Return the user records. Raise `ValueError` for those that must be refused, `_Malformed` for other bytes."""
    tables: dict[int, list[str]] = {1: [], 2: []}
    records = []
    for number, kind, value in _fields(message):
        if kind == 2 and isinstance(value, bytes):
            if number in tables:
                tables[number].append(value.decode())
            elif number == 3:
                records.append(list(_fields(value)))
    if not records or any(len(key) > 256 for key in tables[1]):
        raise ValueError
    for each in tables[2]:
        if not each.isascii() or not each.isdecimal() or len(each) > 39 or int(each) >= 1 << 128:
            raise ValueError
    return [_user_record(found, tables[1], tables[2]) for found in records]


def _user_record(fields: list[tuple[int, int, int | bytes]], keys: list[str], hash_keys: list[str]) -> _Record:
    last = {(number, kind): value for number, kind, value in fields}
    index, hash_index, data = last.get((1, 0)), last.get((2, 0)), last.get((3, 2))
    if not isinstance(index, int) or not isinstance(data, bytes):
        raise ValueError("a required field is missing")
    tags = []
    for number, kind, value in fields:
        if (number, kind) == (4, 2) and isinstance(value, bytes):
            tag = {n: v for n, k, v in _fields(value) if k == 2}
            name, content = tag.get(1), tag.get(2, b"")
            if not isinstance(name, bytes) or not isinstance(content, bytes):
                raise ValueError("a required field is missing")
            tags.append((name.decode(), content.decode()))
    if index >= len(keys) or (isinstance(hash_index, int) and hash_index >= len(hash_keys)):
        raise ValueError("no such key")
    hash_key = hash_keys[hash_index] if isinstance(hash_index, int) else None
    return _Record(keys[index], hash_key, data, tuple(tags))


def _check(inputs: Sequence[bytes]) -> None:
    """Oracle: a reader of the wire format. Each record is one message, or as many as it has user records.

    An input is a byte, then a message of Protocol Buffers, which is packed here; after a byte 1, the record as it is.
    """
    inputs = [each[1:] if each[:1] == b"\1" else _packed(each[1:]) for each in inputs]
    counts = []
    for data in inputs:
        found, error = None, None
        try:
            found = unpack(data)
        except DamagedAggregate as damage:
            error = damage
            assert len(str(damage)) < 500
            str(damage).encode()
        counts.append(len(found or [b""]))
        if not data.startswith(MAGIC):
            assert (found, error) == (None, None)
            continue
        message, digest = data[4:-16], data[-16:]
        if len(data) < 20 or hashlib.md5(message, usedforsecurity=False).digest() != digest:
            assert error is not None, "the MD5 is wrong"
            continue
        try:
            expected = _expected(message)
        except _Malformed:
            continue
        except ValueError:
            assert error is not None, f"unpacked {found}"
            continue
        assert error is None, error
        assert [tuple(each) for each in found or ()] == [tuple(each) for each in expected]
    _check_messages(inputs, counts)


def _check_messages(inputs: Sequence[bytes], counts: Sequence[int]) -> None:
    """All inputs as records of one shard: each has its messages, in order, and a reader of the format finds them."""
    records = [RawRecord(number, number, "key", data, "NONE") for number, data in enumerate(inputs)]
    encoded = encode_records(records, SHARD, 0)
    found = [each for batch in decode(encoded.data, where="fuzz") for each in to_records(batch)]
    assert encoded.messages == len(found) == sum(counts)
    messages = iter(found)
    for number, (data, count) in enumerate(zip(inputs, counts, strict=True)):
        for _ in range(count):
            message = next(messages)
            headers = dict(message.headers)
            assert headers[KinesisHeader.SEQUENCE_NUMBER] == b"%d" % number
            if KinesisHeader.DAMAGED_AGGREGATE in headers:
                assert message.value == data
                assert len(headers[KinesisHeader.DAMAGED_AGGREGATE] or b"") < 1_000


# --- answers ----------------------------------------------------------------------------------------------------------

_answers = Mutator(
    [
        b'{"MillisBehindLatest":0,"NextShardIterator":"x","Records":[{"ApproximateArrivalTimestamp":1.7E9,"Data":"YQ==",'
        b'"PartitionKey":"k","SequenceNumber":"49"},{"Data":"","SequenceNumber":"50","EncryptionType":"KMS"}]}',
        b'{"Records":[],"MillisBehindLatest":5}',
    ],
    [
        b'"',
        b"\\ud800",
        b"null",
        b"-1",
        b"1e400",
        b"NaN",
        b"[",
        b"{",
        b"\xff",
        b"9" * 30,
        b"1" * 5000,
        "٣".encode(),
        b"=",
    ],
)


def _check_answers(inputs: Sequence[bytes]) -> None:
    """Invariants: records of the declared types, or `UnreadableAnswer`, which a retry follows."""
    for body in inputs:
        try:
            found = parse_records(body)
        except UnreadableAnswer as error:
            assert len(str(error)) < 1_000
            continue
        for record in found.records:
            assert isinstance(record.sequence_number, int)
            assert -(1 << 63) <= record.arrival_ms < 1 << 63
            (record.partition_key or "").encode()
        encode_records(found.records, SHARD, 0)


KPL = Target("kpl", _make, _check)
ANSWERS = Target("kinesis_answers", _answers, _check_answers)
