"""Read a backup object of SequenceFile or text together with its index object.

`IndexedReader` reads the object to its end and then compares its SHA-256 with the index: the yielded batches are only
verified when the iterator has ended without an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waybill.archive.chain.object_index import ObjectFigures, ObjectIndex
from waybill.archive.formats import sequencefile, text
from waybill.archive.formats.columns import message_batch
from waybill.base.errors import DamagedObject, ObjectMissing
from waybill.config import names
from waybill.config.names import BackupName, Extension
from waybill.records.batches.message_rows import MESSAGE_SCHEMA, SET_ASIDE_SCHEMA
from waybill.services.store import ObjectStream, Store
from waybill.services.store.objects import HashedBytes

INDEX_TOKEN_KEY = "index"
"""The key of a backup object's user metadata whose value is the token in the name of its index object."""

_NO_MESSAGES = pa.RecordBatch.from_pylist([], schema=MESSAGE_SCHEMA)


class IndexedReader:
    """Reads a backup object once, from the start. A context manager that finds the index object on entry.

    Raises `DamagedObject` if the object has no index or contradicts it, `ObjectMissing` if there is no object, and
    `DocumentTooNew` if a newer version of Waybill wrote the index.
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
            index = _find_index_by_token(self._store, stream, self._key)
            if index is None:
                hashed = HashedBytes(stream)
                hashed.drain()
                index = _find_index_by_hash(self._store, self._key, hashed.hexdigest())
                stream = stack.enter_context(self._store.open(self._key))
            self._stream, self._index, self.metadata = HashedBytes(stream), index, stream.metadata
            self._opened = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def figures(self) -> ObjectFigures:
        """The figures of the object, as its index states them."""
        return self._index.figures

    def check(self) -> None:
        """Read the rest of the object. Raise `DamagedObject` if its bytes differ from those that were written."""
        self._stream.drain()
        size, digest, figures = self._stream.size_bytes, self._stream.hexdigest(), self.figures
        if (size, digest) != (figures.size_bytes, figures.sha256):
            raise self._damaged(
                f"has {size:,} bytes with SHA-256 {digest}, but {figures.size_bytes:,} bytes with SHA-256 "
                f"{figures.sha256} were written"
            )

    def offsets(self, *, first_offset: int | None = None, next_offset: int | None = None) -> Iterator[Any]:
        """Yield the offsets of the messages in `[first_offset, next_offset)` as int64 arrays, from the index alone."""
        for piece in self._index.rows().rest():
            for batch in _clip(piece, first_offset, next_offset):
                yield batch.column("offset").to_numpy()

    def messages(self, *, first_offset: int | None = None, next_offset: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the messages with offsets in `[first_offset, next_offset)`, in order of offset; then check the object.

        The batches are of `MESSAGE_SCHEMA`. The formats hold no timestamps and no headers: the timestamp is
        `NO_TIMESTAMP_US`, the headers are empty, and the key is null for `text` and for the SequenceFile key `legacy`.
        Messages that were set aside come from the index, complete, except for messages that exceed the limits; a batch
        with such messages has one more column, `SET_ASIDE`, with the reason, which is null for the other messages.
        """
        rows = self._index.rows()
        for stored in self._stored():
            unmatched = stored
            for piece, count in rows.take(stored.num_rows):
                yield from _clip(self._join(piece, unmatched.slice(0, count)), first_offset, next_offset)
                unmatched = unmatched.slice(count)
            if unmatched.num_rows:
                raise self._damaged("holds more messages than its index")
        for piece in rows.rest():
            if piece.column("set_aside").null_count:
                raise self._damaged("holds fewer messages than its index")
            yield from _clip(self._join(piece, _NO_MESSAGES), first_offset, next_offset)
        self.check()

    def _stored(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages in the object itself.

        Text has no offsets: the messages are numbered from 0 until they are joined.
        """
        if self._extension is Extension.SEQUENCEFILE:
            yield from sequencefile.read_messages(self._stream, self._key)
            return
        delimiter = bytes.fromhex(self.figures.delimiter)
        compressed = self._extension is Extension.TEXT_GZIP
        for values in text.read_values(self._stream, self._key, delimiter, compressed=compressed):
            count = len(values)
            yield message_batch(pa.array(np.arange(count)), pa.nulls(count, pa.binary()), values)

    def _join(self, rows: pa.RecordBatch, stored: pa.RecordBatch) -> pa.RecordBatch:
        """Join index rows with their messages: those in the object and those set aside, in order of offset."""
        offsets = rows.column("offset")
        in_object = offsets.filter(rows.column("set_aside").is_null())
        if self._extension is Extension.SEQUENCEFILE and not stored.column("offset").equals(in_object):
            raise self._damaged(f"has other keys than the offsets of its index, from {offsets[0]} on")
        if rows.column("set_aside").null_count < rows.num_rows:
            return _join_set_aside(rows, stored)
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
        raise DamagedObject(key, 0, f"has no name of a backup object, so its index cannot be found: {error}") from None


# --- finding the index ------------------------------------------------------------------------------------------------


def _find_index_by_token(store: Store, stream: ObjectStream, key: str) -> ObjectIndex | None:
    """Return the index that the object's user metadata names; None if the metadata or the index is missing."""
    try:
        where = names.index_key(key, stream.metadata.get(INDEX_TOKEN_KEY, ""))
        return ObjectIndex(store.read(where), where)
    except (ValueError, ObjectMissing):
        return None


def _find_index_by_hash(store: Store, key: str, sha256: str) -> ObjectIndex:
    """Return the index of the object with this SHA-256, for an object that was copied without its user metadata.

    Several uploads of the same messages can exist: after these messages, each can have left out a different number of
    offsets. The index with the highest next offset is returned.
    """
    prefix = names.index_prefix(key)
    keys, matching = list(store.keys(prefix)), []
    for where in keys:
        with suppress(DamagedObject, ObjectMissing):
            index = ObjectIndex(store.read(where), where)
            if index.figures.sha256 == sha256:
                matching.append(index)
    if not matching:
        raise DamagedObject(key, 0, f"none of {len(keys)} index objects ({prefix}*) has this object's SHA-256 {sha256}")
    return max(matching, key=lambda index: index.figures.next_offset)


# --- joining and clipping ---------------------------------------------------------------------------------------------


def _join_set_aside(rows: pa.RecordBatch, stored: pa.RecordBatch) -> pa.RecordBatch:
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
        [rows.column("offset"), *columns, pc.struct_field(aside, "reason")], schema=SET_ASIDE_SCHEMA
    )


def _clip(batch: pa.RecordBatch, first_offset: int | None, next_offset: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows within the range; nothing if there are none."""
    offsets = batch.column("offset").to_numpy()
    start = 0 if first_offset is None else int(np.searchsorted(offsets, first_offset))
    stop = len(offsets) if next_offset is None else int(np.searchsorted(offsets, next_offset))
    if start < stop:
        yield batch.slice(start, stop - start)
