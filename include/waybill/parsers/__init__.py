"""Parsers: they turn a batch of messages into event times, message ids, typed columns, and errors for quarantine."""

from waybill.parsers.build import build_parser
from waybill.parsers.protocol import Parsed, Parser, Reason

__all__ = ["Parsed", "Parser", "Reason", "build_parser"]
