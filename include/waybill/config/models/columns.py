"""The fields that are read from a message: its event time, and those that become typed columns of the table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, GetJsonSchemaHandler, WithJsonSchema, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from waybill.config.models.base import Section, ValueType, section_error
from waybill.config.models.enums import EventTimeFormat, WrongType
from waybill.config.models.texts import IsFieldPath

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
"""The columns that every table has, whatever columns its stream configures."""

_RESERVED_BY_ICEBERG = (
    "_file",
    "_pos",
    "_deleted",
    "_partition",
    "_spec_id",
    "_row_id",
    "_last_updated_sequence_number",
)
_MAX_PRECISION = 38
_TYPE = re.compile(r"(list *< *)?([a-z]+)(?: *\( *([0-9]{1,9}) *, *([0-9]{1,9}) *\))?( *>)?")


FieldPath = Annotated[tuple[str, ...], IsFieldPath()]
"""The names that lead to a field of a message, from the outside in."""


class EventTime(Section):
    """The field with the event time, and its format."""

    field: FieldPath = Field(
        description="Field path, e.g. `time.scheduled`; for `regex` the name of a group, for `delimited` of a column."
    )
    format: EventTimeFormat = Field(
        EventTimeFormat.ISO8601,
        description="The format of the time. ISO 8601 without a zone is UTC; epochs may be strings.",
    )


class ColumnKind(StrEnum):
    """A type of column, without precision, scale or list."""

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
    """The type of a column, or of the elements of a list."""

    kind: ColumnKind
    precision: int = 0
    """The largest number of digits of a decimal; 0 for other types."""
    scale: int = 0
    """The number of digits of a decimal after the point; 0 for other types."""
    is_list: bool = False

    @property
    def element(self) -> ColumnType:
        """Return the type of a list's elements."""
        return ColumnType(self.kind, self.precision, self.scale)

    def __str__(self) -> str:
        digits = f"({self.precision},{self.scale})" if self.kind is ColumnKind.DECIMAL else ""
        return f"list<{self.kind}{digits}>" if self.is_list else f"{self.kind}{digits}"


class IsColumnType(ValueType):
    """A `ColumnType`, in the notation of Iceberg."""

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
            hint = (
                "; between braces, a comma needs quotes: {type: 'decimal(12,2)'}" if _ends_in_parentheses(value) else ""
            )
            raise ValueError(f"must be {self.allowed.replace('`', '')}{hint}")
        kind = ColumnKind(match[2])
        if (kind is ColumnKind.DECIMAL) != (match[3] is not None):
            raise ValueError(
                "decimal needs a precision and a scale: decimal(12,2)"
                if match[3] is None
                else f"{kind} has no precision and scale; only decimal(P,S) has"
            )
        precision, scale = int(match[3] or 0), int(match[4] or 0)
        if kind is ColumnKind.DECIMAL and not (1 <= precision <= _MAX_PRECISION and scale <= precision):
            raise ValueError(
                f"decimal(P,S) has 1 to {_MAX_PRECISION} digits (P), of which up to P are after the point (S)"
            )
        return ColumnType(kind, precision, scale, is_list=match[1] is not None)

    def format(self, value: Any) -> str:
        return str(value)


def _ends_in_parentheses(value: Any) -> bool:
    """Return whether YAML has cut the text at the comma between parentheses, as it does in a flow mapping."""
    return isinstance(value, str) and value.count("(") > value.count(")")


class IsColumnName(ValueType):
    """The name of a typed column."""

    type_name = "column name"
    allowed = "a lower-case letter or `_`, then up to 127 characters of [a-z0-9_]; not one of Waybill's own columns"

    def parse(self, value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(r"[a-z_][a-z0-9_]{0,127}", value):
            raise ValueError("must be a lower-case letter or _, then up to 127 characters of [a-z0-9_]")
        if value in OWN_COLUMNS:
            raise ValueError(
                f"{value!r} is one of Waybill's own columns ({', '.join(OWN_COLUMNS)}): "
                f"use another name, and set field: {value}"
            )
        if value in _RESERVED_BY_ICEBERG:
            raise ValueError(f"{value!r} is reserved by Iceberg: use another name, and set field: {value}")
        return value


class Column(Section):
    """A field of the messages as a column of the table. The short form, `carrier: string`, is the type alone."""

    type: Annotated[ColumnType, IsColumnType()] = Field(
        description="The column's type. `json` is any value as JSON text. The user guide lists which values fit."
    )
    field: Annotated[tuple[str, ...], IsFieldPath()] | None = Field(
        None,
        description="Field path in the message; for `regex` the name of a group, for `delimited` of a column. "
        "Default: the column's own name.",
    )
    format: EventTimeFormat | None = Field(
        None,
        description="The format of a `timestamp`, as for `event_time`. Default: `iso8601`.",
    )
    wrong_type: Annotated[WrongType, WithJsonSchema({"enum": [*WrongType, None]})] = Field(
        WrongType.QUARANTINE,
        description="What to do with a message whose value does not fit the type: send it to quarantine, or set this "
        "column to null.",
    )

    @model_validator(mode="before")
    @classmethod
    def _read_short_form(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"type": value}
        if isinstance(value, dict) and "wrong_type" in value and value["wrong_type"] is None:
            return {**value, "wrong_type": WrongType.NULL}  # YAML reads a bare null as None, not as text
        return value

    @model_validator(mode="after")
    def _check_format(self) -> Self:
        if self.format is not None and self.type.kind is not ColumnKind.TIMESTAMP:
            raise section_error("format", f"applies to timestamps only, and the type is {self.type}: remove it")
        return self

    def path(self, name: str) -> tuple[str, ...]:
        """Return the field path of this column, whose name is `name`."""
        return self.field or (name,)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string", "pattern": f"^{_TYPE.pattern}$"}, handler(schema)]}


Columns = dict[Annotated[str, IsColumnName()], Column]
"""The columns by name, in the order of the config."""

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
    """Return the types of a table's columns by name: Waybill's own except `headers`, then `columns`."""
    return {name: ColumnType(kind) for name, kind in _OWN_TYPES.items()} | {n: c.type for n, c in columns.items()}
