"""Typed columns of a stream's table: their Iceberg types, and the schema evolution that adds and widens them.

Schema evolution only adds columns and only widens types, which Iceberg allows without rewriting data files. A column
that is removed from the config stays in the table and is null in later rows.
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

from waybill.base.errors import ConfigError
from waybill.config.models import ColumnKind, Columns, ColumnType
from waybill.tables.iceberg.commit import commit_with_retry

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
    """The type that a column must have, and the source that requires it."""

    type: IcebergType
    source: str
    """For error messages: "the config has decimal(10, 2)"."""


_Change = tuple[tuple[str, ...], IcebergType]
"""The path of a column or of its list elements, and its new type."""


def iceberg_type(column: ColumnType, element_id: int = 0) -> IcebergType:
    """Return the Iceberg type of a configured column. `element_id` is the field id of a list's elements."""
    if column.is_list:
        return ListType(element_id, iceberg_type(column.element), element_required=False)
    if column.kind is ColumnKind.DECIMAL:
        return DecimalType(column.precision, column.scale)
    return _PRIMITIVES[column.kind]


def column_fields(columns: Columns, first_id: int) -> list[NestedField]:
    """Return the fields of a new table, with ids from `first_id` on. The catalog replaces the ids with its own."""
    fields = []
    for name, column in columns.items():
        fields.append(NestedField(first_id, name, iceberg_type(column.type, first_id + 1), required=False))
        first_id += 2
    return fields


@dataclass(frozen=True, slots=True)
class _Changes:
    """The differences between a table's schema and the required columns."""

    added: tuple[_Change, ...]
    widened: tuple[_Change, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.widened)

    def __str__(self) -> str:
        added = [f"{'.'.join(path)} ({kind})" for path, kind in self.added]
        widened = [f"{'.'.join(path)} is now {kind}" for path, kind in self.widened]
        return ", ".join([*(f"new: {text}" for text in added), *widened])


def evolve_columns(table: Table, columns: Columns) -> None:
    """Add the configured columns that the table lacks, and widen types that are too narrow.

    `table` has the new schema afterwards. Several drivers may call this at the same time, also with different configs.

    Raises `ConfigError` when the type of an existing column is neither wider than the configured type nor can be
    widened to it; `CommitConflict` when every attempt was refused; `CatalogUnavailable` when the catalog does not
    answer.
    """
    _evolve(table, {name: _Wanted(iceberg_type(c.type), f"the config has {c.type}") for name, c in columns.items()})


def copy_columns(table: Table, other: Table) -> None:
    """Add the columns of `other` that `table` lacks, and widen types that are narrower than in `other`.

    Raises as `evolve_columns` does.
    """
    has = f"table {'.'.join(other.name())} has"
    own = {field.name: field for field in table.schema().fields}
    _evolve(
        table,
        {
            field.name: _Wanted(field.field_type, f"{has} {field.field_type}")
            for field in other.schema().fields
            if field.name not in own or not own[field.name].required
        },
    )


def _evolve(table: Table, wanted: Mapping[str, _Wanted]) -> None:
    name = ".".join(table.name())
    if not _changes(name, table.schema(), wanted):
        return

    def attempt() -> bool | None:
        # Another driver may have made the changes since the table was loaded, or since the last attempt.
        changes = _changes(name, table.schema(), wanted)
        return True if not changes or _try_update(table, changes, name) else None

    commit_with_retry(table, attempt, what="changes of its columns")


def _try_update(table: Table, changes: _Changes, name: str) -> bool:
    try:
        with table.update_schema() as update:
            for path, kind in changes.added:
                update.add_column(path, kind)
            for path, kind in changes.widened:
                update.update_column(path, kind)
    except CommitFailedException as refused:
        logger.info("%s: the change of its columns was refused, reading the table again: %s", name, refused)
        return False
    except (CommitStateUnknownException, OperationalError) as error:
        # The catalog may have made the change nevertheless: the next attempt refreshes the table and checks.
        logger.warning("%s: the outcome of a change of its columns is unknown, reading it again: %s", name, error)
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
    """Yield the change, if any, that widens an existing column to the required type. Raises `ConfigError`."""
    path: tuple[str, ...] = (field.name,)
    found, wanted = field.field_type, column.type
    if field.required:
        raise _misfit(table, field, column, "and required")
    if isinstance(found, ListType) and isinstance(wanted, ListType):
        path, found, wanted = (*path, "element"), found.element_type, wanted.element_type
    if found == wanted or _is_wider(found, than=wanted):
        return
    if not _is_wider(wanted, than=found):
        raise _misfit(table, field, column, "which Iceberg cannot widen to that type without rewriting every data file")
    yield path, wanted


def _misfit(table: str, field: NestedField, column: _Wanted, why: str) -> ConfigError:
    return ConfigError(
        f"column {field.name!r} of table {table} is {field.field_type}, {why}, and {column.source}: "
        f"restore the type, give the column another name, or raise the stream's generation"
    )


def _is_wider(kind: IcebergType, *, than: IcebergType) -> bool:
    """Return whether Iceberg can promote the type `than` to `kind`."""
    if isinstance(kind, DecimalType) and isinstance(than, DecimalType):
        return kind.scale == than.scale and kind.precision > than.precision
    return (isinstance(than, IntegerType) and isinstance(kind, LongType)) or (
        isinstance(than, FloatType) and isinstance(kind, DoubleType)
    )
