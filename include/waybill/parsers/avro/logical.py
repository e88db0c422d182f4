"""What Avro's logical types make of a value: the same, whichever way a message is read.

Timestamps become moments in UTC (`local-` ones, which have no zone, as well), to the microsecond; decimals `Decimal`;
dates and times of day Python's own; UUIDs text. A value that its Python type cannot hold stays what the writer wrote,
but a timestamp becomes a `BeyondTime`. A logical type that is unknown or does not fit is passed over, as Avro asks for.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any

from waybill.parsers.timestamps import BeyondTime

__all__ = ["Reader", "logical_reader"]

Reader = Callable[[Any], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL = _EPOCH.toordinal()
_MOST_DIGITS = 1_000


def logical_reader(schema: Any) -> Reader | None:
    """What turns a value of the underlying type into what it means; None where there is nothing to be done."""
    if not isinstance(schema, dict) or not isinstance(schema.get("logicalType"), str):
        return None
    if schema["logicalType"] == "decimal":
        return _decimal(schema)
    if schema["logicalType"] == "uuid" and schema["type"] == "fixed" and schema.get("size") == 16:
        return _uuid
    return _READERS.get((schema["type"], schema["logicalType"]))


def _timestamp(numerator: int, denominator: int) -> Reader:
    def read(value: int) -> datetime | BeyondTime:
        try:
            return _EPOCH + timedelta(microseconds=value * numerator // denominator)
        except OverflowError:
            return BeyondTime(f"{value * numerator // denominator} microseconds since 1970")

    return read


def _date(value: int) -> date | int:
    try:
        return date.fromordinal(_EPOCH_ORDINAL + value)
    except (ValueError, OverflowError):
        return value


def _time(per_second: int) -> Reader:
    def read(value: int) -> time | int:
        seconds, part = divmod(value, per_second)
        if not 0 <= seconds < 86_400:
            return value
        return time(seconds // 3600, seconds // 60 % 60, seconds % 60, part * 1_000_000 // per_second)

    return read


def _decimal(schema: dict[str, Any]) -> Reader | None:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if schema["type"] not in ("bytes", "fixed") or not isinstance(precision, int) or not isinstance(scale, int):
        return None
    if not 0 <= scale <= precision <= _MOST_DIGITS or precision == 0:
        return None

    beyond, context = int(10**precision), Context(prec=precision)

    def read(value: bytes) -> Decimal | bytes:
        number = int.from_bytes(value, "big", signed=True)
        return Decimal(number).scaleb(-scale, context) if abs(number) < beyond else value

    return read


def _uuid(value: bytes) -> str:
    return str(uuid.UUID(bytes=value))


_READERS: dict[tuple[str, str], Reader] = {
    ("int", "date"): _date,
    ("int", "time-millis"): _time(1_000),
    ("long", "time-micros"): _time(1_000_000),
}
for _prefix in ("", "local-"):
    _READERS["long", f"{_prefix}timestamp-millis"] = _timestamp(1_000, 1)
    _READERS["long", f"{_prefix}timestamp-micros"] = _timestamp(1, 1)
    _READERS["long", f"{_prefix}timestamp-nanos"] = _timestamp(1, 1_000)
