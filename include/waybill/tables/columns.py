"""Typed columns of a stream's table in Iceberg, and how the table comes to have them.

A table is only ever added to, and types are only ever widened, as Iceberg allows without a data file being written
again. A column that the config no longer has stays, and is null in what comes after.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestamptzType,
)
from sqlalchemy.exc import OperationalError

from waybill.config import ColumnKind, Columns, ColumnType
from waybill.errors import ConfigError
from waybill.tables.commit import until_committed

__all__ = ["column_fields", "fit_columns", "follow_columns", "iceberg_type"]

logger = logging.getLogger(__name__)

_PRIMITIVES: dict[ColumnKind, PrimitiveType] = {
    ColumnKind.BOOLEAN: BooleanType(),
    ColumnKind.INT: IntegerType(),
    ColumnKind.LONG: LongType(),
    ColumnKind.FLOAT: FloatType(),
    ColumnKind.DOUBLE: DoubleType(),
    ColumnKind.STRING: StringType(),
    ColumnKind.BINARY: BinaryType(),
    ColumnKind.DATE: DateType(),
    ColumnKind.TIMESTAMP: TimestamptzType(),
    ColumnKind.JSON: StringType(),
}


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A type that a column is to have, and who says so."""

    type: IcebergType
    said: str


_Change = tuple[tuple[str, ...], IcebergType]
"""A column, or the elements of one, and the type that it is to have."""


def iceberg_type(column: ColumnType, element_id: int = 0) -> IcebergType:
    """The type in Iceberg. `element_id` is the field id of a list's elements."""
    if column.is_list:
        return ListType(element_id, iceberg_type(column.element), element_required=False)
    if column.kind is ColumnKind.DECIMAL:
        return DecimalType(column.precision, column.scale)
    return _PRIMITIVES[column.kind]


def column_fields(columns: Columns, first_id: int) -> list[NestedField]:
    """The fields of a new table, with ids from `first_id` on; the catalog gives them its own."""
    fields = []
    for name, column in columns.items():
        fields.append(NestedField(first_id, name, iceberg_type(column.type, first_id + 1), required=False))
        first_id += 2
    return fields


@dataclass(frozen=True, slots=True)
class _Changes:
    """What a table lacks."""

    added: tuple[_Change, ...]
    widened: tuple[_Change, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.widened)

    def __str__(self) -> str:
        added = [f"{'.'.join(path)} ({kind})" for path, kind in self.added]
        widened = [f"{'.'.join(path)} is now {kind}" for path, kind in self.widened]
        return ", ".join([*(f"new: {text}" for text in added), *widened])


def fit_columns(table: Table, columns: Columns) -> None:
    """Give the table the columns that it lacks, and wider types where they are needed; `table` is then up to date.

    Any number of drivers may do so at the same time, with the same config or with different ones.

    Raises `ConfigError` when a column is in the table with a type that cannot become, and is not wider than, what
    `columns` says; `CommitConflict` when others change the table faster than this can; `CatalogUnavailable` when the
    catalog does not answer.
    """
    _fit(table, {name: _Wanted(iceberg_type(c.type), f"the config says {c.type}") for name, c in columns.items()})


def follow_columns(table: Table, other: Table) -> None:
    """Give the table what columns of another one it lacks, and wider types where those are wider.

    Raises as `fit_columns` does.
    """
    has = f"table {'.'.join(other.name())} has"
    own = {field.name: field for field in table.schema().fields}
    _fit(
        table,
        {
            field.name: _Wanted(field.field_type, f"{has} {field.field_type}")
            for field in other.schema().fields
            if field.name not in own or not own[field.name].required
        },
    )


def _fit(table: Table, wanted: Mapping[str, _Wanted]) -> None:
    name = ".".join(table.name())
    if not _changes(name, table.schema(), wanted):
        return

    def attempt() -> bool | None:
        # Somebody else may have made the changes since the table was loaded, or been quicker just now.
        changes = _changes(name, table.schema(), wanted)
        return True if not changes or _try(table, changes, name) else None

    until_committed(table, attempt, what="changes of its columns")


def _try(table: Table, changes: _Changes, name: str) -> bool:
    try:
        with table.update_schema() as update:
            for path, kind in changes.added:
                update.add_column(path, kind)
            for path, kind in changes.widened:
                update.update_column(path, kind)
    except CommitFailedException as refused:
        logger.info("%s: a change of its columns was refused, looking again: %s", name, refused)
        return False
    except (CommitStateUnknownException, OperationalError) as error:
        # It may have been carried out all the same: the next look at the table tells.
        logger.warning("%s: the outcome of a change of its columns is unknown, looking again: %s", name, error)
        return False
    logger.info("%s: changed its columns: %s", name, changes)
    return True


def _changes(name: str, schema: Schema, wanted: Mapping[str, _Wanted]) -> _Changes:
    found = {field.name: field for field in schema.fields}
    added: list[_Change] = []
    widened: list[_Change] = []
    for column_name, column in wanted.items():
        field = found.get(column_name)
        if field is None:
            added.append(((column_name,), column.type))
        else:
            widened += _widening(name, field, column)
    return _Changes(tuple(added), tuple(widened))


def _widening(table: str, field: NestedField, column: _Wanted) -> Iterator[_Change]:
    """What makes a column that is there hold what is wanted."""
    path: tuple[str, ...] = (field.name,)
    found, wanted = field.field_type, column.type
    if field.required:
        raise _misfit(table, field, column, "that must never be null")
    if isinstance(found, ListType) and isinstance(wanted, ListType):
        path, found, wanted = (*path, "element"), found.element_type, wanted.element_type
    if found == wanted or _is_wider(found, than=wanted):
        return
    if not _is_wider(wanted, than=found):
        raise _misfit(table, field, column, "which cannot become that without writing every file again")
    yield path, wanted


def _misfit(table: str, field: NestedField, column: _Wanted, why: str) -> ConfigError:
    return ConfigError(
        f"column {field.name!r} of table {table} is {field.field_type}, {why}, and {column.said}: "
        f"set the type back, give the column another name, or raise the stream's generation"
    )


def _is_wider(kind: IcebergType, *, than: IcebergType) -> bool:
    """Whether Iceberg promotes the other type to this one."""
    if isinstance(kind, DecimalType) and isinstance(than, DecimalType):
        return kind.scale == than.scale and kind.precision > than.precision
    return (isinstance(than, IntegerType) and isinstance(kind, LongType)) or (
        isinstance(than, FloatType) and isinstance(kind, DoubleType)
    )
