"""What a table is partitioned by: hour or day of the event time, and further columns; and settings of its jobs."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any

from pydantic import ByteSize, Field
from pydantic.json_schema import JsonSchemaValue

from waybill.config.models.base import Section, ValueType, section_error
from waybill.config.models.columns import OWN_COLUMNS, Column, ColumnKind, ColumnType, column_types
from waybill.config.models.enums import TimeUnit
from waybill.config.models.expressions import IsSchedule
from waybill.config.models.groups import OWN_SPARK_TIMEOUT, GroupedSection, SparkTimeout
from waybill.config.models.quantities import DurationBetween, IsShare, SizeBetween, WholeNumberBetween

_MAX_BUCKETS = 100_000
_MAX_WIDTH = (1 << 31) - 1
_MAX_COLUMNS = 8
_TERM = re.compile(r"([a-z_][a-z0-9_]*)|([a-z]+) *\( *([0-9]{1,10}) *, *([a-z_][a-z0-9_]*) *\)")
_COMMA_OUTSIDE_PARENTHESES = re.compile(r",(?![^(]*\))")


class TransformKind(StrEnum):
    """A partition transform of Iceberg's specification, for columns other than the event time."""

    IDENTITY = "identity"
    BUCKET = "bucket"
    TRUNCATE = "truncate"


_SUFFIXES = {TransformKind.IDENTITY: "", TransformKind.BUCKET: "_bucket", TransformKind.TRUNCATE: "_trunc"}
_INEXACT = (ColumnKind.FLOAT, ColumnKind.DOUBLE)
_NOT_BUCKETED = (*_INEXACT, ColumnKind.BOOLEAN)
_TRUNCATED = (ColumnKind.INT, ColumnKind.LONG, ColumnKind.STRING, ColumnKind.JSON, ColumnKind.BINARY)
_UNIQUE_COLUMNS = ("offset", "message_id", "value")
"""Columns with a different value in nearly every message."""


@dataclass(frozen=True, slots=True)
class ColumnTransform:
    """A column that a table is partitioned by, in addition to the event time."""

    column: str
    kind: TransformKind = TransformKind.IDENTITY
    figure: int = 0
    """The number of buckets, or the width of a truncated value; unused for the identity."""

    @property
    def field_name(self) -> str:
        """Return the name that Spark gives the partition field when it creates such a table."""
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
        """Return the name that Spark gives the partition field of the event time."""
        return f"event_time_{self.time}"

    @property
    def terms(self) -> list[str]:
        """Return the transforms in the notation of Spark."""
        return [str(self.time), *map(str, self.columns)]


class IsPartitionBy(ValueType):
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
        # In a flow sequence YAML splits bucket(16, id) at its comma: join the parts, and split outside of parentheses.
        time, *columns = (term.strip() for term in _COMMA_OUTSIDE_PARENTHESES.split(",".join(value)))
        if time not in set(TimeUnit):
            raise ValueError("must be 'hour' or 'day', of the event time, or a list that begins with one of them")
        if len(columns) > _MAX_COLUMNS:
            raise ValueError(f"has {len(columns)} columns: at most {_MAX_COLUMNS}, since each multiplies the files")
        return PartitionBy(TimeUnit(time), tuple(map(_parse_term, columns)))

    def format(self, value: Any) -> Any:
        return value.terms if value.columns else str(value.time)

    def json_schema(self) -> JsonSchemaValue:
        unit = {"enum": [str(unit) for unit in TimeUnit]}
        # The items have no pattern: YAML may split a transform at its comma.
        return {"anyOf": [unit, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}


def _parse_term(text: str) -> ColumnTransform:
    match = _TERM.fullmatch(text)
    if match is None or (match[1] is None and match[2] not in (TransformKind.BUCKET, TransformKind.TRUNCATE)):
        raise ValueError(f"{text!r} is not a column, bucket(<buckets>, <column>) or truncate(<width>, <column>)")
    if match[1] is not None:
        return ColumnTransform(match[1])
    kind, figure = TransformKind(match[2]), int(match[3])
    name, high = ("number of buckets", _MAX_BUCKETS) if kind is TransformKind.BUCKET else ("width", _MAX_WIDTH)
    if not 1 <= figure <= high:
        raise ValueError(f"{text!r}: the {name} must be between 1 and {high:,}")
    return ColumnTransform(match[4], kind, figure)


def check_partition_by(partition_by: PartitionBy, columns: Mapping[str, Column]) -> None:
    """Raise an error at `partition_by` for a column that is unknown, or that Iceberg cannot partition by.

    `columns`: the stream's configured columns.
    """
    types = column_types(columns)
    for transform in partition_by.columns:
        error = _transform_error(transform, types)
        if error:
            raise section_error("partition_by", f"{transform}: {error}")
    _check_names(partition_by, {*OWN_COLUMNS, *columns})


def _transform_error(transform: ColumnTransform, types: Mapping[str, ColumnType]) -> str | None:
    """Return why a table cannot be partitioned by a transform; None if it can."""
    column_type = types.get(transform.column)
    if column_type is None:
        return f"unknown column; known columns: {', '.join(types)}"
    if column_type.is_list:
        return "a table cannot be partitioned by a list"
    if transform.kind is TransformKind.BUCKET:
        return f"Iceberg cannot bucket a {column_type}" if column_type.kind in _NOT_BUCKETED else None
    if transform.kind is TransformKind.TRUNCATE:
        return _truncate_error(column_type)
    return _identity_error(transform.column, column_type)


def _identity_error(column: str, column_type: ColumnType) -> str | None:
    if column in _UNIQUE_COLUMNS:
        return "would make a partition for each message: use bucket or truncate"
    if column_type.kind is ColumnKind.TIMESTAMP:
        return "would make a partition for each microsecond: the event time is partitioned by hour or day"
    if column_type.kind in _INEXACT:
        return f"a table cannot be partitioned by a {column_type}: its values are not exact"
    return None


def _truncate_error(column_type: ColumnType) -> str | None:
    if column_type.kind is ColumnKind.DECIMAL:
        # One such message would stop the stream: its file can be staged, but never be committed.
        return (
            f"truncation rounds down, so the smallest {column_type} gets more digits than an Iceberg manifest "
            f"can hold: use bucket"
        )
    if column_type.kind not in _TRUNCATED:
        return f"Iceberg cannot truncate a {column_type}, only an int, long, string or binary"
    return None


def _check_names(partition_by: PartitionBy, columns: Collection[str]) -> None:
    """Raise an error for two partition fields of one name, or a partition field with the name of a column.

    Iceberg requires this. Only the partition field of an identity transform has the name of its column.
    """
    seen: dict[str, ColumnTransform] = {}
    for transform in partition_by.columns:
        if transform.field_name in seen:
            other = seen[transform.field_name]
            raise section_error("partition_by", f"{transform}: repeats {other}; remove one of the two")
        seen[transform.field_name] = transform
    derived = {t.field_name: str(t) for t in partition_by.columns if t.kind is not TransformKind.IDENTITY}
    derived[partition_by.time_field_name] = str(partition_by.time)
    for name, term in derived.items():
        if name in columns:
            raise section_error(
                "partition_by",
                f"{term}: the partition field would have the name of the column {name!r}: rename the column",
            )


class Partition(GroupedSection):
    """The partition job: it turns the archive into rows of the table."""

    schedule: Annotated[str, IsSchedule()] = Field(
        "@hourly", description="When the stream's own DAG `partition__<stream>` runs, in UTC."
    )
    timeout: SparkTimeout = Field(timedelta(hours=6), description=OWN_SPARK_TIMEOUT)
    task_bytes: Annotated[ByteSize, SizeBetween("1MiB", "16GiB")] = Field(
        ByteSize(256 << 20),
        description="The most bytes of backup objects that one Spark task reads. Tasks read less, down to 32 MiB, if "
        "more of them can run in parallel.",
    )
    run_bytes: Annotated[ByteSize, SizeBetween("1MiB", "16TiB")] = Field(
        ByteSize(64 << 30),
        description="The most bytes of backup objects that one commit covers. A job makes one commit after the other "
        "until the whole archive is covered.",
    )
    memory: Annotated[ByteSize, SizeBetween("16MiB", "64GiB")] = Field(
        ByteSize(256 << 20), description="How many bytes of rows a task keeps in memory before it writes them."
    )


class Maintenance(GroupedSection):
    """The maintenance job: it compacts small files, expires snapshots and removes leftovers."""

    schedule: Annotated[str, IsSchedule()] = Field(
        "@daily", description="When the stream's own DAG `maintenance__<stream>` runs, in UTC."
    )
    timeout: SparkTimeout = Field(timedelta(hours=12), description=OWN_SPARK_TIMEOUT)
    target_file_bytes: Annotated[ByteSize, SizeBetween("1MiB", "16GiB")] = Field(
        ByteSize(256 << 20), description="The size of the files that compaction writes."
    )
    min_input_files: Annotated[int, WholeNumberBetween(2, 1_000_000)] = Field(
        5, description="How many small files a partition must have before it is compacted."
    )
    keep_snapshots: Annotated[timedelta, DurationBetween("1h", "3650d")] = Field(
        timedelta(days=5),
        description="How long a snapshot, and the files that only it references, are kept.",
    )
    keep_last: Annotated[int, WholeNumberBetween(1, 1_000_000)] = Field(
        10, description="How many of the latest snapshots are kept, however old they are."
    )
    orphans_after: Annotated[timedelta, DurationBetween("1d", "3650d")] = Field(
        timedelta(days=3),
        description="The age at which a file below the tables' locations that no snapshot references is removed. No "
        "partition run may take longer than this.",
    )
    leftovers_after: Annotated[timedelta, DurationBetween("1d", "3650d")] = Field(
        timedelta(days=7),
        description="The age at which plans that are committed, and index objects without a backup object, are "
        "removed.",
    )


class QuarantineAlert(Section):
    """When a partition run raises an alert about quarantined messages. The run commits its rows in any case."""

    max_rate: Annotated[Decimal, IsShare()] = Field(
        Decimal("0.1"),
        description="If a larger share of a run's messages goes to quarantine, the job (in Airflow, the task "
        "`check_alerts`) fails after the rows are committed. `0%`: at the first message; `100%`: never.",
    )
    min_messages: Annotated[int, WholeNumberBetween(1, 1_000_000_000)] = Field(
        100, description="A run with fewer messages raises no alert, because a few of them are already a large share."
    )
