"""The parser that a stream's config names."""

from __future__ import annotations

from waybill.config import DelimitedParser, MsgpackParser, ParserConfig, PythonParser, RawParser, RegexParser
from waybill.config.parser_class import make_parser
from waybill.parsers.checked import CheckedParser
from waybill.parsers.delimited import DelimitedMessages
from waybill.parsers.json import JsonMessages
from waybill.parsers.msgpack import MsgpackMessages
from waybill.parsers.protocol import Parser
from waybill.parsers.raw import RawMessages
from waybill.parsers.regex import RegexMessages

__all__ = ["build_parser"]


def build_parser(config: ParserConfig) -> Parser:
    """A parser for messages as `config` describes them."""
    if isinstance(config, RawParser):
        return RawMessages()
    if isinstance(config, RegexParser):
        return RegexMessages(config)
    if isinstance(config, DelimitedParser):
        return DelimitedMessages(config)
    if isinstance(config, MsgpackParser):
        return MsgpackMessages(config)
    if isinstance(config, PythonParser):
        return CheckedParser(make_parser(config.class_path, config.options), config.class_path)
    return JsonMessages(config)
