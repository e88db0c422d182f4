"""Names and other short texts of the config: ids, topics, field paths, delimiters."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from pydantic.json_schema import JsonSchemaValue

from waybill.base.errors import ConfigError
from waybill.config import names
from waybill.config.models.base import Matching, ValueType

_MAX_COLUMNS = 10_000
_MAX_DELIMITER_BYTES = 16
_ZSTD_LEVELS = range(1, 20)
_DEFAULT_ZSTD_LEVEL = 1


class _ConnectionId(Matching):
    type_name = "connection id"


CONNECTION_ID = _ConnectionId(r"[A-Za-z0-9_.-]{1,250}", "the id of a connection: 1 to 250 characters of [A-Za-z0-9_.-]")
"""The id of an Airflow connection."""


class IsStreamName(ValueType):
    """The name of a stream. It becomes part of DAG ids, paths and object keys."""

    type_name = "stream name"
    allowed = "a lower-case letter, then up to 99 characters of [a-z0-9_]"

    def parse(self, value: Any) -> str:
        try:
            return names.check_stream_name(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None


class IsTopic(ValueType):
    """A topic name that Kafka allows."""

    type_name = "topic"
    allowed = "1 to 249 characters of [a-zA-Z0-9._-], not '.' or '..'"

    def parse(self, value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError("a topic must be text: put it in quotes")
        try:
            return names.check_topic(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None


_KINESIS_ARN = re.compile(r"arn:aws[a-z-]*:kinesis:[a-z0-9-]+:[0-9]{12}:stream/[a-zA-Z0-9_.-]{1,128}")


def is_kinesis_arn(value: Any) -> bool:
    """Return whether a value is the ARN of a Kinesis stream."""
    return isinstance(value, str) and _KINESIS_ARN.fullmatch(value) is not None


class IsTopicList(ValueType):
    """A tuple of topic names that Kafka allows, or of ARNs of Kinesis streams, each once."""

    type_name = "list of topics"
    allowed = f"topic names: {IsTopic.allowed}; with `source: kinesis` also ARNs of Kinesis streams"

    def parse(self, value: Any) -> tuple[str, ...]:
        if not value:
            raise ValueError("must name at least one topic, or be {regex: …}")
        return unique_names((each if is_kinesis_arn(each) else IsTopic().parse(each) for each in value), "topic")

    def json_schema(self) -> JsonSchemaValue:
        topic = {"type": "string", "pattern": f"^[a-zA-Z0-9._-]{{1,249}}$|^{_KINESIS_ARN.pattern}$"}
        return {"type": "array", "items": topic, "minItems": 1, "uniqueItems": True}


class IsColumnList(ValueType):
    """A tuple of column names, each once."""

    type_name = "list of columns"
    allowed = f"1 to {_MAX_COLUMNS:,} names, each once"

    def parse(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not 1 <= len(value) <= _MAX_COLUMNS:
            raise ValueError("must be the list of all columns of a message, in order")
        return unique_names(value, "column")

    def json_schema(self) -> JsonSchemaValue:
        name = {"type": "string", "minLength": 1}
        return {"type": "array", "items": name, "minItems": 1, "maxItems": _MAX_COLUMNS, "uniqueItems": True}


def unique_names(values: Any, kind: str) -> tuple[str, ...]:
    """Return `values` as a tuple. Raise `ValueError` unless they are texts that are not empty, each once.

    `kind` is what the message calls one of them.
    """
    found = tuple(values)
    if not all(isinstance(name, str) and name for name in found):
        raise ValueError(f"a {kind} must be text: put it in quotes")
    [(name, count)] = Counter(found).most_common(1)
    if count > 1:
        raise ValueError(f"{kind} {name!r} is listed twice")
    return found


class IsFieldPath(ValueType):
    """A tuple of field names that leads to a field of a message."""

    type_name = "field path"
    allowed = "names joined by dots (`time.scheduled`), or a list of names if a name contains a dot"

    def parse(self, value: Any) -> tuple[str, ...]:
        path = value.split(".") if isinstance(value, str) else value
        if not isinstance(path, list | tuple) or not path or not all(isinstance(v, str) and v for v in path):
            raise ValueError("a field path is names joined by dots (time.scheduled), or a list of names")
        return tuple(path)

    def format(self, value: Any) -> Any:
        return ".".join(value) if not any("." in name for name in value) else list(value)

    def json_schema(self) -> JsonSchemaValue:
        names_list = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}
        return {"anyOf": [{"type": "string", "minLength": 1}, names_list]}


class IsRecompression(ValueType):
    """A level of Zstandard: `zstd` or `zstd:<level>`; None for `none`."""

    type_name = "text"
    allowed = "`none`, `zstd` (level 1) or `zstd:<level>` with a level from 1 to 19"

    def parse(self, value: Any) -> int | None:
        if value is None or value == "none":
            return None
        match = re.fullmatch(r"zstd(?::([0-9]{1,2}))?", value) if isinstance(value, str) else None
        level = _DEFAULT_ZSTD_LEVEL if match is None or match[1] is None else int(match[1])
        if match is None or level not in _ZSTD_LEVELS:
            raise ValueError(f"must be {self.allowed.replace('`', '')}")
        return level

    def format(self, value: Any) -> str:
        return "none" if value is None else f"zstd:{value}"


class IsDelimiter(ValueType):
    """The text that ends each message of a text object."""

    type_name = "text"
    allowed = '1 to 16 bytes of UTF-8; control characters in double quotes (`"\\n"`, `"\\x1e"`)'

    def parse(self, value: Any) -> str:
        if not isinstance(value, str) or not 1 <= len(value.encode(errors="surrogatepass")) <= _MAX_DELIMITER_BYTES:
            raise ValueError(f"must be text of 1 to {_MAX_DELIMITER_BYTES} bytes")
        if "\\" in value:
            # YAML reads \n in single quotes, or without quotes, as two characters. That is never intended.
            raise ValueError('must not contain a backslash: put control characters in double quotes, as in "\\n"')
        return value


class IsFieldDelimiter(ValueType):
    """The character between the fields of a record."""

    type_name = "text"
    allowed = 'one character, not a line break; a control character in double quotes (`"\\t"`)'

    def parse(self, value: Any) -> str:
        return _character(value)


class IsQuote(ValueType):
    """The character around a field that contains delimiters; None for `none`."""

    type_name = "text"
    allowed = "one character, not a line break; `none`: quotes are plain text"

    def parse(self, value: Any) -> str | None:
        return None if value is None or value == "none" else _character(value)

    def format(self, value: Any) -> Any:
        return "none" if value is None else value


def _character(value: Any) -> str:
    if value == "\\t":  # YAML reads \t in single quotes, or without quotes, as two characters
        raise ValueError('must be one character: put a tab in double quotes, "\\t"')
    if not isinstance(value, str) or len(value) != 1 or value in "\r\n\0":
        raise ValueError("must be one character, and not a line break")
    return value
