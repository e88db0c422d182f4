"""The parser that a stream's config names."""

from __future__ import annotations

from waybill.config import JsonParser
from waybill.parsers.json import JsonMessages
from waybill.parsers.protocol import Parser

__all__ = ["build_parser"]


def build_parser(config: JsonParser) -> Parser:
    """A parser for messages as `config` describes them."""
    return JsonMessages(config)
