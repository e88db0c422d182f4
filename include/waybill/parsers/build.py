"""Create the parser that a stream's config names, with a wrapper that isolates its faults.

A built-in parser reads messages one by one. If it raises, which it never should, the batch is cut in half until the
messages that make it raise are found (`IsolatingParser`). A user's parser class parses whole batches, and may get each
batch only once. If it raises, the run ends and commits nothing (`CheckedParser`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from waybill.base.errors import ParserBroken, UnexpectedFailure, WaybillError
from waybill.config.models import (
    AvroParser,
    Columns,
    DelimitedParser,
    MsgpackParser,
    ParserConfig,
    ProtobufParser,
    PythonParser,
    RawParser,
    RegexParser,
)
from waybill.config.models.parsing import make_parser
from waybill.parsers.json import JsonMessages
from waybill.parsers.msgpack import MsgpackMessages
from waybill.parsers.protocol import EVENT_TIME_TYPE, Parsed, Parser, Reason, arrow_type, reason
from waybill.parsers.raw import RawMessages
from waybill.parsers.text import DelimitedMessages, RegexMessages
from waybill.parsers.timestamps import MAX_MICROSECONDS, MIN_MICROSECONDS

logger = logging.getLogger(__name__)

_TYPES = {"event_time": EVENT_TIME_TYPE, "message_id": pa.string(), "error": pa.string()}
_YEARS = "between the years 1 and 9999"
_NO_COLUMNS: Columns = {}


def build_parser(config: ParserConfig, columns: Columns = _NO_COLUMNS) -> Parser:
    """Return the parser of `config`, which parses messages to the configured columns."""
    if isinstance(config, PythonParser):
        return CheckedParser(make_parser(config.class_path, config.options), config.class_path, columns)
    return IsolatingParser(_build_built_in(config, columns), columns)


def _build_built_in(config: ParserConfig, columns: Columns) -> Parser:
    if isinstance(config, RawParser):
        return RawMessages()
    if isinstance(config, RegexParser):
        return RegexMessages(config, columns)
    if isinstance(config, DelimitedParser):
        return DelimitedMessages(config, columns)
    if isinstance(config, MsgpackParser):
        return MsgpackMessages(config, columns)
    # The libraries of Avro and Protobuf take a quarter of a second to import, so only their parsers import them.
    if isinstance(config, AvroParser):
        from waybill.parsers.avro.messages import AvroMessages

        return AvroMessages(config, columns)
    if isinstance(config, ProtobufParser):
        from waybill.parsers.protobuf import ProtobufMessages

        return ProtobufMessages(config, columns)
    assert not isinstance(config, PythonParser)
    return JsonMessages(config, columns)


class IsolatingParser:
    """A built-in parser. A message at which it raises gets the reason `parser_failed`, and the others are parsed.

    The search parses each failing message about as often as the batch can be halved: 14 times for 10,000 messages.
    """

    def __init__(self, parser: Parser, columns: Columns) -> None:
        self._parser = parser
        self._columns = {name: arrow_type(column.type) for name, column in columns.items()}
        self._is_logged = False

    @property
    def name(self) -> str:
        """See `Parser.name`."""
        return self._parser.name

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """See `Parser.parse`. Errors of Waybill concern all messages, such as a registry that does not answer."""
        try:
            return self._parser.parse(messages)
        except WaybillError:
            raise
        except Exception as error:
            if messages.num_rows > 1:
                half = messages.num_rows // 2
                return _concat(self.parse(messages.slice(0, half)), self.parse(messages.slice(half)))
            return self._failed(messages, error)

    def _failed(self, messages: pa.RecordBatch, error: Exception) -> Parsed:
        place = f"{messages.column('offset')[0]}" if "offset" in messages.schema.names else "a message"
        if not self._is_logged:  # the stack trace of one message of a task is enough, and of a million too much
            logger.error("the parser %s raised at offset %s", self.name, place, exc_info=error)
            self._is_logged = True
        failure = UnexpectedFailure(f"parser {self.name}", error)
        detail = f"{failure.kind} at {failure.place}: {error}"
        return Parsed(
            pa.nulls(1, EVENT_TIME_TYPE),
            pa.nulls(1, pa.string()),
            pa.array([reason(Reason.PARSER_FAILED, detail)], pa.string()),
            {name: pa.nulls(1, kind) for name, kind in self._columns.items()},
        )


def _concat(first: Parsed, second: Parsed) -> Parsed:
    """Return the results of two halves of a batch as those of the batch."""
    return Parsed(
        pa.concat_arrays([first.event_time, second.event_time]),
        pa.concat_arrays([first.message_id, second.message_id]),
        pa.concat_arrays([first.error, second.error]),
        {name: pa.concat_arrays([column, second.columns[name]]) for name, column in first.columns.items()},
    )


class CheckedParser:
    """Checks every result of a user's parser. A wrong result ends the run before a commit, so no message is lost."""

    def __init__(self, parser: Parser, path: str, columns: Columns) -> None:
        self._parser = parser
        self._path = path
        self._columns = {name: arrow_type(column.type) for name, column in columns.items()}

    @property
    def name(self) -> str:
        """See `Parser.name`."""
        return self._parser.name

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """See `Parser.parse`. Raise `ParserBroken` if the parser raises or breaks the interface."""
        try:
            result = self._parser.parse(messages)
        except Exception as error:
            raise ParserBroken(self._path, f"raised {type(error).__name__}: {error}") from error
        parsed = self._as_parsed(result, messages.num_rows)
        self._check_rows(parsed)
        return parsed

    def _as_parsed(self, result: object, n: int) -> Parsed:
        if not isinstance(result, tuple) or len(result) not in (len(_TYPES), len(Parsed._fields)):
            raise ParserBroken(self._path, f"returned a {type(result).__name__}, not a Parsed")
        parsed = Parsed(*result)
        for name, expected in _TYPES.items():
            self._check_array(name, getattr(parsed, name), expected, n)
        return parsed._replace(columns=self._checked_columns(parsed.columns, n))

    def _checked_columns(self, columns: object, n: int) -> dict[str, pa.Array]:
        """Return the configured columns. The class may return more: it is deployed before the config is changed."""
        if not isinstance(columns, Mapping):
            raise ParserBroken(self._path, f"returned a {type(columns).__name__} as columns, not a mapping")
        for name, expected in self._columns.items():
            if name not in columns:
                raise ParserBroken(self._path, f"returned no column {name!r}, which the config has")
            self._check_array(f"column {name!r}", columns[name], expected, n)
            if expected == EVENT_TIME_TYPE and _any(_out_of_range(columns[name])):
                raise ParserBroken(self._path, f"returned a time in column {name!r} that is not {_YEARS}")
        return {name: columns[name] for name in self._columns}

    def _check_array(self, name: str, array: object, expected: pa.DataType, n: int) -> None:
        if not isinstance(array, pa.Array) or array.type != expected:
            found = array.type if isinstance(array, pa.Array) else type(array).__name__
            raise ParserBroken(self._path, f"returned {found} as {name}, not an array of {expected}")
        if len(array) != n:
            raise ParserBroken(self._path, f"returned {len(array)} values of {name} for {n} messages")

    def _check_rows(self, parsed: Parsed) -> None:
        neither = pc.and_(parsed.event_time.is_null(), parsed.error.is_null())
        if _any(neither):
            raise ParserBroken(self._path, "returned neither an event time nor an error for a message")
        times = pc.if_else(parsed.error.is_null(), parsed.event_time, pa.scalar(None, EVENT_TIME_TYPE))
        if _any(_out_of_range(times)):
            raise ParserBroken(self._path, f"returned an event time that is not {_YEARS}")


def _out_of_range(times: pa.Array) -> pa.Array:
    microseconds = times.cast(pa.int64())
    return pc.or_(pc.less(microseconds, MIN_MICROSECONDS), pc.greater(microseconds, MAX_MICROSECONDS))


def _any(mask: pa.Array) -> bool:
    return bool(pc.any(mask).as_py())
