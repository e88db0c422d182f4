"""Durations, sizes, whole numbers and shares, as the YAML writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from pydantic import ByteSize
from pydantic.json_schema import JsonSchemaValue

from waybill.config.models.base import ValueType

_DURATION = re.compile(r"([0-9]{1,9}) *(s|m|h|d)")
_DURATION_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) *([A-Za-z]*)")
_SIZE_UNITS: Mapping[str, int] = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_MAX_RATIO = Decimal(1000)
_PERCENTAGE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?) *%")


def whole_number(text: str, most: int) -> int | None:
    """Return the number that a text from outside has in decimal digits of ASCII; None for another, or above `most`."""
    # Python reads other digits, too, and refuses to read more than 4,300 of them with a ValueError.
    if not (text.isascii() and text.isdecimal() and len(text.lstrip("0")) <= len(str(most))):
        return None
    number = int(text.lstrip("0") or "0")
    return number if number <= most else None


def parse_duration(text: Any) -> timedelta:
    """Return the duration of a text such as `90s`, `10m`, `6h` or `28d`. Raise `ValueError` for anything else."""
    match = _DURATION.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError("a duration is a whole number and a unit: 90s, 10m, 6h or 28d")
    try:
        return timedelta(seconds=int(match[1]) * _DURATION_UNITS[match[2]])
    except OverflowError:
        raise ValueError("the duration is too long") from None


def format_duration(duration: timedelta) -> str:
    """Return the shortest text that `parse_duration` reads as `duration`, which is cut to whole seconds."""
    seconds = int(duration.total_seconds())
    unit = next((u for u, length in _DURATION_UNITS.items() if seconds and seconds % length == 0), "s")
    return f"{seconds // _DURATION_UNITS[unit]}{unit}"


def parse_size(value: Any) -> int:
    """Return the bytes of `64MiB`, `1.5GB` or a whole number. Raise `ValueError` for anything else.

    Pydantic's `ByteSize` also reads bits (`64 Mbit`), booleans and negative numbers.
    """
    match = None
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        match = _SIZE.fullmatch(str(value).strip())
    if match is None or match[2].lower() not in _SIZE_UNITS:
        raise ValueError("a size is a number and a unit: 64MiB, 1GB, or a whole number of bytes")
    number = float(match[1]) if "." in match[1] else int(match[1])
    return int(number * _SIZE_UNITS[match[2].lower()])


def format_size(size: int) -> str:
    """Return the shortest text that `parse_size` reads as `size` bytes."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        factor = _SIZE_UNITS[unit.lower()]
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


def rough_duration(seconds: float) -> str:
    """Return a duration in its two largest units, for people: `40 s`, `23 min`, `3 h 20 min`, `2 d 4 h`."""
    whole = max(int(seconds), 0)
    units = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    first = next((number for number, (length, _) in enumerate(units) if whole >= length), len(units) - 1)
    parts: list[str] = []
    for length, name in units[first : first + 2]:
        amount, whole = divmod(whole, length)
        if amount or not parts:
            parts.append(f"{amount} {name}")
    return " ".join(parts[:1] if units[first][1] == "min" else parts)


def duration_beside(seconds: float, limit_seconds: float) -> str:
    """Return `rough_duration`; `just over …` if it is longer than a limit and would be shown as the same."""
    text = rough_duration(seconds)
    return f"just over {text}" if seconds > limit_seconds and text == rough_duration(limit_seconds) else text


def share_beside(share: float, limit: float, *, decimals: int = 0) -> str:
    """Return a share in percent, with so many more decimals that it differs from a limit that it does not equal.

    So no figure beyond its limit is shown as the limit. `decimals`: the fewest; at most four more are shown.
    """
    for places in range(decimals, decimals + 4):
        if share == limit or f"{share:.{places}%}" != f"{limit:.{places}%}":
            return f"{share:.{places}%}"
    return f"{share:.{decimals + 4}%}"


class DurationBetween(ValueType):
    """A `timedelta` from `low` to `high`, both included."""

    type_name = "duration"

    def __init__(self, low: str, high: str) -> None:
        self.allowed = f"{low} to {high}, as a whole number of s, m, h or d"
        self._low, self._high = low, high
        self._range = parse_duration(low), parse_duration(high)

    def parse(self, value: Any) -> timedelta:
        duration = value if isinstance(value, timedelta) else parse_duration(value)
        if not self._range[0] <= duration <= self._range[1]:
            raise ValueError(f"must be between {self._low} and {self._high}")
        return duration

    def format(self, value: Any) -> str:
        return format_duration(value)

    def json_schema(self) -> JsonSchemaValue:
        return {"type": "string", "pattern": f"^{_DURATION.pattern}$"}


class SizeBetween(ValueType):
    """A `ByteSize` from `low` to `high`, both included."""

    type_name = "size"

    def __init__(self, low: str, high: str) -> None:
        self.allowed = f"{low} to {high}, as 64MiB or 1GB"
        self._low, self._high = low, high
        self._range = parse_size(low), parse_size(high)

    def parse(self, value: Any) -> ByteSize:
        size = parse_size(value)
        if not self._range[0] <= size <= self._range[1]:
            raise ValueError(f"must be between {self._low} and {self._high}")
        return ByteSize(size)

    def format(self, value: Any) -> str:
        return format_size(value)

    def json_schema(self) -> JsonSchemaValue:
        return {"type": ["string", "integer"]}


class WholeNumberBetween(ValueType):
    """An `int` from `low` to `high`, both included. A boolean, a float or a text is refused."""

    type_name = "whole number"

    def __init__(self, low: int, high: int) -> None:
        self.allowed = f"{low} to {high}"
        self._low, self._high = low, high

    def parse(self, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"must be a whole number from {self._low} to {self._high}")
        if not self._low <= value <= self._high:
            raise ValueError(f"must be between {self._low} and {self._high}")
        return value

    def json_schema(self) -> JsonSchemaValue:
        return {"type": "integer", "minimum": self._low, "maximum": self._high}


class IsPowerOfTwo(ValueType):
    """A power of two from 1 to `high`, itself a power of two."""

    type_name = "whole number"

    def __init__(self, high: int) -> None:
        self.allowed = f"a power of two from 1 to {high}"
        self._high = high

    def parse(self, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"must be {self.allowed}")
        if not 1 <= value <= self._high or value & (value - 1):
            raise ValueError(f"must be {self.allowed}: 1, 2, 4, 8, 16 …")
        return value

    def json_schema(self) -> JsonSchemaValue:
        return {"enum": [1 << power for power in range(self._high.bit_length())]}


class IsShare(ValueType):
    """A share of a whole, as a `Decimal` from 0 to 1."""

    type_name = "share"
    allowed = "0% to 100%, as `1%` or `0.01`"

    def parse(self, value: Any) -> Decimal:
        share = self._share(value)
        if share is None or not 0 <= share <= 1:
            raise ValueError("must be a share: 1% or 0.01 (1% is not 1: that would be all)")
        return share

    @staticmethod
    def _share(value: Any) -> Decimal | None:
        if isinstance(value, Decimal):
            return value
        if isinstance(value, str) and (match := _PERCENTAGE.fullmatch(value.strip())):
            return Decimal(match[1]) / 100
        # Numbers stop short of 1: a bare 1 is as likely to mean 1 %.
        if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and value == 0):
            share = Decimal(str(value))
            return share if share.is_finite() and share < 1 else None
        return None

    def format(self, value: Any) -> str:
        return f"{(value * 100).normalize():f}%"

    def json_schema(self) -> JsonSchemaValue:
        percentage = {"type": "string", "pattern": f"^{_PERCENTAGE.pattern}$"}
        return {"anyOf": [percentage, {"type": "number", "minimum": 0, "exclusiveMaximum": 1}]}


class IsRatio(ValueType):
    """A ratio to something usual, as a `Decimal` from 0 to 1,000: `50%` or `0.5`."""

    type_name = "ratio"
    allowed = "0% to 100000%, as `50%` or `0.5`"

    def parse(self, value: Any) -> Decimal:
        ratio = self._ratio(value)
        if ratio is None or not 0 <= ratio <= _MAX_RATIO:
            raise ValueError("must be a ratio: 50% or 0.5, 300% or 3")
        return ratio

    @staticmethod
    def _ratio(value: Any) -> Decimal | None:
        if isinstance(value, Decimal):
            return value
        text = str(value).strip() if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
        number = text.removesuffix("%").strip()
        if not number.replace(".", "", 1).isdecimal():
            return None
        return Decimal(number) / 100 if text.endswith("%") else Decimal(number)

    def format(self, value: Any) -> str:
        return f"{(value * 100).normalize():f}%"

    def json_schema(self) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string", "pattern": r"^[0-9.]+ *%?$"}, {"type": "number", "minimum": 0}]}


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 gap`, `2,000 gaps`. Only for nouns whose plural ends in s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
