"""Typed columns: what all parsers share. What a value must be for a type, `column_values` and `column_texts` say."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from waybill.config import ColumnKind, ColumnType
from waybill.parsers.protocol import EVENT_TIME_TYPE, Reason, reason

__all__ = ["Faults", "Misfit", "arrow_type", "column_fault"]

_PRIMITIVES: dict[ColumnKind, pa.DataType] = {
    ColumnKind.BOOLEAN: pa.bool_(),
    ColumnKind.INT: pa.int32(),
    ColumnKind.LONG: pa.int64(),
    ColumnKind.FLOAT: pa.float32(),
    ColumnKind.DOUBLE: pa.float64(),
    ColumnKind.STRING: pa.string(),
    ColumnKind.BINARY: pa.binary(),
    ColumnKind.DATE: pa.date32(),
    ColumnKind.TIMESTAMP: EVENT_TIME_TYPE,
    ColumnKind.JSON: pa.string(),
}

Faults = dict[int, str]
"""By its place in the batch, what is wrong with a value: text that goes on after `field x`."""


class Misfit(ValueError):
    """A value does not fit a column's type. The text goes on after `field x`."""


def arrow_type(column: ColumnType) -> pa.DataType:
    """The type in Arrow."""
    if column.is_list:
        return pa.list_(pa.field("element", arrow_type(column.element)))
    if column.kind is ColumnKind.DECIMAL:
        return pa.decimal128(column.precision, column.scale)
    return _PRIMITIVES[column.kind]


def column_fault(path: Sequence[str], what: str) -> str:
    """The reason for quarantine."""
    return reason(Reason.COLUMN_WRONG_TYPE, f"field {'.'.join(path)}{what}")
