"""What a table is partitioned by: hour or day of the event time, and what further columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from waybill.config.columns import OWN_COLUMNS, Column, ColumnKind, ColumnType, column_types
from waybill.config.enums import TimeUnit
from waybill.config.model import misfit
from waybill.config.values import Marker

__all__ = ["ColumnTransform", "IsPartitionBy", "PartitionBy", "TransformKind", "check_partition_by"]

_MOST_BUCKETS = 100_000
_MOST_WIDTH = (1 << 31) - 1
_MOST_FIELDS = 8
_TERM = re.compile(r"([a-z_][a-z0-9_]*)|([a-z]+) *\( *([0-9]{1,10}) *, *([a-z_][a-z0-9_]*) *\)")
_COMMA_OUTSIDE_PARENTHESES = re.compile(r",(?![^(]*\))")


class TransformKind(StrEnum):
    """What of a column's value a table is partitioned by, as Iceberg's specification has it."""

    IDENTITY = "identity"
    BUCKET = "bucket"
    TRUNCATE = "truncate"


_SUFFIXES = {TransformKind.IDENTITY: "", TransformKind.BUCKET: "_bucket", TransformKind.TRUNCATE: "_trunc"}


@dataclass(frozen=True, slots=True)
class ColumnTransform:
    """One column that a table is partitioned by, beside the event time."""

    column: str
    kind: TransformKind = TransformKind.IDENTITY
    figure: int = 0
    """How many buckets there are, or how wide what is left is; for the identity it means nothing."""

    @property
    def field_name(self) -> str:
        """What Spark calls the partition field when it creates such a table."""
        return f"{self.column}{_SUFFIXES[self.kind]}"

    def __str__(self) -> str:
        return self.column if self.kind is TransformKind.IDENTITY else f"{self.kind}({self.figure}, {self.column})"


@dataclass(frozen=True, slots=True)
class PartitionBy:
    """What a table is partitioned by."""

    time: TimeUnit = TimeUnit.HOUR
    columns: tuple[ColumnTransform, ...] = ()

    @property
    def time_field_name(self) -> str:
        """What Spark calls the partition field of the event time."""
        return f"event_time_{self.time}"

    @property
    def terms(self) -> list[str]:
        """In Spark's words."""
        return [str(self.time), *map(str, self.columns)]


class IsPartitionBy(Marker):
    """A `PartitionBy`."""

    type_name = "text or list"
    allowed = (
        "`hour` or `day`, or a list that begins with it: `[hour, carrier, bucket(16, message_id), truncate(3, origin)]`"
    )

    def parse(self, value: Any) -> PartitionBy:
        if isinstance(value, PartitionBy):
            return value
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list | tuple) or not value or not all(isinstance(term, str) for term in value):
            raise ValueError(f"must be {self.allowed.replace('`', '')}")
        # YAML cuts a plain bucket(16, id) at its comma: put together again, and cut where it is meant.
        time, *columns = (term.strip() for term in _COMMA_OUTSIDE_PARENTHESES.split(",".join(value)))
        if time not in set(TimeUnit):
            raise ValueError("must be 'hour' or 'day', of the event time, or a list that begins with one of them")
        if len(columns) > _MOST_FIELDS:
            raise ValueError(f"names {len(columns)} columns: {_MOST_FIELDS} at most, each multiplies the files")
        return PartitionBy(TimeUnit(time), tuple(map(_parse_term, columns)))

    def format(self, value: Any) -> Any:
        return value.terms if value.columns else str(value.time)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        unit = {"enum": [str(unit) for unit in TimeUnit]}
        # Not by pattern: in YAML a term may be in two pieces.
        return {"anyOf": [unit, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}


def _parse_term(text: str) -> ColumnTransform:
    match = _TERM.fullmatch(text)
    if match is None or (match[1] is None and match[2] not in (TransformKind.BUCKET, TransformKind.TRUNCATE)):
        raise ValueError(f"{text!r} is not a column, bucket(<buckets>, <column>) or truncate(<width>, <column>)")
    if match[1] is not None:
        return ColumnTransform(match[1])
    kind, figure = TransformKind(match[2]), int(match[3])
    most = _MOST_BUCKETS if kind is TransformKind.BUCKET else _MOST_WIDTH
    if not 1 <= figure <= most:
        what = "there can be 1 to {:,} buckets" if kind is TransformKind.BUCKET else "a width is from 1 to {:,}"
        raise ValueError(f"{text!r}: {what.format(most)}")
    return ColumnTransform(match[4], kind, figure)


_NEVER = (ColumnKind.FLOAT, ColumnKind.DOUBLE)
_NOT_BUCKETED = (*_NEVER, ColumnKind.BOOLEAN)
_TRUNCATED = (ColumnKind.INT, ColumnKind.LONG, ColumnKind.STRING, ColumnKind.JSON, ColumnKind.BINARY)
_ONE_FOR_EACH_MESSAGE = ("offset", "message_id", "value")


def check_partition_by(partition_by: PartitionBy, columns: Mapping[str, Column]) -> None:
    """Refuse what cannot be; `columns` are those that the stream names. Raises a fault at `partition_by`."""
    types = column_types(columns)
    for transform in partition_by.columns:
        fault = _fault(transform, types)
        if fault:
            raise misfit("partition_by", f"{transform}: {fault}")
    _check_names(partition_by, {*OWN_COLUMNS, *columns})


def _fault(transform: ColumnTransform, types: Mapping[str, ColumnType]) -> str | None:
    """Why a table cannot be partitioned by this."""
    found = types.get(transform.column)
    if found is None:
        there = ", ".join(types)
        return f"there is no such column to partition by; there are: {there}, and what `columns` names"
    if found.is_list:
        return "a list cannot be partitioned by"
    return _TYPE_FAULTS[transform.kind](transform, found)


def _identity_fault(transform: ColumnTransform, found: ColumnType) -> str | None:
    if transform.column in _ONE_FOR_EACH_MESSAGE:
        return "would make a partition for each message: take bucket or truncate"
    if found.kind is ColumnKind.TIMESTAMP:
        return "would make a partition for each microsecond: hour or day, which comes first, is by time"
    return f"a {found} cannot be partitioned by: its values are not exact" if found.kind in _NEVER else None


def _bucket_fault(_: ColumnTransform, found: ColumnType) -> str | None:
    return f"Iceberg has no buckets of a {found}" if found.kind in _NOT_BUCKETED else None


def _truncate_fault(_: ColumnTransform, found: ColumnType) -> str | None:
    if found.kind is ColumnKind.DECIMAL:
        # One such message would stop the stream: it can be staged, and never be committed.
        return f"truncated downwards, the least {found} has more digits than a manifest of Iceberg's holds: take bucket"
    if found.kind not in _TRUNCATED:
        return f"Iceberg does not truncate a {found}: it can be an int, long, string or binary"
    return None


_TYPE_FAULTS = {
    TransformKind.IDENTITY: _identity_fault,
    TransformKind.BUCKET: _bucket_fault,
    TransformKind.TRUNCATE: _truncate_fault,
}


def _check_names(partition_by: PartitionBy, columns: Collection[str]) -> None:
    """Partition fields and columns share one space of names in Iceberg; only the identity has its column's."""
    seen: dict[str, ColumnTransform] = {}
    for transform in partition_by.columns:
        if transform.field_name in seen:
            there = seen[transform.field_name]
            raise misfit("partition_by", f"{transform}: {there} is there already; take one of the two")
        seen[transform.field_name] = transform
    made = {t.field_name: str(t) for t in partition_by.columns if t.kind is not TransformKind.IDENTITY}
    made[partition_by.time_field_name] = str(partition_by.time)
    for name, term in made.items():
        if name in columns:
            raise misfit(
                "partition_by",
                f"{term}: the partition field would be called {name!r}, as a column is: give the column another name",
            )
