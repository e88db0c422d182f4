"""Parsers: from messages to event times and message ids, by the batch, with an error for each message that has one."""

from waybill.parsers.build import build_parser
from waybill.parsers.protocol import Parsed, Parser, Reason

__all__ = ["Parsed", "Parser", "Reason", "build_parser"]
