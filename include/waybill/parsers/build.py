"""A parser that somebody else wrote, held to what the protocol says of its answer: a wrong one loses no message.

The parser that a stream's config names.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from waybill.config import (
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
from waybill.config.parser_class import make_parser
from waybill.errors import ParserBroken
from waybill.parsers.delimited import DelimitedMessages
from waybill.parsers.json import JsonMessages
from waybill.parsers.msgpack import MsgpackMessages
from waybill.parsers.protocol import EVENT_TIME_TYPE, Parsed, Parser, arrow_type
from waybill.parsers.raw import RawMessages
from waybill.parsers.regex import RegexMessages
from waybill.parsers.timestamps import MAX_MICROSECONDS, MIN_MICROSECONDS

__all__ = ["CheckedParser", "build_parser"]

_TYPES = {"event_time": EVENT_TIME_TYPE, "message_id": pa.string(), "error": pa.string()}
_YEARS = "between the years 1 and 9999"


class CheckedParser:
    """Another parser, of which every answer is checked. A wrong one ends the run with nothing committed."""

    def __init__(self, parser: Parser, path: str, columns: Columns) -> None:
        self._parser = parser
        self._path = path
        self._columns = {name: arrow_type(column.type) for name, column in columns.items()}

    @property
    def name(self) -> str:
        """See `Parser.name`."""
        return self._parser.name

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """See `Parser.parse`. Raises `ParserBroken` if the parser raises, or answers as the protocol does not."""
        try:
            answer = self._parser.parse(messages)
        except Exception as error:
            raise ParserBroken(self._path, f"raised {type(error).__name__}: {error}") from error
        parsed = self._as_parsed(answer, messages.num_rows)
        self._check_rows(parsed)
        return parsed

    def _as_parsed(self, answer: object, n: int) -> Parsed:
        if not isinstance(answer, tuple) or len(answer) not in (len(_TYPES), len(Parsed._fields)):
            raise ParserBroken(self._path, f"gave a {type(answer).__name__}, not a Parsed")
        parsed = Parsed(*answer)
        for name, wanted in _TYPES.items():
            self._check_array(name, getattr(parsed, name), wanted, n)
        return parsed._replace(columns=self._checked_columns(parsed.columns, n))

    def _checked_columns(self, given: object, n: int) -> dict[str, pa.Array]:
        """Those that the config has. A class may give more: it is rolled out before the config is."""
        if not isinstance(given, Mapping):
            raise ParserBroken(self._path, f"gave a {type(given).__name__} as columns, not a mapping")
        for name, wanted in self._columns.items():
            if name not in given:
                raise ParserBroken(self._path, f"gave no column {name!r}, which the config has")
            self._check_array(f"column {name!r}", given[name], wanted, n)
            if wanted == EVENT_TIME_TYPE and _any(_out_of_range(given[name])):
                raise ParserBroken(
                    self._path, f"gave a time in column {name!r} that is not between the years 1 and 9999"
                )
        return {name: given[name] for name in self._columns}

    def _check_array(self, name: str, array: object, wanted: pa.DataType, n: int) -> None:
        if not isinstance(array, pa.Array) or array.type != wanted:
            found = array.type if isinstance(array, pa.Array) else type(array).__name__
            raise ParserBroken(self._path, f"gave {found} as {name}, not an array of {wanted}")
        if len(array) != n:
            raise ParserBroken(self._path, f"gave {len(array)} values of {name} for {n} messages")

    def _check_rows(self, parsed: Parsed) -> None:
        untold = pc.and_(parsed.event_time.is_null(), parsed.error.is_null())
        if _any(untold):
            raise ParserBroken(self._path, "gave neither an event time nor an error for a message")
        times = pc.if_else(parsed.error.is_null(), parsed.event_time, pa.scalar(None, EVENT_TIME_TYPE))
        if _any(_out_of_range(times)):
            raise ParserBroken(self._path, f"gave an event time that is not {_YEARS}")


def _out_of_range(times: pa.Array) -> pa.Array:
    microseconds = times.cast(pa.int64())
    return pc.or_(pc.less(microseconds, MIN_MICROSECONDS), pc.greater(microseconds, MAX_MICROSECONDS))


def _any(mask: pa.Array) -> bool:
    return bool(pc.any(mask).as_py())


_NO_COLUMNS: Columns = {}


def build_parser(config: ParserConfig, columns: Columns = _NO_COLUMNS) -> Parser:
    """A parser for messages as `config` describes them, that gives these columns."""
    if isinstance(config, RawParser):
        return RawMessages()
    if isinstance(config, RegexParser):
        return RegexMessages(config, columns)
    if isinstance(config, DelimitedParser):
        return DelimitedMessages(config, columns)
    if isinstance(config, MsgpackParser):
        return MsgpackMessages(config, columns)
    # Their libraries take a quarter of a second to import, and the job should begin at once: only where they are used.
    if isinstance(config, AvroParser):
        from waybill.parsers.avro.messages import AvroMessages

        return AvroMessages(config, columns)
    if isinstance(config, ProtobufParser):
        from waybill.parsers.protobuf import ProtobufMessages

        return ProtobufMessages(config, columns)
    if isinstance(config, PythonParser):
        return CheckedParser(make_parser(config.class_path, config.options), config.class_path, columns)
    return JsonMessages(config, columns)
