"""Typed columns of a stream's table: what a field of a message becomes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, GetJsonSchemaHandler, WithJsonSchema, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from waybill.config.enums import EventTimeFormat, WrongType
from waybill.config.model import Section, misfit
from waybill.config.values import IsFieldPath, Marker

__all__ = [
    "OWN_COLUMNS",
    "Column",
    "ColumnKind",
    "ColumnType",
    "Columns",
    "IsColumnName",
    "IsColumnType",
    "column_types",
]

OWN_COLUMNS = (
    "topic",
    "partition",
    "offset",
    "kafka_timestamp",
    "key",
    "headers",
    "value",
    "event_time",
    "message_id",
    "generation",
)
"""What every table has, whatever its stream's columns are."""

_RESERVED_BY_ICEBERG = (
    "_file",
    "_pos",
    "_deleted",
    "_partition",
    "_spec_id",
    "_row_id",
    "_last_updated_sequence_number",
)
_MOST_DIGITS = 38
_TYPE = re.compile(r"(list *< *)?([a-z]+)(?: *\( *([0-9]{1,9}) *, *([0-9]{1,9}) *\))?( *>)?")


class ColumnKind(StrEnum):
    """A type of column, without its figures."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type of column, or of the elements of a list."""

    kind: ColumnKind
    precision: int = 0
    """Of a decimal: how many digits it has at most."""
    scale: int = 0
    """Of a decimal: how many of them are after the point."""
    is_list: bool = False

    @property
    def element(self) -> ColumnType:
        """The type of a list's elements."""
        return ColumnType(self.kind, self.precision, self.scale)

    def __str__(self) -> str:
        figures = f"({self.precision},{self.scale})" if self.kind is ColumnKind.DECIMAL else ""
        return f"list<{self.kind}{figures}>" if self.is_list else f"{self.kind}{figures}"


class IsColumnType(Marker):
    """A `ColumnType`, in Iceberg's words."""

    type_name = "column type"
    allowed = (
        "`boolean`, `int`, `long`, `float`, `double`, `decimal(P,S)`, `string`, `binary`, `date`, `timestamp`, `json`, "
        "or `list<…>` of one of these"
    )

    def parse(self, value: Any) -> ColumnType:
        if isinstance(value, ColumnType):
            return value
        match = _TYPE.fullmatch(value) if isinstance(value, str) else None
        if match is None or match[2] not in set(ColumnKind) or (match[1] is None) != (match[5] is None):
            hint = "; between braces, a comma needs quotes: {type: 'decimal(12,2)'}" if _is_cut(value) else ""
            raise ValueError(f"must be {self.allowed.replace('`', '')}{hint}")
        kind = ColumnKind(match[2])
        if (kind is ColumnKind.DECIMAL) != (match[3] is not None):
            raise ValueError(
                "decimal has its precision and scale, decimal(12,2); other types have none"
                if match[3] is None
                else f"{kind} has no figures; only decimal(P,S) has"
            )
        found = ColumnType(kind, int(match[3] or 0), int(match[4] or 0), is_list=match[1] is not None)
        if kind is ColumnKind.DECIMAL and not (1 <= found.precision <= _MOST_DIGITS and found.scale <= found.precision):
            raise ValueError(
                f"decimal(P,S) has 1 to {_MOST_DIGITS} digits (P), of which up to P are after the point (S)"
            )
        return found

    def format(self, value: Any) -> str:
        return str(value)


def _is_cut(value: Any) -> bool:
    """In a flow mapping YAML ends a plain text at a comma."""
    return isinstance(value, str) and value.count("(") > value.count(")")


class IsColumnName(Marker):
    """The name of a typed column."""

    type_name = "column name"
    allowed = "a lower-case letter or `_`, then up to 127 characters of [a-z0-9_]; not one of Waybill's own columns"
    taken: ClassVar[frozenset[str]] = frozenset((*OWN_COLUMNS, *_RESERVED_BY_ICEBERG))

    def parse(self, value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(r"[a-z_][a-z0-9_]{0,127}", value):
            raise ValueError("must be a lower-case letter or _, then up to 127 characters of [a-z0-9_]")
        if value in OWN_COLUMNS:
            raise ValueError(
                f"{value!r} is one of Waybill's own columns: give it another name, and say field: {value}; "
                f"there are: {', '.join(OWN_COLUMNS)}"
            )
        if value in self.taken:
            raise ValueError(f"{value!r} is reserved by Iceberg: give it another name, and say field: {value}")
        return value


class Column(Section):
    """What a field of a message becomes in the table. In short form, `carrier: string`, it is the type alone."""

    type: Annotated[ColumnType, IsColumnType()] = Field(
        description="The column's type. `json` is any value as JSON text. What becomes of which value: the user guide."
    )
    field: Annotated[tuple[str, ...], IsFieldPath()] | None = Field(
        None,
        description="Where it is in the message: a field path; for `regex` the name of a group, for `delimited` of a "
        "column. Default: the column's own name.",
    )
    format: EventTimeFormat | None = Field(
        None,
        description="For `timestamp`: how it is written, as for `event_time`. Default: `iso8601`.",
    )
    wrong_type: Annotated[WrongType, WithJsonSchema({"enum": [*WrongType, None]})] = Field(
        WrongType.QUARANTINE,
        description="What becomes of a message whose value does not fit the type: it goes to quarantine, or this "
        "column is null.",
    )

    @model_validator(mode="before")
    @classmethod
    def _read_short_form(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"type": value}
        if isinstance(value, dict) and "wrong_type" in value and value["wrong_type"] is None:
            return {**value, "wrong_type": WrongType.NULL}  # for YAML, null is no text
        return value

    @model_validator(mode="after")
    def _check_format(self) -> Self:
        if self.format is not None and self.type.kind is not ColumnKind.TIMESTAMP:
            raise misfit("format", f"says how a timestamp is written, and the type is {self.type}: leave it out")
        return self

    def path(self, name: str) -> tuple[str, ...]:
        """The field path of the column of that name."""
        return self.field or (name,)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string", "pattern": f"^{_TYPE.pattern}$"}, handler(schema)]}


Columns = dict[Annotated[str, IsColumnName()], Column]
"""By name, in the order of the config."""

_OWN_TYPES = {
    "topic": ColumnKind.STRING,
    "partition": ColumnKind.INT,
    "offset": ColumnKind.LONG,
    "kafka_timestamp": ColumnKind.TIMESTAMP,
    "key": ColumnKind.BINARY,
    "value": ColumnKind.BINARY,
    "event_time": ColumnKind.TIMESTAMP,
    "message_id": ColumnKind.STRING,
    "generation": ColumnKind.INT,
}


def column_types(columns: Mapping[str, Column]) -> dict[str, ColumnType]:
    """The types of a table's columns by name: its own, but for the headers, and those that its stream names."""
    return {name: ColumnType(kind) for name, kind in _OWN_TYPES.items()} | {n: c.type for n, c in columns.items()}
