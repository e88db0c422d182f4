"""Typed columns out of documents: the fields by path, an array for each column, and an error where one does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from waybill.config import ColumnKind, Columns, FieldPath, WrongType
from waybill.parsers.column_values import convert_values, is_float
from waybill.parsers.columns import Faults, column_fault

__all__ = ["ColumnsRead", "DocumentColumns"]


class ColumnsRead(NamedTuple):
    """What a batch of documents holds for the columns."""

    arrays: Mapping[str, pa.Array]
    errors: dict[int, str]
    """The reason for quarantine of each document that has one, by its place."""


@dataclass(frozen=True)
class DocumentColumns:
    """Reads the columns of a stream."""

    columns: Columns
    read_exactly: Callable[[Any], Any] | None = None
    """Decodes a message once more, numbers with a fraction as `Decimal`. None: no float is less than what was written.

    Raises `ValueError` when that cannot be done.
    """
    base64_texts: bool = False
    """Whether the documents have no bytes, so that a `binary` column takes a text for Base64."""

    def gather(self, documents: Sequence[dict[str, Any]], into: Sequence[list[Any]]) -> None:
        """Add the values that `documents` hold for each column, None where there is none, to the list for it."""
        for values, (name, column) in zip(into, self.columns.items(), strict=True):
            values += _values_at(column.path(name), documents)

    def read(self, gathered: Sequence[list[Any]], messages: Sequence[Any]) -> ColumnsRead:
        """The columns, from the values that were gathered of all `messages`. Never raises for what they hold."""
        arrays: dict[str, pa.Array] = {}
        errors: dict[int, str] = {}
        for values, (name, column) in zip(gathered, self.columns.items(), strict=True):
            path = column.path(name)
            unread = self._read_exactly(path, values, messages) if column.type.kind is ColumnKind.DECIMAL else {}
            arrays[name], faults = convert_values(values, column, base64_texts=self.base64_texts)
            if column.wrong_type is WrongType.QUARANTINE:
                for place, what in {**faults, **unread}.items():
                    errors.setdefault(place, column_fault(path, what))
        return ColumnsRead(arrays, errors)

    def _read_exactly(self, path: FieldPath, values: list[Any], messages: Sequence[Any]) -> Faults:
        """Replace floats by the numbers that were written."""
        faults: Faults = {}
        if self.read_exactly is None:
            return faults
        for place, value in enumerate(values):
            if is_float(value):
                try:
                    [values[place]] = _values_at(path, [self.read_exactly(messages[place])])
                except ValueError as error:
                    values[place] = None
                    faults[place] = f" cannot be read exactly: {error}"
        return faults


def _values_at(path: FieldPath, documents: Sequence[dict[str, Any]]) -> list[Any]:
    """The values that a path leads to; None where it leads nowhere."""
    values: list[Any] = list(documents)
    for name in path:
        values = [value.get(name) if type(value) is dict else None for value in values]
    return values
