"""`waybill cat`: the messages of a backup object, as JSON lines."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import IO, Any

import orjson
import pyarrow as pa

from waybill.cli.services import open_store
from waybill.config import load_config
from waybill.errors import ConfigError
from waybill.formats.reading import SET_ASIDE, IndexedReader
from waybill.log import decode as decoding
from waybill.log import framing
from waybill.names import BackupName, Extension
from waybill.store import Store

__all__ = ["bytes_document", "messages", "run"]

_S3 = "s3://"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def run(key: str, from_offset: int | None, to_offset: int | None, limit: int | None) -> None:
    """Print them; see `waybill cat --help`."""
    config = load_config()
    bucket, key = _split(key)
    first_offset = max(from_offset or 0, _first_offset(key))
    next_offset = None if to_offset is None else to_offset + 1
    with open_store(config, bucket) as store, ExitStack() as stack:
        found = _batches(store, key, first_offset, next_offset, stack)
        _write(sys.stdout.buffer, islice(messages(found), limit))


def _batches(
    store: Store, key: str, first_offset: int, next_offset: int | None, stack: ExitStack
) -> Iterator[pa.RecordBatch]:
    """The object's messages within the range; what it takes to read them stays open until the stack ends."""
    if _extension(key).is_indexed:
        reader = stack.enter_context(IndexedReader(store, key))
        return reader.messages(first_offset=first_offset, next_offset=next_offset)
    frames = framing.read_frames(stack.enter_context(store.open(key)), key)
    return decoding.decode(frames, where=key, first_offset=first_offset, next_offset=next_offset)


def _split(key: str) -> tuple[str | None, str]:
    """The bucket, if one is named, and the key."""
    if not key.startswith(_S3):
        return None, key
    bucket, _, rest = key.removeprefix(_S3).partition("/")
    if not bucket or not rest:
        raise ConfigError(f"{key!r} names no object: s3://bucket/key")
    return bucket, rest


def _first_offset(key: str) -> int:
    """A batch that straddles the start of an object's range is kept whole; messages before it are not the object's."""
    try:
        return BackupName.parse(key).first_offset
    except ValueError:
        return 0  # some other object of record batches, such as a copy


def _extension(key: str) -> Extension:
    try:
        return BackupName.parse(key).extension
    except ValueError:
        return Extension.KAFKA


def messages(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Messages as JSON has them."""
    for batch in batches:
        # As integers: a producer can send a timestamp that is in no calendar.
        microseconds = batch.column("timestamp").cast(pa.int64())
        columns = [batch.column("offset"), microseconds, *(batch.column(c) for c in ("key", "value", "headers"))]
        aside = batch.column(SET_ASIDE) if SET_ASIDE in batch.schema.names else pa.nulls(batch.num_rows)
        for offset, timestamp, key, value, headers, why in zip(
            *(c.to_pylist() for c in [*columns, aside]), strict=True
        ):
            yield {
                "offset": offset,
                "timestamp": _timestamp(timestamp),
                "key": bytes_document(key),
                "value": bytes_document(value),
                "headers": [{"key": header["key"], "value": bytes_document(header["value"])} for header in headers],
                **({"set_aside": why} if why is not None else {}),
            }


def _timestamp(microseconds: int) -> str | int | None:
    """ISO 8601 to the millisecond; the number of milliseconds for what no calendar has; None for none."""
    if microseconds == decoding.NO_TIMESTAMP_US:
        return None
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return microseconds // 1000
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def bytes_document(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes in JSON: as text, or in base64 where they are no UTF-8."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def _write(out: IO[bytes], found: Iterator[dict[str, Any]]) -> None:
    for message in found:
        out.write(orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE))
    out.flush()
