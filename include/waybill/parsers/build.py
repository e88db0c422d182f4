"""The parser that a stream's config names."""

from __future__ import annotations

from waybill.config import DelimitedParser, MsgpackParser, ParserConfig, RawParser, RegexParser
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
    return JsonMessages(config)
