"""Deduplication of a stream: which rows are the same message sent again, and how they are found."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Self

from pydantic import ByteSize, Field, model_validator
from pydantic.json_schema import JsonSchemaValue

from waybill.config.models.base import Matching, ValueType, section_error
from waybill.config.models.columns import Column, ColumnKind, ColumnType, column_types
from waybill.config.models.enums import Keep
from waybill.config.models.expressions import IsSchedule
from waybill.config.models.groups import OWN_SPARK_TIMEOUT, GroupedSection, SparkTimeout
from waybill.config.models.quantities import DurationBetween, IsPowerOfTwo, SizeBetween, format_duration
from waybill.config.models.texts import unique_names

ARRIVED_AT = "arrived_at"
"""The column that the unique table has in addition to those of the main table."""

_MESSAGE_ID = "message_id"
_MAX_KEY_COLUMNS = 16
_MAX_BUCKETS = 4096
_MILLISECOND = timedelta(milliseconds=1)

COLUMN = Matching(r"[a-z_][a-z0-9_]{0,127}", "the name of a column of the table")


class IsKeyColumns(ValueType):
    """A tuple of column names, each once. One name may be written without a list."""

    type_name = "text or list"
    allowed = f"a column of the table, or a list of up to {_MAX_KEY_COLUMNS}, each once: `[topic, message_id]`"

    def parse(self, value: Any) -> tuple[str, ...]:
        columns = (value,) if isinstance(value, str) else value
        if not isinstance(columns, list | tuple) or not 1 <= len(columns) <= _MAX_KEY_COLUMNS:
            raise ValueError(f"must be {self.allowed.replace('`', '')}")
        return unique_names(columns, "column")

    def format(self, value: Any) -> Any:
        return value[0] if len(value) == 1 else list(value)

    def json_schema(self) -> JsonSchemaValue:
        name = {"type": "string", "minLength": 1}
        limits = {"minItems": 1, "maxItems": _MAX_KEY_COLUMNS, "uniqueItems": True}
        return {"anyOf": [name, {"type": "array", "items": name, **limits}]}


class Dedup(GroupedSection):
    """How messages that were sent again are kept out of the unique table. Without this section there is none."""

    key: Annotated[tuple[str, ...], IsKeyColumns()] = Field(
        (_MESSAGE_ID,),
        description="The columns that identify a message. A row with a null in one of them is never a duplicate.",
    )
    window: Annotated[timedelta, DurationBetween("1s", "3650d")] = Field(
        timedelta(days=28), description="How far back a message is compared with earlier ones, by Kafka's timestamps."
    )
    floor: Annotated[timedelta, DurationBetween("1s", "3650d")] = Field(
        timedelta(hours=24),
        description="An alert is raised when `index_budget_bytes` is too small for the window, and another one when it "
        "is too small for this much of it.",
    )
    index_budget_bytes: Annotated[ByteSize, SizeBetween("1MiB", "16TiB")] = Field(
        ByteSize(16 << 30),
        description="The largest size of the key index. Above it the oldest keys are removed, and the window shrinks.",
    )
    keep: Keep = Field(Keep.FIRST, description="Which of the rows of one key is kept.")
    source: Annotated[str, COLUMN] | None = Field(
        None, description="A column with the sender. Duplicates are counted by it, in addition to hour and topic."
    )
    schedule: Annotated[str, IsSchedule()] = Field(
        "@hourly",
        description="When the stream's own DAG `dedup__<stream>` runs, in UTC. It also runs after partition runs.",
    )
    timeout: SparkTimeout = Field(timedelta(hours=6), description=OWN_SPARK_TIMEOUT)
    run_bytes: Annotated[ByteSize, SizeBetween("1MiB", "16TiB")] = Field(
        ByteSize(64 << 30),
        description="The most bytes of the table's new files that one sweep reads; it reads at least one snapshot's. "
        "A job makes one sweep after the other until all new files are read.",
    )
    task_bytes: Annotated[ByteSize, SizeBetween("1MiB", "16GiB")] = Field(
        ByteSize(256 << 20), description="The most bytes of the table's files that one Spark task reads and writes."
    )
    buckets: Annotated[int, IsPowerOfTwo(_MAX_BUCKETS)] = Field(
        16, description="The number of parts of the key index, by the hash of the key. Changing it rebuilds the index."
    )
    memory: Annotated[ByteSize, SizeBetween("16MiB", "64GiB")] = Field(
        ByteSize(256 << 20), description="How many bytes of rows or keys a task keeps in memory."
    )

    @model_validator(mode="after")
    def _check_floor(self) -> Self:
        if self.window < self.floor:
            window, floor = format_duration(self.window), format_duration(self.floor)
            raise section_error(
                "window", f"is {window}, shorter than the floor of {floor}: raise it, or set floor to at most {window}"
            )
        return self

    @property
    def window_ms(self) -> int:
        """Return the window in milliseconds."""
        return self.window // _MILLISECOND

    @property
    def floor_ms(self) -> int:
        """Return the floor in milliseconds."""
        return self.floor // _MILLISECOND


def check_dedup(dedup: Dedup, columns: Mapping[str, Column], *, has_message_ids: bool) -> None:
    """Raise an error at the key that does not fit the stream's columns or its parser.

    `columns`: the stream's configured columns. `has_message_ids`: whether its parser reads ids from messages.
    """
    types = column_types(columns)
    for column in dedup.key:
        error = _key_error(column, types)
        if error:
            raise section_error(("dedup", "key"), f"{column}: {error}")
    if _MESSAGE_ID in dedup.key and not has_message_ids:
        raise section_error(
            ("dedup", "key"),
            "message_id: the parser has no message_id, so each row gets an id of its own and no row is a duplicate: "
            "set parser.message_id, or use other columns",
        )
    if dedup.source is not None:
        error = _source_error(dedup.source, types)
        if error:
            raise section_error(("dedup", "source"), f"{dedup.source}: {error}")
    if ARRIVED_AT in columns:
        raise section_error(("columns", ARRIVED_AT), "is a column of the unique table: choose another name")


def _key_error(column: str, types: Mapping[str, ColumnType]) -> str | None:
    """Return why a column cannot be part of the key; None if it can."""
    column_type = types.get(column)
    if column_type is None:
        return _unknown_column(types)
    if column == "offset":
        return "a message that is sent again has a new offset, so no two rows would be equal"
    if column_type.is_list:
        return "a list cannot be part of a key"
    if column_type.kind in (ColumnKind.FLOAT, ColumnKind.DOUBLE):
        return f"a {column_type} cannot be part of a key: its values are not exact"
    return None


def _source_error(column: str, types: Mapping[str, ColumnType]) -> str | None:
    """Return why duplicates cannot be counted by a column; None if they can."""
    column_type = types.get(column)
    if column_type is None:
        return _unknown_column(types)
    if column_type.is_list or column_type.kind is ColumnKind.BINARY:
        return f"duplicates cannot be counted by a {column_type}: use a column of texts or numbers"
    return None


def _unknown_column(types: Mapping[str, ColumnType]) -> str:
    return f"unknown column; known columns: {', '.join(types)}"
