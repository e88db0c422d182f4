"""The index object: data that a backup object of SequenceFile or text cannot hold itself.

See docs/decisions/0006-other-backup-formats.md. An index object is a Parquet file with one row for each message of the
backup object's range, in order of offset:

- `offset`;
- `is_tombstone`: whether the message's value is null;
- `set_aside`: null, or a complete message that the format cannot hold, with the reason. Such a message is not in the
  backup object.

The figures of the backup object (`ObjectFigures`) are in the file's key-value metadata, as JSON under `waybill`.

An index belongs to one upload, by a token that both contain, and is created before that upload completes: when a backup
object exists, its index exists. Index objects of uploads that S3 refused are never read.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from waybill.base.documents import Document
from waybill.base.errors import DamagedObject
from waybill.records.batches.message_rows import MESSAGE_SCHEMA

SET_ASIDE_TYPE = pa.struct(
    [
        *(field.with_nullable(True) for field in MESSAGE_SCHEMA if field.name != "offset"),
        pa.field("reason", pa.string()),
    ]
)
INDEX_SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("is_tombstone", pa.bool_(), nullable=False),
        pa.field("set_aside", SET_ASIDE_TYPE),
    ]
)

_DOCUMENT = Document(name="index {where}")
_METADATA_KEY = b"waybill"
_ROW_GROUP_ROWS = 1 << 17
_ROW_GROUP_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class ObjectFigures:
    """The figures of a backup object. Times are milliseconds since 1970 UTC, -1 for none."""

    first_offset: int
    next_offset: int
    messages: int
    """The messages in the range, including those that are set aside."""
    set_aside: int
    size_bytes: int
    sha256: str
    """The SHA-256 of the object's bytes, in hex."""
    leader_epoch: int
    """The leader epoch of the last record batch of the range; -1 if Kafka did not set one."""
    min_timestamp_ms: int
    max_timestamp_ms: int
    topic_id: str
    delimiter: str = ""
    """The delimiter of a text object: UTF-8, in hex."""


class ObjectIndexWriter:
    """Writes one index object in memory. It is encoded while it grows: a few bytes for a thousand messages."""

    def __init__(self) -> None:
        self.messages = 0
        self.set_aside = 0
        self._sink = io.BytesIO()
        self._rows: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self._writer = pq.ParquetWriter(
            self._sink,
            INDEX_SCHEMA,
            compression="zstd",
            use_dictionary=False,
            column_encoding={"offset": "DELTA_BINARY_PACKED"},
            write_statistics=["offset"],
        )

    @property
    def size_bytes(self) -> int:
        """The approximate memory that the writer occupies, which is about the size of the index object."""
        return self._sink.tell() + self._pending_bytes

    def add(self, messages: pa.RecordBatch, reasons: pa.Array | None) -> None:
        """Add messages of `MESSAGE_SCHEMA`.

        `reasons`: strings, why each message is set aside, null for a message that is not; None if none is.
        """
        count = messages.num_rows
        tombstones = messages.column("value").is_null()
        aside = pa.nulls(count, SET_ASIDE_TYPE)
        if reasons is not None:
            aside = _set_aside_column(messages, reasons)
            self.set_aside += count - reasons.null_count
        self.messages += count
        rows = pa.RecordBatch.from_arrays([messages.column("offset"), tombstones, aside], schema=INDEX_SCHEMA)
        self._rows.append(rows)
        self._pending_rows += count
        self._pending_bytes += 8 * count + (aside.nbytes if reasons is not None else 0)
        if self._pending_rows >= _ROW_GROUP_ROWS or self._pending_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def finish(self, figures: ObjectFigures) -> bytes:
        """Return the index object."""
        self._flush()
        self._writer.add_key_value_metadata({_METADATA_KEY: _DOCUMENT.write(asdict(figures))})
        self._writer.close()
        return self._sink.getvalue()

    def _flush(self) -> None:
        if self._rows:
            rows = pa.Table.from_batches(self._rows)
            self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._rows, self._pending_rows, self._pending_bytes = [], 0, 0


def _set_aside_column(messages: pa.RecordBatch, reasons: pa.Array) -> pa.Array:
    """Return the messages that have a reason as structs; null, without a copy of their bytes, for the others."""
    chosen = pc.indices_nonzero(reasons.is_valid())
    taken = messages.take(chosen)
    columns = [taken.column(field.name) for field in MESSAGE_SCHEMA if field.name != "offset"]
    structs = pa.StructArray.from_arrays([*columns, reasons.take(chosen)], fields=list(SET_ASIDE_TYPE))
    place = pc.subtract(pc.cumulative_sum(reasons.is_valid().cast(pa.int64())), 1)
    return structs.take(pc.if_else(reasons.is_valid(), place, pa.scalar(None, pa.int64())))


class ObjectIndex:
    """A parsed index object. Its rows are decoded only when they are read.

    Raises `DamagedObject` when `ObjectIndexWriter` did not write the bytes, `DocumentTooNew` when a newer version of
    Waybill wrote them. `where` names the object in errors.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self._where = where
        try:
            self._file = pq.ParquetFile(io.BytesIO(data))
            fields = _DOCUMENT.read(self._file.metadata.metadata[_METADATA_KEY], where)
            del fields["v"]
            self.figures = ObjectFigures(**fields)
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
            raise self._damaged(error) from None
        metadata = self._file.metadata
        counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        if not metadata.num_rows == sum(counts) == self.figures.messages or self._file.schema_arrow != INDEX_SCHEMA:
            raise self._damaged("its rows or columns contradict its metadata")

    def rows(self) -> IndexRows:
        """Return a reader of the rows, from the first on."""
        return IndexRows(self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        # Read one row group at a time, as they were written: messages that are set aside can be large once decoded.
        try:
            for number in range(self._file.num_row_groups):
                rows = self._file.read_row_group(number)
                # A damaged page header can end a column early, and pyarrow returns the rows before it.
                if rows.num_rows != self._file.metadata.row_group(number).num_rows:
                    raise self._damaged(f"row group {number} has {rows.num_rows} rows, which contradicts its metadata")
                yield from rows.to_batches()
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from None

    def _damaged(self, reason: object) -> DamagedObject:
        return DamagedObject(self._where, 0, f"is not an index: {reason}")


class IndexRows:
    """Reads an index's rows in step with the messages of the backup object."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._current: pa.RecordBatch = pa.RecordBatch.from_pylist([], schema=INDEX_SCHEMA)

    def take(self, stored: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the rows of the next `stored` messages of the backup object, and of messages set aside among them.

        The rows come in pieces of `INDEX_SCHEMA`, each with the number of its rows that are stored messages. They are
        fewer than asked for if the index ends.
        """
        while stored:
            if not self._current.num_rows and not self._next():
                return
            piece, count = _first_stored(self._current, stored)
            self._current = self._current.slice(piece.num_rows)
            stored -= count
            yield piece, count

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows that were not taken."""
        while self._current.num_rows or self._next():
            current, self._current = self._current, self._current.slice(self._current.num_rows)
            yield current

    def _next(self) -> bool:
        batch = next(self._batches, None)
        if batch is None:
            return False
        self._current = batch
        return True


def _first_stored(rows: pa.RecordBatch, wanted: int) -> tuple[pa.RecordBatch, int]:
    """Return the first rows, with up to `wanted` stored messages, and the number of stored messages among them."""
    aside: Any = rows.column("set_aside")
    if aside.null_count == rows.num_rows:
        count = min(wanted, rows.num_rows)
        return rows.slice(0, count), count
    counts = pc.cumulative_sum(aside.is_null().cast(pa.int64()))
    total = counts[-1].as_py()
    if total <= wanted:
        return rows, total
    length = pc.index(counts, wanted).as_py() + 1
    return rows.slice(0, length), wanted
