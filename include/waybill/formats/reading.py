"""A backup object of another format than Kafka's, and its index, read as one.

Every reader reads the object to its end and holds its SHA-256 against the index: what was yielded before is only known
to be right once the iterator has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waybill import names
from waybill.errors import DamagedObject, ObjectMissing
from waybill.formats import sequencefile, text
from waybill.formats.columns import message_batch
from waybill.formats.index import Figures, Index
from waybill.formats.streams import HashedBytes
from waybill.log.decode import MESSAGE_SCHEMA
from waybill.names import BackupName, Extension
from waybill.store import ObjectStream, Store

__all__ = ["SET_ASIDE", "TOKEN", "describe", "read_messages", "read_offsets"]

TOKEN = "index"
"""The key of a backup object's user metadata that names its index."""

SET_ASIDE = "set_aside"
"""The column in which `read_messages` says why a message is not in the backup object itself."""

_SET_ASIDE_SCHEMA = MESSAGE_SCHEMA.append(pa.field(SET_ASIDE, pa.string()))


def describe(store: Store, key: str) -> Figures:
    """What the index says of an object, once the object's bytes are known to be those that it speaks of.

    Raises `DamagedObject` if they are not, or there is no index, `ObjectMissing` if there is no object.
    """
    with _opened(store, key) as (stream, index):
        _check_hash(stream, index, key)
        return index.figures


def read_messages(
    store: Store, key: str, *, first_offset: int | None = None, next_offset: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The messages of an object with offsets in `[first_offset, next_offset)`, in order of offset, streamed.

    They are of `MESSAGE_SCHEMA`. What the format does not hold is missing: the timestamp is `NO_TIMESTAMP_US`, there
    are no headers, the key is null for `text` and `legacy`. Messages that were set aside are there as they were sent; a
    RecordBatch with such has one more column, `SET_ASIDE`, with the reason, null for the others.

    Raises `DamagedObject` if the object and its index do not agree, `ObjectMissing` if there is no object.
    """
    with _opened(store, key) as (stream, index):
        rows = index.rows()
        for stored in _stored(stream, index.figures, key):
            left = stored
            for piece, held in rows.take(stored.num_rows):
                yield from _clipped(_joined(piece, left.slice(0, held), key), first_offset, next_offset)
                left = left.slice(held)
            if left.num_rows:
                raise DamagedObject(key, 0, "holds more messages than its index")
        for piece in rows.rest():
            if piece.column("set_aside").null_count:
                raise DamagedObject(key, 0, "holds fewer messages than its index")
            yield from _clipped(_joined(piece, _NOTHING, key), first_offset, next_offset)
        _check_hash(stream, index, key)


def read_offsets(store: Store, key: str, *, first_offset: int, next_offset: int) -> Iterator[Any]:
    """The offsets of an object's messages within the range, in arrays, from its index alone."""
    with _opened(store, key) as (_, index):
        for piece in index.rows().rest():
            for batch in _clipped(piece, first_offset, next_offset):
                yield batch.column("offset").to_numpy()


# --- the index of an object -------------------------------------------------------------------------------------------


@contextmanager
def _opened(store: Store, key: str) -> Iterator[tuple[HashedBytes, Index]]:
    """An object's bytes from the start, and its index."""
    with ExitStack() as stack:
        stream = stack.enter_context(store.open(key))
        index = _index_by_token(store, stream, key)
        if index is None:
            hashed = HashedBytes(stream)
            hashed.drain()
            index = _index_by_hash(store, key, hashed.hexdigest())
            stream = stack.enter_context(store.open(key))
        yield HashedBytes(stream), index


def _index_by_token(store: Store, stream: ObjectStream, key: str) -> Index | None:
    try:
        where = names.index_key(key, stream.metadata.get(TOKEN, ""))
        return Index(store.read(where), where)
    except (ValueError, ObjectMissing):
        return None


def _index_by_hash(store: Store, key: str, sha256: str) -> Index:
    """The index that speaks of these bytes: for an object that was copied without its metadata.

    Uploads of the same messages may have seen different numbers of offsets behind them left out: the furthest counts.
    """
    try:
        prefix = names.index_prefix(key)
    except ValueError as error:
        raise DamagedObject(key, 0, f"has no index: {error}") from None
    found = [Index(store.read(where), where) for where in store.keys(prefix)]
    matching = [index for index in found if index.figures.sha256 == sha256]
    if not matching:
        raise DamagedObject(
            key, 0, f"none of {len(found)} index objects ({prefix}*) speaks of these bytes (SHA-256 {sha256})"
        )
    return max(matching, key=lambda index: index.figures.next_offset)


def _check_hash(stream: HashedBytes, index: Index, key: str) -> None:
    stream.drain()
    figures = index.figures
    if (stream.size_bytes, stream.hexdigest()) != (figures.size_bytes, figures.sha256):
        raise DamagedObject(
            key,
            0,
            f"its {stream.size_bytes:,} bytes are not the {figures.size_bytes:,} that were written: their SHA-256 is "
            f"{stream.hexdigest()}, not {figures.sha256}",
        )


# --- messages and rows ------------------------------------------------------------------------------------------------


def _stored(stream: HashedBytes, figures: Figures, key: str) -> Iterator[pa.RecordBatch]:
    """The messages that are in the object itself; for text the offsets are yet unknown, and count from 0."""
    extension = BackupName.parse(key).extension
    if extension is Extension.SEQUENCEFILE:
        yield from sequencefile.read_messages(stream, key)
        return
    compressed = extension is Extension.TEXT_GZIP
    for values in text.read_values(stream, key, bytes.fromhex(figures.delimiter), compressed=compressed):
        count = len(values)
        yield message_batch(pa.array(np.arange(count)), pa.nulls(count, pa.binary()), values)


def _joined(rows: pa.RecordBatch, stored: pa.RecordBatch, key: str) -> pa.RecordBatch:
    """Index rows with the messages that they speak of: those in the object and those set aside, in order of offset."""
    aside = rows.column("set_aside")
    offsets = rows.column("offset")
    if BackupName.parse(key).extension is Extension.SEQUENCEFILE and not stored.column("offset").equals(offsets):
        raise DamagedObject(key, 0, f"its keys are not the offsets of its index, from {offsets[0]} on")
    if aside.null_count == rows.num_rows:
        values = stored.column("value")
        if pc.any(rows.column("is_tombstone")).as_py():
            values = pc.if_else(rows.column("is_tombstone"), pa.scalar(None, pa.binary()), values)
        return pa.RecordBatch.from_arrays(
            [offsets, stored.column("timestamp"), stored.column("key"), values, stored.column("headers")],
            schema=MESSAGE_SCHEMA,
        )
    is_stored = aside.is_null()
    place = pc.subtract(pc.cumulative_sum(is_stored.cast(pa.int64())), 1)
    place = pc.if_else(is_stored, place, pa.scalar(None, pa.int64()))
    columns = [
        pc.coalesce(stored.column(field.name).take(place), pc.struct_field(aside, field.name))
        for field in MESSAGE_SCHEMA
        if field.name != "offset"
    ]
    return pa.RecordBatch.from_arrays([offsets, *columns, pc.struct_field(aside, "reason")], schema=_SET_ASIDE_SCHEMA)


def _clipped(batch: pa.RecordBatch, first_offset: int | None, next_offset: int | None) -> Iterator[pa.RecordBatch]:
    """The rows of the range; nothing if there are none."""
    offsets = batch.column("offset").to_numpy()
    start = 0 if first_offset is None else int(np.searchsorted(offsets, first_offset))
    stop = len(offsets) if next_offset is None else int(np.searchsorted(offsets, next_offset))
    if start < stop:
        yield batch.slice(start, stop - start)


_NOTHING = pa.RecordBatch.from_pylist([], schema=MESSAGE_SCHEMA)
