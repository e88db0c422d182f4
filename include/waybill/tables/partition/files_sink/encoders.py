"""Encode rows as a file of the `files` sink: the same rows always give the same bytes.

A rerun must write the same objects. So no byte of a file depends on time, on randomness, or on the batches in which the
rows arrived: rows are merged and cut again by their own sizes.

Rows that the format of the sink cannot hold go to quarantine (`FormatFilter`), like messages that cannot be parsed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from waybill.archive.formats.sequencefile import SequenceFileWriter
from waybill.archive.formats.text import TextWriter
from waybill.config.models.enums import Compression, FileFormat
from waybill.config.models.sink import FilesFormat
from waybill.config.names import FileName
from waybill.tables.partition.rows import QUARANTINE_ROWS, Rows

ROW_GROUP_BYTES = 32 << 20
"""Size of the rows of a Parquet row group before encoding, and the largest part of a file in memory."""

_BLOCK_BYTES = 4 << 20
_ROW_BYTES = 64
_HEADER_KEYS = "headers.list.element.key"
_NO_DICTIONARY = frozenset({"offset", "kafka_timestamp", "key", "value", "event_time", "message_id", "headers"})
_SYNC_BYTES = 16


class Encoder(Protocol):
    """Writes one file."""

    piece_bytes: int
    """Size of the rows to pass to `write` at a time."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Write the next rows."""

    def close(self) -> None:
        """Finish the file."""


class _Parquet:
    piece_bytes = ROW_GROUP_BYTES

    def __init__(self, local: Path, schema: pa.Schema, codec: Compression) -> None:
        flat = [f.name for f in schema if f.name not in _NO_DICTIONARY and not pa.types.is_nested(f.type)]
        self._writer = pq.ParquetWriter(
            local,
            schema,
            compression=codec.value,
            use_dictionary=[*flat, _HEADER_KEYS] if "headers" in schema.names else flat,
        )

    def write(self, rows: pa.RecordBatch) -> None:
        self._writer.write_table(pa.Table.from_batches([rows]), row_group_size=rows.num_rows)

    def close(self) -> None:
        self._writer.close()


class _Stream:
    """A file of one of the archive's own other formats."""

    piece_bytes = _BLOCK_BYTES

    def __init__(self, local: Path, writer: SequenceFileWriter | TextWriter) -> None:
        self._file = local.open("wb")
        self._writer = writer
        self._file.write(writer.begin())

    def write(self, rows: pa.RecordBatch) -> None:
        for piece in self._writer.write(rows):
            self._file.write(piece)

    def close(self) -> None:
        self._file.write(self._writer.finish())
        self._file.close()


def encode_file(local: Path, kind: FilesFormat, name: FileName, plan: str, rows: Iterable[pa.Table]) -> int:
    """Write all `rows` in their order to the file `local`; return how many rows.

    `name` and `plan` determine the metadata and the sync marker of a sequence file.
    """
    count = 0
    encoder: Encoder | None = None
    piece_bytes = _Parquet.piece_bytes if kind.name is FileFormat.PARQUET else _Stream.piece_bytes
    try:
        for piece in cut_rows(rows, piece_bytes):
            if encoder is None:
                encoder = _encoder(local, kind, name, plan, piece.schema)
            encoder.write(piece)
            count += piece.num_rows
    finally:
        if encoder is not None:
            encoder.close()
    return count


def _encoder(local: Path, kind: FilesFormat, name: FileName, plan: str, schema: pa.Schema) -> Encoder:
    if kind.name is FileFormat.PARQUET:
        return _Parquet(local, schema, kind.codec)
    if kind.name is FileFormat.TEXT:
        return _Stream(local, _text_writer(kind))
    metadata = {
        "topic": name.period.topic,
        "partition": str(name.partition),
        "generation": str(name.generation),
        "first_offset": str(name.first_offset),
    }
    # Not random, so that a rerun writes the same bytes, but no producer can know it and put it into a message.
    sync = hashlib.sha256(f"{plan} {name.key('')}".encode()).digest()[:_SYNC_BYTES]
    return _Stream(local, SequenceFileWriter(kind.key, kind.codec, metadata, sync))


def _text_writer(kind: FilesFormat) -> TextWriter:
    return TextWriter(kind.delimiter.encode(), compressed=kind.codec is Compression.GZIP)


def cut_rows(tables: Iterable[pa.Table], piece_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in pieces of about `piece_bytes`; the cuts do not depend on those of `tables`."""
    held: list[pa.Table] = []
    filled = 0
    for table in tables:
        ends = np.cumsum(_sizes(table)) + filled
        start = 0
        while start < table.num_rows:
            stop = int(np.searchsorted(ends, piece_bytes)) + 1
            held.append(table.slice(start, stop - start))
            if stop > table.num_rows:
                filled = int(ends[-1])
                break
            yield _as_one_batch(held)
            held, filled = [], 0
            ends = ends - ends[stop - 1]
            start = stop
    if held:
        yield _as_one_batch(held)


def _sizes(table: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return an approximate size of each row, computed from the row alone, so that reruns cut at the same rows."""
    value, key = (pc.fill_null(pc.binary_length(table.column(name)), 0) for name in ("value", "key"))
    sizes: np.ndarray[tuple[int], np.dtype[np.int64]] = pc.add(value, key).to_numpy().astype(np.int64) + _ROW_BYTES
    return sizes


def _as_one_batch(tables: list[pa.Table]) -> pa.RecordBatch:
    (batch,) = pa.concat_tables(tables).combine_chunks().to_batches()
    return batch


class FormatFilter:
    """Sends rows that the sink's format cannot hold to quarantine."""

    def __init__(self, kind: FilesFormat, planned_at: datetime) -> None:
        self._name = str(kind.name)
        self._text = _text_writer(kind) if kind.name is FileFormat.TEXT else None
        """Checks the rows; None for a format that can hold every row."""
        self._planned_at = pa.scalar(planned_at, pa.timestamp("us", tz="UTC"))

    def apply(self, rows: Rows) -> Rows:
        """Return the rows that can be written, with the others among the rows of the quarantine."""
        reasons = None if self._text is None or not rows.table.num_rows else self._text.rejections(rows.table)
        if reasons is None:
            return rows
        is_refused = pc.is_valid(reasons)
        moved = rows.table.filter(is_refused)
        n = moved.num_rows
        given = {
            "reason": reasons.filter(is_refused),
            "parser": pa.repeat(self._name, n),
            "quarantined_at": pa.repeat(self._planned_at, n),
        }
        columns = [given[name] if name in given else moved.column(name) for name in QUARANTINE_ROWS.names]
        quarantine = pa.RecordBatch.from_arrays(columns, schema=QUARANTINE_ROWS)
        return rows._replace(
            table=rows.table.filter(pc.invert(is_refused)), quarantine=pa.concat_batches([rows.quarantine, quarantine])
        )
