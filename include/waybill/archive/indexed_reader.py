"""A backup object of another format than Kafka's, and its index, read as one.

Every reader reads the object to its end and holds its SHA-256 against the index: what was yielded before is only known
to be right once the iterator has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waybill import names
from waybill.archive.object_index import Figures, Index
from waybill.errors import DamagedObject, ObjectMissing
from waybill.formats import sequencefile, text
from waybill.formats.columns import message_batch
from waybill.formats.streams import HashedBytes
from waybill.names import BackupName, Extension
from waybill.records.decode import MESSAGE_SCHEMA
from waybill.store import ObjectStream, Store

__all__ = ["SET_ASIDE", "TOKEN", "IndexedReader", "describe"]

TOKEN = "index"
"""The key of a backup object's user metadata that names its index."""

SET_ASIDE = "set_aside"
"""The column in which `messages` says why a message is not in the backup object itself."""

_SET_ASIDE_SCHEMA = MESSAGE_SCHEMA.append(pa.field(SET_ASIDE, pa.string()))


def describe(store: Store, key: str) -> Figures:
    """What the index says of an object, once the object's bytes are known to be those that it speaks of.

    Raises what `IndexedReader` does.
    """
    with IndexedReader(store, key) as reader:
        reader.check()
        return reader.figures


class IndexedReader:
    """Reads a backup object once, from the start. A context manager: it finds the index on entry.

    Raises `DamagedObject` if there is no index that speaks of the object, or the two do not agree, `ObjectMissing` if
    there is no object, `GenerationConflict` if a newer Waybill wrote the index.
    """

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key
        self._extension = _extension(key)
        self._opened = ExitStack()
        self.metadata: Mapping[str, str] = {}
        """The backup object's user metadata."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stream = stack.enter_context(self._store.open(self._key))
            index = _index_by_token(self._store, stream, self._key)
            if index is None:
                hashed = HashedBytes(stream)
                hashed.drain()
                index = _index_by_hash(self._store, self._key, hashed.hexdigest())
                stream = stack.enter_context(self._store.open(self._key))
            self._stream, self._index, self.metadata = HashedBytes(stream), index, stream.metadata
            self._opened = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def figures(self) -> Figures:
        """What the index says of the object."""
        return self._index.figures

    def check(self) -> None:
        """Read what is left of the object, and raise `DamagedObject` if its bytes are not those that were written."""
        self._stream.drain()
        size, digest, figures = self._stream.size_bytes, self._stream.hexdigest(), self.figures
        if (size, digest) != (figures.size_bytes, figures.sha256):
            raise self._damaged(
                f"its {size:,} bytes are not the {figures.size_bytes:,} that were written: their SHA-256 is {digest}, "
                f"not {figures.sha256}"
            )

    def offsets(self, *, first_offset: int | None = None, next_offset: int | None = None) -> Iterator[Any]:
        """The offsets of the messages within the range, in arrays, from the index alone."""
        for piece in self._index.rows().rest():
            for batch in _clipped(piece, first_offset, next_offset):
                yield batch.column("offset").to_numpy()

    def messages(self, *, first_offset: int | None = None, next_offset: int | None = None) -> Iterator[pa.RecordBatch]:
        """The messages with offsets in `[first_offset, next_offset)`, in order of offset; then the object is checked.

        They are of `MESSAGE_SCHEMA`. What the format does not hold is missing: the timestamp is `NO_TIMESTAMP_US`,
        there are no headers, the key is null for `text` and `legacy`. Messages that were set aside are there as they
        were sent; a RecordBatch with such has one more column, `SET_ASIDE`, with the reason, null for the others.
        """
        rows = self._index.rows()
        for stored in self._stored():
            left = stored
            for piece, held in rows.take(stored.num_rows):
                yield from _clipped(self._joined(piece, left.slice(0, held)), first_offset, next_offset)
                left = left.slice(held)
            if left.num_rows:
                raise self._damaged("holds more messages than its index")
        for piece in rows.rest():
            if piece.column("set_aside").null_count:
                raise self._damaged("holds fewer messages than its index")
            yield from _clipped(self._joined(piece, _NOTHING), first_offset, next_offset)
        self.check()

    def _stored(self) -> Iterator[pa.RecordBatch]:
        """The messages that are in the object itself; for text the offsets are yet unknown, and count from 0."""
        if self._extension is Extension.SEQUENCEFILE:
            yield from sequencefile.read_messages(self._stream, self._key)
            return
        delimiter = bytes.fromhex(self.figures.delimiter)
        compressed = self._extension is Extension.TEXT_GZIP
        for values in text.read_values(self._stream, self._key, delimiter, compressed=compressed):
            count = len(values)
            yield message_batch(pa.array(np.arange(count)), pa.nulls(count, pa.binary()), values)

    def _joined(self, rows: pa.RecordBatch, stored: pa.RecordBatch) -> pa.RecordBatch:
        """Index rows with the messages they speak of: those in the object and those set aside, in order of offset."""
        offsets = rows.column("offset")
        if self._extension is Extension.SEQUENCEFILE and not stored.column("offset").equals(offsets):
            raise self._damaged(f"its keys are not the offsets of its index, from {offsets[0]} on")
        if rows.column("set_aside").null_count < rows.num_rows:
            return _with_set_aside(rows, stored)
        values = stored.column("value")
        if pc.any(rows.column("is_tombstone")).as_py():
            values = pc.if_else(rows.column("is_tombstone"), pa.scalar(None, pa.binary()), values)
        return pa.RecordBatch.from_arrays(
            [offsets, stored.column("timestamp"), stored.column("key"), values, stored.column("headers")],
            schema=MESSAGE_SCHEMA,
        )

    def _damaged(self, reason: str) -> DamagedObject:
        return DamagedObject(self._key, 0, reason)


def _extension(key: str) -> Extension:
    try:
        return BackupName.parse(key).extension
    except ValueError as error:
        raise DamagedObject(key, 0, f"cannot be read without its name, by which its index is found: {error}") from None


# --- the index of an object -------------------------------------------------------------------------------------------


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
    prefix = names.index_prefix(key)
    found, matching = list(store.keys(prefix)), []
    for where in found:
        with suppress(DamagedObject, ObjectMissing):
            index = Index(store.read(where), where)
            if index.figures.sha256 == sha256:
                matching.append(index)
    if not matching:
        raise DamagedObject(
            key, 0, f"none of {len(found)} index objects ({prefix}*) speaks of these bytes (SHA-256 {sha256})"
        )
    return max(matching, key=lambda index: index.figures.next_offset)


# --- messages and rows ------------------------------------------------------------------------------------------------


def _with_set_aside(rows: pa.RecordBatch, stored: pa.RecordBatch) -> pa.RecordBatch:
    aside = rows.column("set_aside")
    is_stored = aside.is_null()
    place = pc.subtract(pc.cumulative_sum(is_stored.cast(pa.int64())), 1)
    place = pc.if_else(is_stored, place, pa.scalar(None, pa.int64()))
    columns = [
        pc.coalesce(stored.column(field.name).take(place), pc.struct_field(aside, field.name))
        for field in MESSAGE_SCHEMA
        if field.name != "offset"
    ]
    return pa.RecordBatch.from_arrays(
        [rows.column("offset"), *columns, pc.struct_field(aside, "reason")], schema=_SET_ASIDE_SCHEMA
    )


def _clipped(batch: pa.RecordBatch, first_offset: int | None, next_offset: int | None) -> Iterator[pa.RecordBatch]:
    """The rows of the range; nothing if there are none."""
    offsets = batch.column("offset").to_numpy()
    start = 0 if first_offset is None else int(np.searchsorted(offsets, first_offset))
    stop = len(offsets) if next_offset is None else int(np.searchsorted(offsets, next_offset))
    if start < stop:
        yield batch.slice(start, stop - start)


_NOTHING = pa.RecordBatch.from_pylist([], schema=MESSAGE_SCHEMA)
