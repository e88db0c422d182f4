"""Arrow's columns as the compiled loops take them, and what the loops found as Arrow's columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from waybill.records import _kernels as log_kernels
from waybill.records.decode import HEADERS_TYPE, MESSAGE_SCHEMA, NO_TIMESTAMP_US

__all__ = ["BinaryColumn", "binary_column", "message_batch"]

_NOTHING: Any = np.empty(0, np.uint8)
_NO_NULLS: Any = np.empty(0, np.bool_)
_LARGE = frozenset({pa.large_binary(), pa.large_string()})


@dataclass(frozen=True, slots=True)
class BinaryColumn:
    """An Arrow array of bytes or of text: row `i` is `data[starts[i]:starts[i + 1]]`."""

    data: Any
    """uint8"""
    starts: Any
    """int32, or int64 of a large type; one more than there are rows."""
    nulls: Any
    """bool; empty if no row is null."""

    @classmethod
    def of(cls, array: pa.Array) -> BinaryColumn:
        """The buffers of an array of the type `binary` or `string`, large or not; nothing is copied."""
        _, starts, data = array.buffers()
        position = np.int64 if array.type in _LARGE else np.int32
        count = len(array)
        return cls(
            data=_NOTHING if data is None or not data.size else np.frombuffer(data, np.uint8),
            starts=np.frombuffer(starts, position)[array.offset : array.offset + count + 1]
            if starts is not None and count
            else np.zeros(1, position),
            nulls=array.is_null().to_numpy(zero_copy_only=False) if array.null_count else _NO_NULLS,
        )

    @property
    def size_bytes(self) -> int:
        return int(self.starts[-1] - self.starts[0])


def binary_column(source: Any, starts: Any, lengths: Any) -> pa.Array:
    """A binary Arrow array of copies of `source[start:start + length]`; a length of -1 is a null."""
    count = len(starts)
    nulls = int(np.count_nonzero(lengths < 0))
    size = int(lengths.sum()) + nulls
    ends_buffer = pa.allocate_buffer(4 * (count + 1))
    data_buffer = pa.allocate_buffer(size)
    validity = np.zeros((count + 7) // 8 if nulls else 0, np.uint8)
    log_kernels.fill_bytes(
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
    """Messages of `MESSAGE_SCHEMA` without timestamp and headers, which the format did not hold."""
    count = len(offsets)
    no_timestamp = pa.scalar(NO_TIMESTAMP_US, MESSAGE_SCHEMA.field("timestamp").type)
    no_headers = pa.ListArray.from_arrays(
        pa.array(np.zeros(count + 1, np.int32)), pa.array([], HEADERS_TYPE.value_type), type=HEADERS_TYPE
    )
    return pa.RecordBatch.from_arrays(
        [offsets, pa.repeat(no_timestamp, count), keys, values, no_headers], schema=MESSAGE_SCHEMA
    )
