"""Group rows by the partition of the table that they belong to: Iceberg's transforms over whole columns.

The transforms are those of Iceberg's own Rust library (`pyiceberg-core`), except hour and day, which are a division.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform

if TYPE_CHECKING:
    _Int64s = np.ndarray[Any, np.dtype[np.int64]]
    _Order = np.ndarray[Any, np.dtype[np.intp]]

PartitionValue = tuple[Any, ...]
"""A partition: the value of each field of the table's partition spec, as Iceberg's manifests hold it."""

_DAY_US, _HOUR_US = 86_400_000_000, 3_600_000_000
_MOST_CODES = 1 << 31


@dataclass(frozen=True, slots=True)
class PartitionSlice:
    """The rows of one partition: `[start, end)` of the grouped rows."""

    value: PartitionValue
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Codes:
    """A column as dictionary codes: row `i` has the value `values[codes[i]]`."""

    codes: np.ndarray[Any, Any]
    values: list[Any]


class PartitionGrouping:
    """Sort rows by partition, and within a partition by time.

    The first partition field is the hour or day of a time: of the event time (`waybill.tables.iceberg.schemas`), or of
    the arrival (`waybill.tables.iceberg.dedup`).
    """

    def __init__(self, spec: PartitionSpec, schema: Schema) -> None:
        time, *self._further = spec.fields
        self._unit_us = _DAY_US if isinstance(time.transform, DayTransform) else _HOUR_US
        self._schema = schema
        self._time_column = schema.find_field(time.source_id).name

    def group(self, table: pa.Table) -> tuple[_Order | None, Iterator[PartitionSlice]]:
        """Return the indices that group the rows (None: they are grouped already), and the partitions in that order."""
        times = self.times(table)
        order = None if np.all(times[1:] >= times[:-1]) else np.argsort(times, kind="stable")
        units = (times if order is None else times[order]) // self._unit_us
        changes = units[1:] != units[:-1]
        if not self._further:
            return order, _slices(changes, units, [])
        columns = [self._codes(field, table, order) for field in self._further]
        codes = np.concatenate(([0], np.cumsum(changes)))
        codes, count = _combine(codes, int(codes[-1]) + 1, columns)
        if np.any(codes[1:] < codes[:-1]):
            by_partition = _argsort(codes, count)
            order = by_partition if order is None else order[by_partition]
            codes, units = codes[by_partition], units[by_partition]
            columns = [_Codes(c.codes[by_partition], c.values) for c in columns]
        return order, _slices(codes[1:] != codes[:-1], units, columns)

    def times(self, table: pa.Table | pa.RecordBatch) -> _Int64s:
        """Return the times that the table is partitioned by, in epoch microseconds."""
        return np.asarray(_as_one_chunk(table.column(self._time_column)).cast(pa.int64()))

    def _codes(self, field: PartitionField, table: pa.Table, order: _Order | None) -> _Codes:
        source = self._schema.find_field(field.source_id)
        column = _as_one_chunk(table.column(source.name))
        if not isinstance(field.transform, IdentityTransform):
            column = field.transform.pyarrow_transform(source.field_type)(column)
        if pa.types.is_date32(column.type):
            column = column.cast(pa.int32())  # days, as in a manifest
        encoded = column.dictionary_encode(null_encoding="encode")
        codes = np.asarray(encoded.indices)
        return _Codes(codes if order is None else codes[order], encoded.dictionary.to_pylist())


def _as_one_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def _combine(codes: np.ndarray[Any, Any], count: int, columns: list[_Codes]) -> tuple[np.ndarray[Any, Any], int]:
    """Return one code for each combination of `codes` and the columns' codes, and an upper bound of the codes."""
    for column in columns:
        if count * len(column.values) > _MOST_CODES:
            encoded = pa.array(codes).dictionary_encode()
            codes, count = np.asarray(encoded.indices, dtype=np.int64), len(encoded.dictionary)
        codes = codes * len(column.values) + column.codes
        count *= len(column.values)
    return codes, count


def _argsort(codes: np.ndarray[Any, Any], count: int) -> _Order:
    """Return a stable sort order. numpy sorts 16-bit numbers in linear time, and more partitions are rare."""
    if count > 1 << 16:
        encoded = pa.array(codes).dictionary_encode()
        codes, count = np.asarray(encoded.indices), len(encoded.dictionary)
    return np.argsort(codes.astype(np.uint16) if count <= 1 << 16 else codes, kind="stable")


def _slices(
    changes: np.ndarray[Any, np.dtype[np.bool_]], units: _Int64s, columns: list[_Codes]
) -> Iterator[PartitionSlice]:
    """Yield the partitions of grouped rows. `changes[i]`: row `i + 1` belongs to another partition than row `i`."""
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(changes) + 1]
    for start, end in pairwise(bounds):
        yield PartitionSlice(
            (int(units[start]), *(column.values[column.codes[start]] for column in columns)), start, end
        )
