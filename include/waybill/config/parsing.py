"""How a message is read: a model for each parser, chosen by its name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from waybill.config.columns import Column, Columns
from waybill.config.enums import WrongType
from waybill.config.event_time import EventTime, FieldPath
from waybill.config.model import Section, misfit
from waybill.config.parser_class import make_parser
from waybill.config.schema_parsers import AvroParser, ProtobufParser, check_path
from waybill.config.sink import FilesFormat
from waybill.config.values import (
    DurationBetween,
    IsClassPath,
    IsColumnList,
    IsFieldDelimiter,
    IsPattern,
    IsQuote,
    group_names,
)

__all__ = [
    "AvroParser",
    "DelimitedParser",
    "EventTime",
    "EventTimeBounds",
    "FieldPath",
    "JsonParser",
    "MsgpackParser",
    "ParserConfig",
    "ProtobufParser",
    "PythonParser",
    "RawParser",
    "Reading",
    "RegexParser",
    "check_columns",
]


class JsonParser(Section):
    """Messages that are JSON objects."""

    name: Literal["json"] = Field("json", description="The parser.")
    event_time: EventTime = Field(description="The event time. A message without it goes to quarantine.")
    message_id: FieldPath | None = Field(
        None,
        description="Field path of the producer's message id. Without one, or where a message has none, the id is "
        "`<topic>/<partition>@<offset>`.",
    )


class MsgpackParser(Section):
    """Messages that are MessagePack maps."""

    name: Literal["msgpack"] = Field(description="The parser.")
    event_time: EventTime = Field(
        description="The event time. A message without it goes to quarantine. A MessagePack timestamp is taken as it "
        "is, whatever the format."
    )
    message_id: FieldPath | None = Field(
        None,
        description="Field path of the producer's message id. Without one, or where a message has none, the id is "
        "`<topic>/<partition>@<offset>`.",
    )


class PythonParser(Section):
    """Messages that a class of your own reads. It is imported and tried when the config is loaded."""

    model_config = ConfigDict(serialize_by_alias=True)

    name: Literal["python"] = Field(description="The parser.")
    class_path: Annotated[str, IsClassPath()] = Field(
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
            raise misfit("class", str(error)) from None
        return self


class RawParser(Section):
    """Messages whose values are not looked at: the event time is Kafka's timestamp."""

    name: Literal["raw"] = Field(description="The parser.")


class RegexParser(Section):
    """Messages that are text (UTF-8) in which a pattern finds the fields."""

    name: Literal["regex"] = Field(description="The parser.")
    pattern: Annotated[str, IsPattern()] = Field(
        description="Its first match counts, wherever it is: `^` and `$` tie it to the ends, and `.` is no line break. "
        "A message without a match goes to quarantine."
    )
    event_time: EventTime = Field(description="The event time. A message without it goes to quarantine.")
    message_id: FieldPath | None = Field(
        None,
        description="The group with the producer's message id. Without one the id is `<topic>/<partition>@<offset>`.",
    )

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        _check_fields(self.event_time, self.message_id, "groups of the pattern", group_names(self.pattern))
        return self


class DelimitedParser(Section):
    """Messages that are one record each of delimited text (UTF-8): CSV, TSV."""

    name: Literal["delimited"] = Field(description="The parser.")
    columns: Annotated[tuple[str, ...], IsColumnList()] = Field(
        description="What a message's fields are, all of them, in order. One with more or fewer goes to quarantine."
    )
    delimiter: Annotated[str, IsFieldDelimiter()] = Field(",", description="What stands between the fields.")
    quote: Annotated[str | None, IsQuote()] = Field(
        '"',
        description="What stands around a field that holds a delimiter or a line break. In such a field it is doubled.",
    )
    event_time: EventTime = Field(description="The event time. A message without it goes to quarantine.")
    message_id: FieldPath | None = Field(
        None,
        description="The column with the producer's message id. Without one the id is `<topic>/<partition>@<offset>`.",
    )

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if self.quote == self.delimiter:
            raise misfit("quote", "must not be the delimiter as well")
        _check_fields(self.event_time, self.message_id, "columns", self.columns)
        return self


def _check_fields(event_time: EventTime, message_id: FieldPath | None, what: str, known: Sequence[str]) -> None:
    """Where fields have plain names, a dot in one is part of the name."""
    for at, path in ((("event_time", "field"), event_time.field), (("message_id",), message_id)):
        if path is not None and ".".join(path) not in known:
            raise misfit(at, f"must be one of the {what}: {', '.join(known)}")


def _parser_tag(value: Any) -> str:
    # As with topics: a tag must not look like a key.
    name = value.get("name", _DEFAULT_PARSER) if isinstance(value, dict) else getattr(value, "name", _DEFAULT_PARSER)
    return f"parser {name}"


def _check_parser_name(value: Any) -> Any:
    name = value.get("name", _DEFAULT_PARSER) if isinstance(value, dict) else _DEFAULT_PARSER
    if name not in _PARSERS:
        *others, last = (repr(known) for known in _PARSERS)
        raise misfit("name", f"must be {', '.join(others)} or {last}")
    return value


_DEFAULT_PARSER = "json"
_PARSERS = ("json", "raw", "regex", "delimited", "msgpack", "avro", "protobuf", "python")

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
"""How a message is read: one model for each parser, chosen by `name`."""


class EventTimeBounds(Section):
    """How far an event time may be from the time at which a run is planned. What is beyond goes to quarantine."""

    past: Annotated[timedelta, DurationBetween("1h", "3650000d")] = Field(
        timedelta(days=7300), description="How long ago an event may have been. `3650000d`: no bound."
    )
    future: Annotated[timedelta, DurationBetween("1m", "3650000d")] = Field(
        timedelta(days=1), description="How far ahead an event may be: clocks that are fast, or in a wrong zone."
    )


class Reading(Section):
    """All that decides what a message becomes. A plan holds it, so that a retry does the same by it."""

    parser: ParserConfig = Field(description="How a message is read.")
    columns: Columns = Field({}, description="Which fields become columns of the table.")
    event_time_bounds: EventTimeBounds = Field(EventTimeBounds(), description="Which event times there can be.")
    files: FilesFormat | None = Field(None, description="What the files are that the rows go to; none: the table.")


def check_columns(parser: ParserConfig, columns: Columns) -> None:
    """The columns must be such as the parser can fill. Raises a fault at the column's key."""
    if not columns:
        return
    if isinstance(parser, RawParser):
        raise misfit("columns", "the parser raw looks into no value: choose another parser, or leave the columns out")
    for name, column in columns.items():
        if isinstance(parser, PythonParser):
            _check_given_column(name, column)
        elif isinstance(parser, RegexParser):
            _check_text_column(name, column, "groups of the pattern", group_names(parser.pattern))
        elif isinstance(parser, DelimitedParser):
            _check_text_column(name, column, "columns", parser.columns)
        elif isinstance(parser, AvroParser | ProtobufParser):
            check_path(("columns", name, "field"), column.path(name), parser.missing_field)


def _check_given_column(name: str, column: Column) -> None:
    """A class of one's own gives the columns by name, and has itself to say what is wrong with a message."""
    for key, is_set in (
        ("field", column.field is not None),
        ("format", column.format is not None),
        ("wrong_type", column.wrong_type is not WrongType.QUARANTINE),
    ):
        if is_set:
            raise misfit(("columns", name, key), "means nothing to the parser python, whose class gives the column")


def _check_text_column(name: str, column: Column, what: str, known: Sequence[str]) -> None:
    if ".".join(column.path(name)) not in known:
        raise misfit(("columns", name, "field"), f"must be one of the {what}: {', '.join(known)}")
    if column.type.is_list:
        raise misfit(("columns", name, "type"), "a field of text is no list: take json, or string")
