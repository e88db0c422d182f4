"""The parser that a stream's config names."""

from __future__ import annotations

from waybill.config import ParserConfig, RawParser
from waybill.parsers.json import JsonMessages
from waybill.parsers.protocol import Parser
from waybill.parsers.raw import RawMessages

__all__ = ["build_parser"]


def build_parser(config: ParserConfig) -> Parser:
    """A parser for messages as `config` describes them."""
    if isinstance(config, RawParser):
        return RawMessages()
    return JsonMessages(config)
