"""The index object: what the bytes of a backup object in another format than Kafka's cannot say (docs/decisions/0006).

A Parquet file of one row for each message of the object's range, in order, with these columns:

- `offset`;
- `is_tombstone`: whether the value is null;
- `set_aside`: null, or a message that the format cannot hold, whole, with the reason. It is not in the backup object.

What else is known of the object is in the file's key-value metadata, as JSON under `waybill`.

An index belongs to one upload, by the token that both carry, and is created before that upload completes. So whoever
creates a backup object, its index is there already. What was made for uploads that came to nothing is never looked at.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from waybill.errors import DamagedObject, GenerationConflict
from waybill.records.decode import MESSAGE_SCHEMA

__all__ = ["Figures", "Index", "IndexWriter"]

_VERSION = 1
_KEY = b"waybill"
_ROW_GROUP_ROWS = 1 << 17
_ROW_GROUP_BYTES = 2 << 20

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


@dataclass(frozen=True, slots=True)
class Figures:
    """What is known of a backup object. Times are milliseconds since 1970 UTC, -1: none."""

    first_offset: int
    next_offset: int
    messages: int
    """In the range, those that are set aside included."""
    set_aside: int
    size_bytes: int
    sha256: str
    """Of the object's bytes, in hex."""
    leader_epoch: int
    """That of the last record batch of the range; -1 if Kafka did not say."""
    min_timestamp_ms: int
    max_timestamp_ms: int
    topic_id: str
    delimiter: str = ""
    """Of a text object, UTF-8 in hex."""


class IndexWriter:
    """Collects the rows of one index, in memory, encoded as it goes: a few bytes for each thousand messages."""

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
        """About how much memory it takes, and how large it gets."""
        return self._sink.tell() + self._pending_bytes

    def add(self, messages: pa.RecordBatch, reasons: pa.Array | None) -> None:
        """Add messages of `MESSAGE_SCHEMA`. `reasons`: why each is set aside, null if it is not; None: none is."""
        count = messages.num_rows
        tombstones = messages.column("value").is_null()
        aside = pa.nulls(count, SET_ASIDE_TYPE)
        if reasons is not None:
            aside = _set_aside(messages, reasons)
            self.set_aside += count - reasons.null_count
        self.messages += count
        rows = pa.RecordBatch.from_arrays([messages.column("offset"), tombstones, aside], schema=INDEX_SCHEMA)
        self._rows.append(rows)
        self._pending_rows += count
        self._pending_bytes += 8 * count + (aside.nbytes if reasons is not None else 0)
        if self._pending_rows >= _ROW_GROUP_ROWS or self._pending_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def finish(self, figures: Figures) -> bytes:
        """The index object."""
        self._flush()
        document = json.dumps({"v": _VERSION, **asdict(figures)}, separators=(",", ":"))
        self._writer.add_key_value_metadata({_KEY: document.encode()})
        self._writer.close()
        return self._sink.getvalue()

    def _flush(self) -> None:
        if self._rows:
            rows = pa.Table.from_batches(self._rows)
            self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._rows, self._pending_rows, self._pending_bytes = [], 0, 0


def _set_aside(messages: pa.RecordBatch, reasons: pa.Array) -> pa.Array:
    """The messages that have a reason, whole; null for the others, without their bytes."""
    chosen = pc.indices_nonzero(reasons.is_valid())
    taken = messages.take(chosen)
    columns = [taken.column(field.name) for field in MESSAGE_SCHEMA if field.name != "offset"]
    structs = pa.StructArray.from_arrays([*columns, reasons.take(chosen)], fields=list(SET_ASIDE_TYPE))
    place = pc.subtract(pc.cumulative_sum(reasons.is_valid().cast(pa.int64())), 1)
    return structs.take(pc.if_else(reasons.is_valid(), place, pa.scalar(None, pa.int64())))


class Index:
    """An index object that was read. Its rows are decoded as they are asked for.

    Raises `DamagedObject` when the bytes are none that `IndexWriter` wrote, `GenerationConflict` when a newer Waybill
    wrote them. `where` names the object in errors.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self._where = where
        try:
            self._file = pq.ParquetFile(io.BytesIO(data))
            document = json.loads(self._file.metadata.metadata[_KEY])
            version = int(document.pop("v"))
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
            raise self._damaged(error) from None
        if version > _VERSION:
            raise GenerationConflict(
                f"index {where} was written by a newer Waybill (version {version}; this one reads up to {_VERSION}). "
                f"Upgrade this installation"
            )
        try:
            self.figures = Figures(**document)
        except TypeError as error:
            raise self._damaged(error) from None
        if self._file.metadata.num_rows != self.figures.messages or self._file.schema_arrow != INDEX_SCHEMA:
            raise self._damaged("rows or columns are not those it says")

    def rows(self) -> Rows:
        """Its rows from the first on."""
        return Rows(self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        # A row group at a time, as it was written: messages that are set aside may be large once they are decoded.
        try:
            for number in range(self._file.num_row_groups):
                yield from self._file.read_row_group(number).to_batches()
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from None

    def _damaged(self, reason: object) -> DamagedObject:
        return DamagedObject(self._where, 0, f"is not an index: {reason}")


class Rows:
    """An index's rows, taken some at a time, in step with the messages of the backup object."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._current: pa.RecordBatch = pa.RecordBatch.from_pylist([], schema=INDEX_SCHEMA)

    def take(self, stored: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Rows that cover the next `stored` messages of the backup object, and those set aside before and among them.

        In pieces, each with the number of its rows that are stored messages. Fewer if the index ends before.
        """
        while stored:
            if not self._current.num_rows and not self._next():
                return
            piece, held = _first_stored(self._current, stored)
            self._current = self._current.slice(piece.num_rows)
            stored -= held
            yield piece, held

    def rest(self) -> Iterator[pa.RecordBatch]:
        """All rows that were not taken."""
        while self._current.num_rows or self._next():
            current, self._current = self._current, self._current.slice(self._current.num_rows)
            yield current

    def _next(self) -> bool:
        found = next(self._batches, None)
        if found is None:
            return False
        self._current = found
        return True


def _first_stored(rows: pa.RecordBatch, wanted: int) -> tuple[pa.RecordBatch, int]:
    """The first rows that hold up to `wanted` stored messages, and how many they hold."""
    aside: Any = rows.column("set_aside")
    if aside.null_count == rows.num_rows:
        held = min(wanted, rows.num_rows)
        return rows.slice(0, held), held
    counts = pc.cumulative_sum(aside.is_null().cast(pa.int64()))
    total = counts[-1].as_py()
    if total <= wanted:
        return rows, total
    length = pc.index(counts, wanted).as_py() + 1
    return rows.slice(0, length), wanted
