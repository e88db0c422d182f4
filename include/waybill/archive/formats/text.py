"""Text: messages in order of offset, each followed by the delimiter; optionally all in one gzip stream.

The writer rejects messages that text cannot hold; its caller sets them aside, and never cuts or drops them. These are
messages that contain the delimiter, since a reader would read two messages, and tombstones, since a reader could not
distinguish them from empty messages.

Importing this module imports numba and pyarrow.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waybill.archive.formats import _kernels as kernels
from waybill.archive.formats.columns import BinaryColumn, binary_column
from waybill.base.errors import DamagedObject
from waybill.records.batches.framing import ByteStream

CONTAINS_DELIMITER = "contains_delimiter: the message contains the delimiter of the stream's text format"
TOMBSTONE = "tombstone: text has no null value"

_GZIP_LEVEL = 4
_GZIP_WBITS = 31
_READ_BYTES = 4 << 20


class TextWriter:
    """Encodes messages of `MESSAGE_SCHEMA` as the bytes of one object: `begin`, any number of `write`, `finish`."""

    def __init__(self, delimiter: bytes, *, compressed: bool) -> None:
        self._delimiter: Any = np.frombuffer(delimiter, np.uint8)
        self._gzip = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_WBITS) if compressed else None

    def begin(self) -> bytes:
        """Return the first bytes of the object: none."""
        return b""

    def rejections(self, messages: pa.RecordBatch) -> pa.Array | None:
        """Return why text cannot hold each message: strings, null where it can. None if it can hold all."""
        values = messages.column("value")
        unfit = self._contains_delimiter(BinaryColumn.from_array(values))
        if not values.null_count and not unfit.any():
            return None
        none = pa.scalar(None, pa.string())
        return pc.if_else(values.is_null(), TOMBSTONE, pc.if_else(pa.array(unfit), CONTAINS_DELIMITER, none))

    def write(self, messages: pa.RecordBatch) -> Iterator[memoryview | bytes]:
        """Yield the next bytes of the object. None of the messages may be rejected."""
        values = BinaryColumn.from_array(messages.column("value"))
        target = np.empty(values.size_bytes + messages.num_rows * self._delimiter.size, np.uint8)
        kernels.write_text(values.data, values.starts, self._delimiter, target)
        yield target.data if self._gzip is None else self._gzip.compress(target.data)

    def finish(self) -> bytes:
        """Return the last bytes of the object: the end of the gzip stream."""
        return b"" if self._gzip is None else self._gzip.flush()

    def _contains_delimiter(self, values: BinaryColumn) -> Any:
        unfit = np.zeros(len(values.starts) - 1, np.bool_)
        if self._delimiter.size > 1:
            kernels.mark_unfit(values.data, values.starts, self._delimiter, unfit)
            return unfit
        first = values.starts[0]
        places = np.flatnonzero(values.data[first : values.starts[-1]] == self._delimiter[0]) + first
        if places.size:
            unfit[np.searchsorted(values.starts, places, side="right") - 1] = True
        return unfit


def read_values(source: ByteStream, where: str, delimiter: bytes, *, compressed: bool) -> Iterator[pa.Array]:
    """Yield the messages of an object, in order, as binary arrays without nulls.

    An array holds a few megabytes, or one message.

    Raises `DamagedObject` when the object ends within a message or its gzip stream is damaged. `where` names it.
    """
    marks: Any = np.frombuffer(delimiter, np.uint8)
    pending: Any = np.empty(0, np.uint8)
    position = 0
    pieces = _GzipReader(source, where) if compressed else source
    while more := pieces.read(max(_READ_BYTES, pending.size)):
        pending = np.concatenate([pending, np.frombuffer(more, np.uint8)])
        ends = _find_delimiters(pending, marks)
        if not ends.size:
            continue
        starts = np.concatenate([[0], ends[:-1] + marks.size])
        yield binary_column(pending, starts, ends - starts)
        consumed = int(ends[-1]) + marks.size
        position += consumed
        pending = pending[consumed:]
    if pending.size:
        raise DamagedObject(where, position, "is cut short: the last message does not end with the delimiter")


def _find_delimiters(data: Any, delimiter: Any) -> Any:
    """Return the positions of the delimiters in `data`."""
    if delimiter.size == 1:
        return np.flatnonzero(data == delimiter[0])
    found = np.empty(data.size // delimiter.size, np.int64)
    return found[: kernels.find_delimiters(data, data.size, delimiter, found)]


class _GzipReader:
    """Decompresses a gzip stream. Raises `DamagedObject` for the errors of the standard library."""

    def __init__(self, source: ByteStream, where: str) -> None:
        self._file = gzip.GzipFile(fileobj=io.BufferedReader(_RawSource(source), 1 << 20))
        self._where = where

    def read(self, size: int, /) -> bytes:
        try:
            return self._file.read(size)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DamagedObject(self._where, 0, f"its gzip stream is damaged ({error})") from None


class _RawSource(io.RawIOBase):
    """Adapts a `ByteStream` to the standard library's buffered reader."""

    def __init__(self, source: ByteStream) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        data = self._source.read(len(target))
        target[: len(data)] = data
        return len(data)
