"""The parser that a stream's config names."""

from __future__ import annotations

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
from waybill.parsers.checked import CheckedParser
from waybill.parsers.delimited import DelimitedMessages
from waybill.parsers.json import JsonMessages
from waybill.parsers.msgpack import MsgpackMessages
from waybill.parsers.protocol import Parser
from waybill.parsers.raw import RawMessages
from waybill.parsers.regex import RegexMessages

__all__ = ["build_parser"]

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
