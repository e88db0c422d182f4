"""How messages are parsed: a model for each parser, chosen by its name, and which columns each parser can return."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ByteSize, ConfigDict, Discriminator, Field, Tag, model_validator

from waybill.config.models.base import Section, ValueType, section_error
from waybill.config.models.columns import Column, Columns, EventTime, FieldPath
from waybill.config.models.enums import WrongType
from waybill.config.models.expressions import IsPattern, group_names
from waybill.config.models.quantities import DurationBetween, SizeBetween, WholeNumberBetween
from waybill.config.models.schema_parsers import AvroParser, ProtobufParser, check_path
from waybill.config.models.sink import FilesFormat
from waybill.config.models.texts import IsColumnList, IsFieldDelimiter, IsQuote

_DEFAULT_PARSER = "json"
_PARSERS = ("json", "raw", "regex", "delimited", "msgpack", "avro", "protobuf", "python")
_CLASS_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_MAX_ERROR_CHARACTERS = 200


class JsonParser(Section):
    """Messages that are JSON objects."""

    name: Literal["json"] = Field("json", description="The parser.")
    event_time: EventTime = Field(description="The event time. A message without it goes to quarantine.")
    message_id: FieldPath | None = Field(
        None,
        description="Field path of the producer's message id. Without this key, or for a message without an id, the "
        "id is `<topic>/<partition>@<offset>`.",
    )


class MsgpackParser(Section):
    """Messages that are MessagePack maps."""

    name: Literal["msgpack"] = Field(description="The parser.")
    event_time: EventTime = Field(
        description="The event time. A message without it goes to quarantine. A MessagePack timestamp is read as it "
        "is, whatever the format."
    )
    message_id: FieldPath | None = Field(
        None,
        description="Field path of the producer's message id. Without this key, or for a message without an id, the "
        "id is `<topic>/<partition>@<offset>`.",
    )
    max_other_keys: Annotated[int, WholeNumberBetween(0, 1_000_000_000)] = Field(
        1000,
        description="A message with more keys of maps that are not text goes to quarantine. The time to read a map can "
        "grow with the square of their number.",
    )


class RawParser(Section):
    """Messages whose values are not read: the event time is Kafka's timestamp."""

    name: Literal["raw"] = Field(description="The parser.")


class RegexParser(Section):
    """Messages that are text (UTF-8), in which the groups of a pattern are the fields."""

    name: Literal["regex"] = Field(description="The parser.")
    pattern: Annotated[str, IsPattern()] = Field(
        description="The first match counts, anywhere in the message: `^` and `$` match its start and end, and `.` "
        "matches no line break. A message without a match goes to quarantine."
    )
    event_time: EventTime = Field(description="The event time. A message without it goes to quarantine.")
    message_id: FieldPath | None = Field(
        None,
        description="The group with the producer's message id. Without this key the id is "
        "`<topic>/<partition>@<offset>`.",
    )

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        _check_fields(self.event_time, self.message_id, "groups of the pattern", group_names(self.pattern))
        return self


class DelimitedParser(Section):
    """Messages that are one record each of delimited text (UTF-8): CSV, TSV."""

    name: Literal["delimited"] = Field(description="The parser.")
    columns: Annotated[tuple[str, ...], IsColumnList()] = Field(
        description="All fields of a message, in order. A message with more or fewer fields goes to quarantine."
    )
    delimiter: Annotated[str, IsFieldDelimiter()] = Field(",", description="The character between fields.")
    quote: Annotated[str | None, IsQuote()] = Field(
        '"',
        description="The character around a field that contains a delimiter or a line break. In such a field it is "
        "doubled.",
    )
    event_time: EventTime = Field(description="The event time. A message without it goes to quarantine.")
    message_id: FieldPath | None = Field(
        None,
        description="The column with the producer's message id. Without this key the id is "
        "`<topic>/<partition>@<offset>`.",
    )

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if self.quote == self.delimiter:
            raise section_error("quote", "must not be the delimiter as well")
        _check_fields(self.event_time, self.message_id, "columns", self.columns)
        return self


def _check_fields(event_time: EventTime, message_id: FieldPath | None, kind: str, known: Sequence[str]) -> None:
    """Raise an error unless the fields are among `known`, the names of a parser whose fields have plain names.

    A dot in a path is part of the name there. `kind`: what the message calls the names.
    """
    for at, path in ((("event_time", "field"), event_time.field), (("message_id",), message_id)):
        if path is not None and ".".join(path) not in known:
            raise section_error(at, f"must be one of the {kind}: {', '.join(known)}")


class _IsClassPath(ValueType):
    """The path that a class is imported from."""

    type_name = "class"
    allowed = "`package.module:Class`"

    def parse(self, value: Any) -> str:
        if not isinstance(value, str) or not _CLASS_PATH.fullmatch(value):
            raise ValueError("must be package.module:Class")
        return value


class PythonParser(Section):
    """Messages that a class of your own reads. The class is imported and created when the config is loaded."""

    model_config = ConfigDict(serialize_by_alias=True)

    name: Literal["python"] = Field(description="The parser.")
    class_path: Annotated[str, _IsClassPath()] = Field(
        alias="class",
        description="A class that implements `waybill.parsers.Parser`. Airflow and every Spark executor must be able "
        "to import it.",
    )
    options: dict[str, Any] = Field({}, description="Keyword arguments of its constructor.")

    @model_validator(mode="after")
    def _check_class(self) -> Self:
        try:
            make_parser(self.class_path, self.options)
        except ValueError as error:
            raise section_error("class", str(error)) from None
        return self


def make_parser(path: str, options: Mapping[str, Any]) -> Any:
    """Return an instance of the class at `path` (`package.module:Class`), created with `options` as keyword arguments.

    The instance has a callable `parse`, and a `name` that is text; its answers are checked when it parses. It is
    created once when the config is loaded, to report errors early, and again in every task. Raise `ValueError` with a
    message of one line.
    """
    parser_class = _import_class(path)
    if not isinstance(parser_class, type):
        raise ValueError(f"{path} is not a class but {_one_line(repr(parser_class))}")
    try:
        parser = parser_class(**options)
    # The user's code may raise anything. The config's error must still name line and key.
    except Exception as error:
        raise ValueError(f"{path} rejects its options: {_describe(error)}") from None
    if not callable(getattr(parser, "parse", None)):
        raise ValueError(f"{path} is not a parser: it has no method parse(messages)")
    name = getattr(parser, "name", None)
    if not isinstance(name, str) or not name:
        raise ValueError(f"{path} is not a parser: it has no name, which the quarantine shows as text")
    return parser


def _import_class(path: str) -> Any:
    module, _, names = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        raise ValueError(f"{module} cannot be imported: {_describe(error)}") from None
    for name in names.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise ValueError(f"the module {module} has no {names}") from None
    return found


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {_one_line(str(error))}"


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_ERROR_CHARACTERS else text[: _MAX_ERROR_CHARACTERS - 1] + "…"


def _parser_tag(value: Any) -> str:
    # Pydantic puts the tag into the locations of errors, where it must not look like a key: hence the space.
    name = value.get("name", _DEFAULT_PARSER) if isinstance(value, dict) else getattr(value, "name", _DEFAULT_PARSER)
    return f"parser {name}"


def _check_parser_name(value: Any) -> Any:
    name = value.get("name", _DEFAULT_PARSER) if isinstance(value, dict) else _DEFAULT_PARSER
    if name not in _PARSERS:
        *others, last = (repr(known) for known in _PARSERS)
        raise section_error("name", f"must be {', '.join(others)} or {last}")
    return value


ParserConfig = Annotated[
    Annotated[
        Annotated[JsonParser, Tag("parser json")]
        | Annotated[RawParser, Tag("parser raw")]
        | Annotated[RegexParser, Tag("parser regex")]
        | Annotated[DelimitedParser, Tag("parser delimited")]
        | Annotated[MsgpackParser, Tag("parser msgpack")]
        | Annotated[AvroParser, Tag("parser avro")]
        | Annotated[ProtobufParser, Tag("parser protobuf")]
        | Annotated[PythonParser, Tag("parser python")],
        Discriminator(_parser_tag),
    ],
    BeforeValidator(_check_parser_name),
]
"""The section `parser`: one model for each parser, chosen by `name`."""


class EventTimeBounds(Section):
    """How far an event time may be from the time at which a partition run is planned. Others go to quarantine."""

    past: Annotated[timedelta, DurationBetween("1h", "3650000d")] = Field(
        timedelta(days=7300), description="How old an event may be. `3650000d`: no bound."
    )
    future: Annotated[timedelta, DurationBetween("1m", "3650000d")] = Field(
        timedelta(days=1),
        description="How far in the future an event may be, for fast clocks and wrong time zones.",
    )


class MessageLimits(Section):
    """What one message may have. Others go to quarantine by their offset, without value and headers."""

    max_bytes: Annotated[ByteSize, SizeBetween("1KiB", "1GiB")] = Field(
        ByteSize(256 << 20),
        description="The size of key, value and headers, decompressed. A task needs several times as much memory.",
    )
    max_headers: Annotated[int, WholeNumberBetween(0, 1_000_000)] = Field(
        10_000, description="The number of headers. Each takes some 30 bytes of memory, even an empty one."
    )

    @property
    def both(self) -> tuple[int, int]:
        """The limits, in the order of `waybill.records.batches.limits.Limits`."""
        return int(self.max_bytes), self.max_headers


class ParseSettings(Section):
    """All settings that decide what a message becomes. A plan stores them, so that a retry writes the same rows."""

    parser: ParserConfig = Field(description="How a message is parsed.")
    columns: Columns = Field({}, description="The fields that become columns of the table.")
    event_time_bounds: EventTimeBounds = Field(EventTimeBounds(), description="The event times that are accepted.")
    message_limits: MessageLimits = Field(MessageLimits(), description="What one message may have.")
    files: FilesFormat | None = Field(
        None, description="The format of the files that rows are written to; none: rows are written to the table."
    )

    def document(self) -> dict[str, Any]:
        """Return the settings as a plan stores them.

        Limits at their defaults are left out: so an earlier Waybill, which does not know them, reads the plan.
        """
        found = self.model_dump(mode="json")
        for section, stored, key in (
            (self, found, "message_limits"),
            (self.parser, found["parser"], "limits"),
            (self.parser, found["parser"], "max_other_keys"),
        ):
            limit = type(section).model_fields.get(key)
            if limit is not None and getattr(section, key) == limit.default:
                del stored[key]
        return found


def check_columns(parser: ParserConfig, columns: Columns) -> None:
    """Raise an error at the key of a column that the parser cannot return."""
    if not columns:
        return
    if isinstance(parser, RawParser):
        raise section_error(
            "columns", "the parser raw does not read values: choose another parser, or remove the columns"
        )
    for name, column in columns.items():
        if isinstance(parser, PythonParser):
            _check_python_column(name, column)
        elif isinstance(parser, RegexParser):
            _check_text_column(name, column, "groups of the pattern", group_names(parser.pattern))
        elif isinstance(parser, DelimitedParser):
            _check_text_column(name, column, "columns", parser.columns)
        elif isinstance(parser, AvroParser | ProtobufParser):
            check_path(("columns", name, "field"), column.path(name), parser.missing_field)


def _check_python_column(name: str, column: Column) -> None:
    """Raise an error for a key other than `type`: the class returns the columns by name, and the errors itself."""
    for key, is_set in (
        ("field", column.field is not None),
        ("format", column.format is not None),
        ("wrong_type", column.wrong_type is not WrongType.QUARANTINE),
    ):
        if is_set:
            raise section_error(
                ("columns", name, key),
                "has no effect with the parser python, whose class returns the column: remove it",
            )


def _check_text_column(name: str, column: Column, kind: str, known: Sequence[str]) -> None:
    if ".".join(column.path(name)) not in known:
        raise section_error(("columns", name, "field"), f"must be one of the {kind}: {', '.join(known)}")
    if column.type.is_list:
        raise section_error(("columns", name, "type"), "a text field cannot be a list: use json or string")
