"""Aggregates of the Kinesis Producer Library (KPL): many user records in the data of one Kinesis record.

The format is that of the KPL's page "KPL Aggregated Record Format": a magic of four bytes, a Protocol Buffers message
`AggregatedRecord`, and its MD5. The page's schema is declared here, in a separate descriptor pool. The package
`aws-kinesis-agg` has the same schema, but its deaggregator drops the rest of an aggregate at the first index that is
wrong, gives user records without an explicit hash key the first one of the table, and registers `config.proto` and
`messages.proto` for the whole process, where a user's parser may have files of these names. It is the oracle in tests.
"""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES = 16
_MAX_KEY_CHARACTERS = 256  # Kinesis' limit. A much longer key would be repeated for each user record.
_MAX_HASH = (1 << 128) - 1


class DamagedAggregate(Exception):
    """The data starts like an aggregate, but cannot be unpacked."""


class UserRecord(NamedTuple):
    """One record that the application passed to the KPL."""

    partition_key: str
    explicit_hash_key: str | None
    data: bytes
    tags: tuple[tuple[str, str], ...]
    """The schema has tags, although the KPL writes none."""


def unpack(data: bytes) -> list[UserRecord] | None:
    """Return the user records of an aggregate in their order, at least one; None if the data is no aggregate.

    Raises `DamagedAggregate` with the reason when it starts with the magic, but the checksum, the message or an index
    is wrong. Then none of it is unpacked.
    """
    if not data.startswith(MAGIC):
        return None
    message, digest = data[len(MAGIC) : -_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if len(data) < len(MAGIC) + _DIGEST_BYTES:
        raise DamagedAggregate(f"{len(data)} bytes are too few for an aggregate")
    if hashlib.md5(message, usedforsecurity=False).digest() != digest:
        raise DamagedAggregate("its MD5 is wrong")
    from google.protobuf.message import DecodeError

    aggregate = aggregate_class()()
    try:
        aggregate.ParseFromString(message)
        if not aggregate.IsInitialized():  # the parser does not check this
            raise DamagedAggregate(f"it lacks {aggregate.FindInitializationErrors()[0]}")
        found = list(_user_records(aggregate))
    except (DecodeError, UnicodeDecodeError) as error:
        raise DamagedAggregate(f"its Protocol Buffers message cannot be parsed: {error}") from error
    if not found:
        raise DamagedAggregate("it has no user records")
    return found


def _user_records(aggregate: Any) -> Iterator[UserRecord]:
    keys = [_text(key, "partition key") for key in aggregate.partition_key_table]
    hash_keys = [_text(key, "explicit hash key") for key in aggregate.explicit_hash_key_table]
    for key in keys:
        if len(key) > _MAX_KEY_CHARACTERS:
            raise DamagedAggregate(
                f"a partition key has {len(key):,} characters, and Kinesis allows {_MAX_KEY_CHARACTERS}"
            )
    for text in hash_keys:
        if not (text.isascii() and text.isdecimal() and len(text) <= 39 and int(text) <= _MAX_HASH):
            raise DamagedAggregate(f"{text[:50]!r} is no hash key")
    for number, record in enumerate(aggregate.records):
        index = record.partition_key_index
        if index >= len(keys):
            raise DamagedAggregate(f"user record {number} has partition key {index}, and there are {len(keys)}")
        hash_key: str | None = None
        if record.HasField("explicit_hash_key_index"):
            hash_index = record.explicit_hash_key_index
            if hash_index >= len(hash_keys):
                raise DamagedAggregate(
                    f"user record {number} has explicit hash key {hash_index}, and there are {len(hash_keys)}"
                )
            hash_key = hash_keys[hash_index]
        tags = tuple((_text(tag.key, "tag"), _text(tag.value, "tag")) for tag in record.tags) if record.tags else ()
        yield UserRecord(keys[index], hash_key, record.data, tags)


def _text(value: str | bytes, what: str) -> str:
    """Return a text of the message.

    For proto2, Protobuf returns a text that is not UTF-8 as bytes, without an error.
    """
    if isinstance(value, str):
        return value
    raise DamagedAggregate(f"a {what} is not UTF-8: {value[:50]!r}")


@functools.cache
def aggregate_class() -> Any:
    """Return the class of `AggregatedRecord`. The first aggregate imports protobuf: many streams have none."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    required, optional, repeated = kinds.LABEL_REQUIRED, kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED
    file = descriptor_pb2.FileDescriptorProto(name="waybill/kpl.proto", package="waybill.kpl", syntax="proto2")

    def declare(name: str, *fields: tuple[str, Any, Any, str]) -> None:
        message = file.message_type.add(name=name)
        for number, (field_name, label, kind, type_name) in enumerate(fields, 1):
            message.field.add(
                name=field_name,
                number=number,
                label=label,
                type=kind,
                type_name=type_name or None,
            )

    declare("Tag", ("key", required, kinds.TYPE_STRING, ""), ("value", optional, kinds.TYPE_STRING, ""))
    declare(
        "Record",
        ("partition_key_index", required, kinds.TYPE_UINT64, ""),
        ("explicit_hash_key_index", optional, kinds.TYPE_UINT64, ""),
        ("data", required, kinds.TYPE_BYTES, ""),
        ("tags", repeated, kinds.TYPE_MESSAGE, ".waybill.kpl.Tag"),
    )
    declare(
        "AggregatedRecord",
        ("partition_key_table", repeated, kinds.TYPE_STRING, ""),
        ("explicit_hash_key_table", repeated, kinds.TYPE_STRING, ""),
        ("records", repeated, kinds.TYPE_MESSAGE, ".waybill.kpl.Record"),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("waybill.kpl.AggregatedRecord"))
