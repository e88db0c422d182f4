"""Which rows of a stream are the same message sent again, and how they are found."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Self

from pydantic import ByteSize, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from waybill.config.columns import Column, ColumnKind, ColumnType, column_types
from waybill.config.enums import Keep
from waybill.config.model import Section, misfit
from waybill.config.values import (
    DurationBetween,
    IsSchedule,
    Marker,
    Matching,
    SizeBetween,
    format_duration,
)

__all__ = ["ARRIVED_AT", "Dedup", "check_dedup"]

ARRIVED_AT = "arrived_at"
"""The column that the unique table has beside those of the main table."""

_MESSAGE_ID = "message_id"
_MOST_KEY_COLUMNS = 16
_MOST_BUCKETS = 4096
_MILLISECOND = timedelta(milliseconds=1)

COLUMN = Matching(r"[a-z_][a-z0-9_]{0,127}", "the name of a column of the table")


class IsKeyColumns(Marker):
    """Names of columns, each once; one alone may be written as it is."""

    type_name = "text or list"
    allowed = f"a column of the table, or a list of up to {_MOST_KEY_COLUMNS}, each once: `[topic, message_id]`"

    def parse(self, value: Any) -> tuple[str, ...]:
        columns = (value,) if isinstance(value, str) else value
        if not isinstance(columns, list | tuple) or not 1 <= len(columns) <= _MOST_KEY_COLUMNS:
            raise ValueError(f"must be {self.allowed.replace('`', '')}")
        if not all(isinstance(name, str) and name for name in columns):
            raise ValueError("a column is text; put it in quotes")
        twice = next((name for i, name in enumerate(columns) if name in columns[:i]), None)
        if twice is not None:
            raise ValueError(f"column {twice!r} is listed twice")
        return tuple(columns)

    def format(self, value: Any) -> Any:
        return value[0] if len(value) == 1 else list(value)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        name = {"type": "string", "minLength": 1}
        most = {"minItems": 1, "maxItems": _MOST_KEY_COLUMNS, "uniqueItems": True}
        return {"anyOf": [name, {"type": "array", "items": name, **most}]}


class IsPowerOfTwo(Marker):
    """A whole number whose binary logarithm is one."""

    type_name = "whole number"
    allowed = f"a power of two from 1 to {_MOST_BUCKETS}"

    def parse(self, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"must be {self.allowed}")
        if not 1 <= value <= _MOST_BUCKETS or value & (value - 1):
            raise ValueError(f"must be {self.allowed}: 1, 2, 4, 8, 16 …")
        return value

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"enum": [1 << power for power in range(_MOST_BUCKETS.bit_length())]}


class Dedup(Section):
    """How messages that were sent again are found, and kept out of the table of unique rows. Left out: not at all."""

    key: Annotated[tuple[str, ...], IsKeyColumns()] = Field(
        (_MESSAGE_ID,),
        description="What two rows of one message have in common. A row with a null in it is never a duplicate.",
    )
    window: Annotated[timedelta, DurationBetween("1s", "3650d")] = Field(
        timedelta(days=28), description="How long after it came a message is known again, by Kafka's timestamps."
    )
    floor: Annotated[timedelta, DurationBetween("1s", "3650d")] = Field(
        timedelta(hours=24),
        description="An alert says so when `index_budget_bytes` holds less than the window, and another when it holds "
        "less than this.",
    )
    index_budget_bytes: Annotated[ByteSize, SizeBetween("1MiB", "16TiB")] = Field(
        ByteSize(16 << 30),
        description="How large the index of keys may be. Beyond that its oldest keys go first, and the window shrinks.",
    )
    keep: Keep = Field(Keep.FIRST, description="Which of the rows of one key is kept.")
    source: Annotated[str, COLUMN] | None = Field(
        None, description="A column by which duplicates are counted, beside hour and topic: who sent them."
    )
    schedule: Annotated[str, IsSchedule()] = Field(
        "@hourly", description="When `dedup__<stream>` runs, in UTC, beside after each partition run."
    )
    run_bytes: Annotated[ByteSize, SizeBetween("1MiB", "16TiB")] = Field(
        ByteSize(64 << 30),
        description="How many bytes of the table's new files one sweep takes: at least those of one snapshot. A job "
        "goes on with the next sweep until nothing is left.",
    )
    task_bytes: Annotated[ByteSize, SizeBetween("1MiB", "16GiB")] = Field(
        ByteSize(256 << 20), description="How many bytes of the table's files one Spark task reads and writes."
    )
    buckets: Annotated[int, IsPowerOfTwo()] = Field(
        16, description="Into how many parts, by the hash of the key, the index is cut. Changing it builds it anew."
    )
    memory: Annotated[ByteSize, SizeBetween("16MiB", "64GiB")] = Field(
        ByteSize(256 << 20), description="How many bytes of rows, or of keys, a task holds."
    )

    @model_validator(mode="after")
    def _check_floor(self) -> Self:
        if self.window < self.floor:
            raise misfit(
                "window",
                f"is {format_duration(self.window)}, and an alert comes below the floor, which is "
                f"{format_duration(self.floor)}: raise the window, or set floor to at most "
                f"{format_duration(self.window)}",
            )
        return self

    @property
    def window_ms(self) -> int:
        """The window in milliseconds."""
        return self.window // _MILLISECOND

    @property
    def floor_ms(self) -> int:
        """The floor in milliseconds."""
        return self.floor // _MILLISECOND


def check_dedup(dedup: Dedup, columns: Mapping[str, Column], *, has_message_ids: bool) -> None:
    """Refuse what cannot be. Raises a fault at the key below `dedup` that is wrong.

    `columns`: those that the stream names; `has_message_ids`: whether its parser looks for ids in messages.
    """
    types = column_types(columns)
    for column in dedup.key:
        fault = _key_fault(column, types)
        if fault:
            raise misfit(("dedup", "key"), f"{column}: {fault}")
    if _MESSAGE_ID in dedup.key and not has_message_ids:
        raise misfit(
            ("dedup", "key"),
            "message_id: the parser names no message_id, so each row is assigned one of its own and none would ever "
            "be a duplicate: say in parser.message_id where the id is, or name other columns",
        )
    if dedup.source is not None:
        fault = _source_fault(dedup.source, types)
        if fault:
            raise misfit(("dedup", "source"), f"{dedup.source}: {fault}")
    if ARRIVED_AT in columns:
        raise misfit(("columns", ARRIVED_AT), "is a column of the table of unique rows: choose another name")


def _key_fault(column: str, types: Mapping[str, ColumnType]) -> str | None:
    """Why a column cannot be part of the key."""
    found = types.get(column)
    if found is None:
        return _unknown(types)
    if column == "offset":
        return "a message that is sent again has another offset: it tells no message from another"
    if found.is_list:
        return "a list cannot be part of a key"
    if found.kind in (ColumnKind.FLOAT, ColumnKind.DOUBLE):
        return f"a {found} cannot be part of a key: its values are not exact"
    return None


def _source_fault(column: str, types: Mapping[str, ColumnType]) -> str | None:
    """Why duplicates cannot be counted by a column."""
    found = types.get(column)
    if found is None:
        return _unknown(types)
    if found.is_list or found.kind is ColumnKind.BINARY:
        return f"duplicates cannot be counted by a {found}: take a column whose values are text or numbers"
    return None


def _unknown(types: Mapping[str, ColumnType]) -> str:
    return f"there is no such column; there are: {', '.join(types)}"
