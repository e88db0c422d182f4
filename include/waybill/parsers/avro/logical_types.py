"""Avro's logical types: convert a value of the underlying type to the value that it stands for.

Timestamps become times in UTC with microseconds; `local-` timestamps, which have no zone, are read as UTC. Decimals
become `Decimal`, dates and times of day Python's types, UUIDs text. A value that the Python type cannot hold is not
converted, except a timestamp, which becomes an `OutOfRangeTime`. As Avro's specification requires, a logical type that
is unknown, or not valid for its type, is ignored.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any

from waybill.parsers.timestamps import OutOfRangeTime

__all__ = ["LogicalReader", "logical_reader"]

LogicalReader = Callable[[Any], Any]
"""Converts a value of the underlying type."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL = _EPOCH.toordinal()
_MAX_PRECISION = 1_000


def logical_reader(schema: Any) -> LogicalReader | None:
    """Return the function that converts the values of a schema; None if they are not converted."""
    if not isinstance(schema, dict) or not isinstance(schema.get("logicalType"), str):
        return None
    if schema["logicalType"] == "decimal":
        return _decimal(schema)
    if schema["logicalType"] == "uuid" and schema["type"] == "fixed" and schema.get("size") == 16:
        return _uuid
    return _READERS.get((schema["type"], schema["logicalType"]))


def _timestamp(numerator: int, denominator: int) -> LogicalReader:
    def read(value: int) -> datetime | OutOfRangeTime:
        try:
            return _EPOCH + timedelta(microseconds=value * numerator // denominator)
        except OverflowError:
            return OutOfRangeTime(f"{value * numerator // denominator} microseconds since 1970")

    return read


def _date(value: int) -> date | int:
    try:
        return date.fromordinal(_EPOCH_ORDINAL + value)
    except (ValueError, OverflowError):
        return value


def _time(per_second: int) -> LogicalReader:
    def read(value: int) -> time | int:
        seconds, part = divmod(value, per_second)
        if not 0 <= seconds < 86_400:
            return value
        return time(seconds // 3600, seconds // 60 % 60, seconds % 60, part * 1_000_000 // per_second)

    return read


def _decimal(schema: dict[str, Any]) -> LogicalReader | None:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if schema["type"] not in ("bytes", "fixed") or not isinstance(precision, int) or not isinstance(scale, int):
        return None
    if not 0 <= scale <= precision <= _MAX_PRECISION or precision == 0:
        return None

    limit, context = int(10**precision), Context(prec=precision)

    def read(value: bytes) -> Decimal | bytes:
        number = int.from_bytes(value, "big", signed=True)
        return Decimal(number).scaleb(-scale, context) if abs(number) < limit else value

    return read


def _uuid(value: bytes) -> str:
    return str(uuid.UUID(bytes=value))


_READERS: dict[tuple[str, str], LogicalReader] = {
    ("int", "date"): _date,
    ("int", "time-millis"): _time(1_000),
    ("long", "time-micros"): _time(1_000_000),
}
for _prefix in ("", "local-"):
    _READERS["long", f"{_prefix}timestamp-millis"] = _timestamp(1_000, 1)
    _READERS["long", f"{_prefix}timestamp-micros"] = _timestamp(1, 1)
    _READERS["long", f"{_prefix}timestamp-nanos"] = _timestamp(1, 1_000)
