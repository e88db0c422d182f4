"""Conversion between Arrow columns and the numpy arrays that the compiled loops read and fill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from waybill.records.batches import _kernels as record_kernels
from waybill.records.batches.message_rows import HEADERS_TYPE, MESSAGE_SCHEMA, NO_TIMESTAMP_US

_NO_BYTES: Any = np.empty(0, np.uint8)
_NO_NULLS: Any = np.empty(0, np.bool_)
_LARGE = frozenset({pa.large_binary(), pa.large_string()})


@dataclass(frozen=True, slots=True)
class BinaryColumn:
    """The buffers of an Arrow array of bytes or strings: row `i` is `data[starts[i]:starts[i + 1]]`."""

    data: Any
    """An array of uint8."""
    starts: Any
    """An array of int32, or of int64 for a large type, with one entry more than there are rows."""
    nulls: Any
    """An array of bool; empty if no row is null."""

    @classmethod
    def from_array(cls, array: pa.Array) -> BinaryColumn:
        """Return the buffers of an array of the type `binary` or `string`, large or not, without a copy."""
        _, starts, data = array.buffers()
        position = np.int64 if array.type in _LARGE else np.int32
        count = len(array)
        return cls(
            data=_NO_BYTES if data is None or not data.size else np.frombuffer(data, np.uint8),
            starts=np.frombuffer(starts, position)[array.offset : array.offset + count + 1]
            if starts is not None and count
            else np.zeros(1, position),
            nulls=array.is_null().to_numpy(zero_copy_only=False) if array.null_count else _NO_NULLS,
        )

    @property
    def size_bytes(self) -> int:
        """The bytes of all rows together."""
        return int(self.starts[-1] - self.starts[0])


def binary_column(source: Any, starts: Any, lengths: Any) -> pa.Array:
    """Return a binary Arrow array of copies of `source[start:start + length]`; a length of -1 becomes a null."""
    count = len(starts)
    nulls = int(np.count_nonzero(lengths < 0))
    size = int(lengths.sum()) + nulls
    ends_buffer = pa.allocate_buffer(4 * (count + 1))
    data_buffer = pa.allocate_buffer(size)
    validity = np.zeros((count + 7) // 8 if nulls else 0, np.uint8)
    record_kernels.fill_bytes(
        source,
        starts,
        lengths,
        count,
        np.frombuffer(ends_buffer, np.int32),
        validity,
        np.frombuffer(data_buffer, np.uint8),
    )
    return pa.Array.from_buffers(
        pa.binary(), count, [pa.py_buffer(validity) if nulls else None, ends_buffer, data_buffer], null_count=nulls
    )


def message_batch(offsets: pa.Array, keys: pa.Array, values: pa.Array) -> pa.RecordBatch:
    """Return messages of `MESSAGE_SCHEMA` without timestamps and headers, which the formats do not hold."""
    count = len(offsets)
    no_timestamp = pa.scalar(NO_TIMESTAMP_US, MESSAGE_SCHEMA.field("timestamp").type)
    no_headers = pa.ListArray.from_arrays(
        pa.array(np.zeros(count + 1, np.int32)), pa.array([], HEADERS_TYPE.value_type), type=HEADERS_TYPE
    )
    return pa.RecordBatch.from_arrays(
        [offsets, pa.repeat(no_timestamp, count), keys, values, no_headers], schema=MESSAGE_SCHEMA
    )
