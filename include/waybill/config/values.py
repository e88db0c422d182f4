"""The kinds of value that a config holds beside text and whole numbers.

Each is a marker for `Annotated`: it parses and checks (a wrong value is refused in words that say what is allowed), and
it describes itself to the reference (`type_name`, `allowed`) and to editors (JSON schema).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import ByteSize, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from waybill import names
from waybill.config.enums import StartPosition
from waybill.config.parser_class import CLASS_PATH
from waybill.errors import ConfigError

__all__ = [
    "DurationBetween",
    "IsClassPath",
    "IsColumnList",
    "IsConnectionId",
    "IsDelimiter",
    "IsFieldDelimiter",
    "IsFieldPath",
    "IsPattern",
    "IsQuote",
    "IsRecompression",
    "IsRegex",
    "IsSchedule",
    "IsStart",
    "IsStreamName",
    "IsTopic",
    "IsTopicList",
    "Kind",
    "Marker",
    "Matching",
    "SizeBetween",
    "WholeNumberBetween",
    "format_duration",
    "format_size",
    "group_names",
    "parse_duration",
    "parse_size",
]

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


def parse_duration(text: Any) -> timedelta:
    """`90s`, `10m`, `6h` or `28d`. Raises `ValueError` on anything else."""
    match = _DURATION.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError("a duration is a whole number and a unit: 90s, 10m, 6h or 28d")
    try:
        return timedelta(seconds=int(match[1]) * _DURATION_UNITS[match[2]])
    except OverflowError:
        raise ValueError("a duration of that length does not exist") from None


def format_duration(duration: timedelta) -> str:
    """The shortest text that `parse_duration` reads as `duration` (whole seconds)."""
    seconds = int(duration.total_seconds())
    unit = next((u for u, length in _DURATION_UNITS.items() if seconds and seconds % length == 0), "s")
    return f"{seconds // _DURATION_UNITS[unit]}{unit}"


def parse_size(value: Any) -> int:
    """Bytes: `64MiB`, `1.5GB` or a whole number. Raises `ValueError` on anything else."""
    match = None
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        match = _SIZE.fullmatch(str(value).strip())
    if match is None or match[2].lower() not in _SIZE_UNITS:
        raise ValueError("a size is a number and a unit: 64MiB, 1GB, or a whole number of bytes")
    number = float(match[1]) if "." in match[1] else int(match[1])
    return int(number * _SIZE_UNITS[match[2].lower()])


def format_size(size: int) -> str:
    """The shortest text that `parse_size` reads as `size`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        factor = _SIZE_UNITS[unit.lower()]
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


@runtime_checkable
class Kind(Protocol):
    """What the reference asks of a marker."""

    @property
    def type_name(self) -> str: ...

    @property
    def allowed(self) -> str: ...

    def format(self, value: Any) -> Any:
        """`value` as it would be written in the YAML."""


class Marker(ABC):
    """A kind of value: parsing and JSON schema, as pydantic asks for them."""

    json_type: ClassVar[Any] = "string"

    @abstractmethod
    def parse(self, value: Any) -> Any:
        """`value` as the model has it. Raises `ValueError` that says what is allowed."""

    def format(self, value: Any) -> Any:
        """`value` as the YAML has it."""
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # To JSON as it would be written in the YAML, so that what is dumped can be loaded.
        written = core_schema.plain_serializer_function_ser_schema(self.format, when_used="json")
        return core_schema.no_info_plain_validator_function(self.parse, serialization=written)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": self.json_type}


@dataclass(frozen=True)
class DurationBetween(Marker):
    """A `timedelta` from `low` to `high`, both included."""

    low: str
    high: str

    type_name: ClassVar[str] = "duration"

    @property
    def allowed(self) -> str:
        return f"{self.low} to {self.high}, as a whole number of s, m, h or d"

    def parse(self, value: Any) -> timedelta:
        duration = value if isinstance(value, timedelta) else parse_duration(value)
        if not parse_duration(self.low) <= duration <= parse_duration(self.high):
            raise ValueError(f"must be between {self.low} and {self.high}")
        return duration

    def format(self, value: Any) -> str:
        return format_duration(value)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": f"^{_DURATION.pattern}$"}


@dataclass(frozen=True)
class SizeBetween(Marker):
    """A `ByteSize` from `low` to `high`, both included."""

    low: str
    high: str

    type_name: ClassVar[str] = "size"
    json_type: ClassVar[Any] = ["string", "integer"]

    @property
    def allowed(self) -> str:
        return f"{self.low} to {self.high}, as 64MiB or 1GB"

    def parse(self, value: Any) -> ByteSize:
        size = parse_size(value)
        if not parse_size(self.low) <= size <= parse_size(self.high):
            raise ValueError(f"must be between {self.low} and {self.high}")
        return ByteSize(size)

    def format(self, value: Any) -> str:
        return format_size(value)


@dataclass(frozen=True)
class WholeNumberBetween(Marker):
    """An `int` from `low` to `high`, both included; never a boolean, a float or a text."""

    low: int
    high: int

    type_name: ClassVar[str] = "whole number"

    @property
    def allowed(self) -> str:
        return f"{self.low} to {self.high}"

    def parse(self, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"must be a whole number from {self.low} to {self.high}")
        if not self.low <= value <= self.high:
            raise ValueError(f"must be between {self.low} and {self.high}")
        return value

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class Matching(Marker):
    """A text that a pattern matches as a whole. `allowed` says in words what the pattern says."""

    pattern: str
    allowed: str
    type_name: str = "text"
    refused: str = "(?!)"
    """A second pattern, for what the first cannot exclude readably."""

    def parse(self, value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError("must be text; put it in quotes" if value is not None else "must not be empty")
        if not re.fullmatch(self.pattern, value, re.ASCII) or re.search(self.refused, value):
            raise ValueError(f"must be {self.allowed}")
        return value

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": f"^(?:{self.pattern})$"}


class IsConnectionId(Marker):
    """The id of an Airflow connection."""

    type_name = "connection id"
    allowed = "1 to 250 characters of [A-Za-z0-9_.-]"

    def parse(self, value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,250}", value):
            raise ValueError(f"must be the id of a connection: {self.allowed}")
        return value


class IsStreamName(Marker):
    """The name of a stream: it becomes part of DAG ids, paths and object names."""

    type_name = "stream name"
    allowed = "a lower-case letter, then up to 99 characters of [a-z0-9_]"

    def parse(self, value: Any) -> str:
        try:
            return names.check_stream_name(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None


class IsTopic(Marker):
    """A topic name that Kafka allows."""

    type_name = "topic"
    allowed = "1 to 249 characters of [a-zA-Z0-9._-], not '.' or '..'"

    def parse(self, value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError("a topic is text; put it in quotes")
        try:
            return names.check_topic(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None


class IsRecompression(Marker):
    """`none` as None, `zstd` and `zstd:<level>` as the level."""

    type_name = "text"
    levels: ClassVar[range] = range(1, 20)
    default_level: ClassVar[int] = 1
    allowed = "`none`, `zstd` (level 1) or `zstd:<level>` with a level from 1 to 19"

    def parse(self, value: Any) -> int | None:
        if value is None or value == "none":
            return None
        match = re.fullmatch(r"zstd(?::([0-9]{1,2}))?", value) if isinstance(value, str) else None
        level = self.default_level if match is None or match[1] is None else int(match[1])
        if match is None or level not in self.levels:
            raise ValueError(f"must be {self.allowed.replace('`', '')}")
        return level

    def format(self, value: Any) -> str:
        return "none" if value is None else f"zstd:{value}"


class IsDelimiter(Marker):
    """What ends each message of a text object."""

    type_name = "text"
    max_bytes: ClassVar[int] = 16
    allowed = '1 to 16 bytes of UTF-8; control characters in double quotes (`"\\n"`, `"\\x1e"`)'

    def parse(self, value: Any) -> str:
        if not isinstance(value, str) or not 1 <= len(value.encode(errors="surrogatepass")) <= self.max_bytes:
            raise ValueError(f"must be text of 1 to {self.max_bytes} bytes")
        if "\\" in value:
            # In single quotes, or in none, YAML leaves \n as two characters: nobody means that.
            raise ValueError('must hold no backslash: put control characters in double quotes, as in "\\n"')
        return value

    def format(self, value: Any) -> Any:
        return value


class IsFieldPath(Marker):
    """A tuple of field names that leads into a message."""

    type_name = "field path"
    allowed = "names joined by dots (`time.scheduled`), or a list of names where a name holds a dot"

    def parse(self, value: Any) -> tuple[str, ...]:
        path = value.split(".") if isinstance(value, str) else value
        if not isinstance(path, list | tuple) or not path or not all(isinstance(v, str) and v for v in path):
            raise ValueError("a field path is names joined by dots (time.scheduled), or a list of names")
        return tuple(path)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        names_list = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}
        return {"anyOf": [{"type": "string", "minLength": 1}, names_list]}

    def format(self, value: Any) -> Any:
        return ".".join(value) if not any("." in name for name in value) else list(value)


class IsTopicList(Marker):
    """Topic names that Kafka allows, each once."""

    type_name = "list of topics"
    allowed = "topic names: 1 to 249 characters of [a-zA-Z0-9._-], not '.' or '..'"

    def parse(self, value: Any) -> tuple[str, ...]:
        if not value:
            raise ValueError("must name at least one topic, or be {regex: …}")
        for topic in value:
            if not isinstance(topic, str):
                raise ValueError("a topic is text; put it in quotes")
            try:
                names.check_topic(topic)
            except ConfigError as error:
                raise ValueError(str(error)) from None
        twice = next((topic for i, topic in enumerate(value) if topic in value[:i]), None)
        if twice is not None:
            raise ValueError(f"topic {twice!r} is listed twice")
        return tuple(value)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        topic = {"type": "string", "pattern": "^[a-zA-Z0-9._-]{1,249}$"}
        return {"type": "array", "items": topic, "minItems": 1, "uniqueItems": True}


class IsRegex(Marker):
    """A Python regular expression, as text."""

    type_name = "regular expression"
    allowed = "what Python's `re` reads"

    def parse(self, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError("must be a regular expression that the whole topic name matches")
        try:
            re.compile(value)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return value


class IsFieldDelimiter(Marker):
    """What stands between the fields of a record."""

    type_name = "text"
    allowed = 'one character, not a line break; a control character in double quotes (`"\\t"`)'

    def parse(self, value: Any) -> str:
        return _character(value)

    def format(self, value: Any) -> Any:
        return value


class IsQuote(Marker):
    """What stands around a field that holds delimiters; `none` as None."""

    type_name = "text"
    allowed = "one character, not a line break; `none`: quotes are text like any other"

    def parse(self, value: Any) -> str | None:
        return None if value is None or value == "none" else _character(value)

    def format(self, value: Any) -> Any:
        return "none" if value is None else value


def _character(value: Any) -> str:
    if value == "\\t":  # in single quotes, or in none, YAML leaves it as two characters
        raise ValueError('must be one character: put a tab in double quotes, "\\t"')
    if not isinstance(value, str) or len(value) != 1 or value in "\r\n\0":
        raise ValueError("must be one character, and no line break")
    return value


class IsColumnList(Marker):
    """Names of columns, each once."""

    type_name = "list of columns"
    allowed = "1 to 10,000 names, each once"
    most: ClassVar[int] = 10_000

    def parse(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not 1 <= len(value) <= self.most:
            raise ValueError("must be the list of all columns of a message, in order")
        if not all(isinstance(name, str) and name for name in value):
            raise ValueError("a column is text; put it in quotes")
        counts = Counter(value)
        name, count = counts.most_common(1)[0]
        if count > 1:
            raise ValueError(f"column {name!r} is listed twice")
        return tuple(value)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        name = {"type": "string", "minLength": 1}
        return {"type": "array", "items": name, "minItems": 1, "maxItems": self.most, "uniqueItems": True}


class IsClassPath(Marker):
    """Where a class is imported from."""

    type_name = "class"
    allowed = "`package.module:Class`"

    def parse(self, value: Any) -> str:
        if not isinstance(value, str) or not CLASS_PATH.fullmatch(value):
            raise ValueError("must be package.module:Class")
        return value


class IsPattern(Marker):
    """A regular expression with named groups, for RE2."""

    type_name = "regular expression"
    allowed = "what RE2 reads, with at least one named group: `(?P<time>…)`"

    def parse(self, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError("must be a regular expression with named groups, (?P<name>…)")
        group_names(value)
        return value


def group_names(pattern: str) -> tuple[str, ...]:
    """The names of the pattern's groups, in order. Raises `ValueError` for what RE2 refuses or that has none."""
    # Its import takes 0.2 s: only where there is a pattern to read. Arrow is what will run it, so Arrow is asked.
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        found = pc.extract_regex(pa.array([], pa.string()), pattern).type
    except pa.ArrowInvalid as error:
        text = str(error)
        if "unnamed groups" in text:
            raise ValueError("every group must have a name, (?P<name>…), or not be captured, (?:…)") from None
        what = text.removeprefix("Invalid regular expression: ")
        raise ValueError(f"not a regular expression of RE2, which has no look-around and no \\1: {what}") from None
    groups = tuple(field.name for field in found)
    if not groups:
        raise ValueError("must have a named group, (?P<name>…), for each field that is read")
    twice = next((name for i, name in enumerate(groups) if name in groups[:i]), None)
    if twice is not None:
        raise ValueError(f"two groups have the name {twice!r}")
    return groups


class IsSchedule(Marker):
    """An Airflow schedule, as a cron expression or one of Airflow's names for it."""

    type_name = "schedule"
    presets: ClassVar[tuple[str, ...]] = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")
    allowed = "a cron expression of five fields (`5 * * * *`) or " + ", ".join(f"`{preset}`" for preset in presets)

    def parse(self, value: Any) -> str:
        if isinstance(value, str) and value in self.presets:
            return value
        if not isinstance(value, str) or len(value.split()) != 5:
            raise ValueError(f"must be {self.allowed.replace('`', '')}")
        _check_cron(value)
        return value


def _check_cron(expression: str) -> None:
    # Airflow reads cron expressions with it as well. Its import takes 60 ms: only where there is one to read.
    from croniter import CroniterBadCronError, CroniterBadDateError, croniter

    try:
        croniter(expression, datetime(2026, 1, 1, tzinfo=UTC)).get_next()
    except CroniterBadDateError:
        raise ValueError("the cron expression names a time that never comes") from None
    except (CroniterBadCronError, ValueError, OverflowError) as error:
        raise ValueError(f"not a cron expression: {error}") from None


class IsStart(Marker):
    """A `StartPosition`, or a `datetime` with a zone."""

    type_name = "start"
    allowed = "`earliest`, `latest`, or an ISO 8601 time (`2026-01-31T00:00:00Z`; without a zone it is UTC)"

    def parse(self, value: Any) -> StartPosition | datetime:
        if isinstance(value, str) and value in set(StartPosition):
            return StartPosition(value)
        start = _parse_time(value)
        if start is None or start.year < 1970:
            raise ValueError("must be 'earliest', 'latest' or an ISO 8601 time from 1970 on, 2026-01-31T00:00:00Z")
        return start

    def format(self, value: Any) -> str:
        return value.isoformat() if isinstance(value, datetime) else str(value)


def _parse_time(value: Any) -> datetime | None:
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    try:
        parsed = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except (TypeError, ValueError, OverflowError):
        return None
