"""The backup formats without record batches: SequenceFile, text, and their index objects."""

from __future__ import annotations

import gzip
import io
import random
import zlib
from collections.abc import Sequence
from functools import cache

import pyarrow as pa

from fuzzers.engine import Target
from fuzzers.mutation import Mutator, edge_bytes
from waybill.archive.chain.object_index import INDEX_SCHEMA, ObjectFigures, ObjectIndex, ObjectIndexWriter
from waybill.archive.formats.sequencefile import SequenceFileWriter, read_header, read_messages
from waybill.archive.formats.text import read_values
from waybill.base.errors import DamagedObject, DocumentTooNew
from waybill.config.models.enums import Compression, SequenceFileKey
from waybill.records.batches.decode import decode
from waybill.records.batches.encode import Record, encode_batch
from waybill.records.batches.message_rows import MESSAGE_SCHEMA

_WHERE = "fuzz"
_SYNC = bytes(range(16))


def _messages(chance: random.Random, rows: int) -> pa.RecordBatch:
    records = [
        Record(offset, -1, chance.choice([None, b"", b"key"]), chance.choice([b"", b"v" * 30, chance.randbytes(9)]))
        for offset in range(rows)
    ]
    (batch,) = decode(encode_batch(records), where=_WHERE)
    return batch


# --- SequenceFile -----------------------------------------------------------------------------------------------------


@cache
def _files() -> list[bytes]:
    chance = random.Random(0)
    found = []
    for key in SequenceFileKey:
        for compression in (Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.ZSTD):
            for rows in (0, 1, 5):
                writer = SequenceFileWriter(key, compression, {"topic": "t"}, _SYNC)
                rows_written = [b"".join(map(bytes, writer.write(_messages(chance, rows))))] if rows else []
                found.append(b"".join([writer.begin(), *rows_written, writer.finish()]))
    return found


def _make_file(chance: random.Random) -> bytes:
    mutate = Mutator(
        _files(), [_SYNC, b"\xff\xff\xff\xff", b"\x8f", b"\x81\x01\xd3", b"\x82", b"\xc4\xff", b"\xc6\x7f"]
    )
    return mutate(chance)


def _check_file(inputs: Sequence[bytes]) -> None:
    """Invariant: `DamagedObject`, or messages that are the same when they are written and read again."""
    for data in inputs:
        try:
            found = list(read_messages(io.BytesIO(data), _WHERE))
        except DamagedObject:
            continue
        header = read_header(io.BytesIO(data), _WHERE)
        for batch in found:
            assert batch.schema == MESSAGE_SCHEMA
            batch.validate(full=True)
        rows = [row for batch in found for row in zip(*_columns(batch), strict=True)]
        writer = SequenceFileWriter(header.key, header.compression, {}, _SYNC)
        written = b"".join(
            [writer.begin(), *(bytes(part) for batch in found for part in writer.write(batch)), writer.finish()]
        )
        again = [
            row for batch in read_messages(io.BytesIO(written), _WHERE) for row in zip(*_columns(batch), strict=True)
        ]
        assert rows == again


def _columns(batch: pa.RecordBatch) -> list[list[object]]:
    return [batch.column(name).to_pylist() for name in ("offset", "key", "value")]


# --- text -------------------------------------------------------------------------------------------------------------

_DELIMITERS = [b"\n", b"|", b"\r\n", b"aa", b"aba", b"\x1e\n"]


def _make_text(chance: random.Random) -> bytes:
    """Return the number of the delimiter, whether gzip is used, the size of a read, and the object."""
    number, compressed = chance.randrange(len(_DELIMITERS)), chance.random() < 0.5
    pieces = [
        chance.choice([b"", b"a", b"b", b"ab", b"\n", b"|", b"\r", b"\x1e", b"x" * 50])
        for _ in range(chance.randrange(9))
    ]
    data = b"".join(piece + chance.choice([_DELIMITERS[number], b""]) for piece in pieces)
    if compressed:
        data = gzip.compress(data, 1, mtime=0) * chance.choice([1, 1, 1, 2])
        if chance.random() < 0.6:
            data = Mutator([data], [b"\0\0\0", b"\x1f\x8b"]).changed(data, chance)
    return bytes([number, compressed, chance.choice([1, 2, 3, 200])]) + data


class _Slow(io.BytesIO):
    """A source whose reads return fewer bytes than asked for, as S3's do."""

    def __init__(self, data: bytes, size: int) -> None:
        super().__init__(data)
        self._size = size

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self._size if size is None or size < 0 else min(size, self._size))


def _check_text(inputs: Sequence[bytes]) -> None:
    """Oracle: Python's `bytes.split`, and its `gzip` for the whole object."""
    for given in inputs:
        if len(given) < 3:
            continue
        delimiter, compressed, data = _DELIMITERS[given[0] % len(_DELIMITERS)], bool(given[1] & 1), given[3:]
        try:
            whole = gzip.decompress(data) if compressed else data
            *expected, rest = whole.split(delimiter)
        except (OSError, EOFError, zlib.error):
            expected, rest = [], b"damaged"
        source = _Slow(data, max(1, given[2]))
        try:
            arrays = list(read_values(source, _WHERE, delimiter, compressed=compressed))
        except DamagedObject:
            assert rest, (delimiter, data)
            continue
        assert not rest, (delimiter, data)
        for array in arrays:
            array.validate(full=True)
            assert array.type == pa.binary()
        assert [value for array in arrays for value in array.to_pylist()] == expected


# --- index objects ----------------------------------------------------------------------------------------------------


@cache
def _indexes() -> list[bytes]:
    found = []
    for rows in (1, 3, 50):
        batch = _messages(random.Random(rows), rows)
        for reasons in (None, pa.array(["contains_delimiter", *[None] * (rows - 1)], pa.string())):
            writer = ObjectIndexWriter()
            writer.add(batch, reasons)
            figures = ObjectFigures(0, rows, rows, 0 if reasons is None else 1, 10, "ab" * 32, 1, -1, -1, "id")
            found.append(writer.finish(figures))
    return found


def _make_index(chance: random.Random) -> bytes:
    mutate = Mutator(_indexes(), [b'"v":2', b"1e999", b"null", edge_bytes(chance), b"[" * 3000], unchanged=0.05)
    return mutate(chance)


def _check_index(inputs: Sequence[bytes]) -> None:
    """Invariant: `DamagedObject` or `DocumentTooNew`, or rows of the index's schema, as many as its metadata says."""
    for data in inputs:
        try:
            index = ObjectIndex(data, _WHERE)
            rows = list(index.rows().rest())
        except (DamagedObject, DocumentTooNew) as error:
            assert len(str(error)) < 2_000
            continue
        assert sum(each.num_rows for each in rows) == index.figures.messages
        assert all(each.schema == INDEX_SCHEMA for each in rows)


FILES = Target("sequencefile", _make_file, _check_file)
TEXT = Target("text", _make_text, _check_text)
INDEXES = Target("index_objects", _make_index, _check_index, batch=200)
