"""The parser `regex`: the fields of a text are the groups of a pattern, matched by RE2 in Arrow.

RE2's time is proportional to the length of the text, for any pattern, so no message can stop a run.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from waybill.config import Columns, RegexParser
from waybill.parsers.column_texts import TextColumns
from waybill.parsers.protocol import Parsed, Reason, reason
from waybill.parsers.texts import NO_TEXT, decode_utf8, parse_fields

__all__ = ["RegexMessages"]

_NOT_MATCHED = reason(Reason.PATTERN_NOT_FOUND, "the pattern is found nowhere in the message")


class RegexMessages:
    """The parser `regex`: event time, message id and columns are named groups of the pattern's first match."""

    name = "regex"

    def __init__(self, config: RegexParser, columns: Columns) -> None:
        self._columns = TextColumns(columns)
        self._pattern = config.pattern
        self._time_format = config.event_time.format
        self._time = ".".join(config.event_time.field)
        self._id = None if config.message_id is None else ".".join(config.message_id)

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """See `Parser.parse`."""
        texts, error = decode_utf8(messages.column("value"))
        groups = pc.extract_regex(texts, self._pattern)
        error = pc.coalesce(error, pc.if_else(groups.is_valid(), NO_TEXT, pa.scalar(_NOT_MATCHED)))
        times = pc.struct_field(groups, self._time)
        ids = None if self._id is None else pc.struct_field(groups, self._id)
        parsed = parse_fields(times, ids, error, time_name=self._time, time_format=self._time_format)
        return self._columns.add_to(parsed, {name: pc.struct_field(groups, name) for name in self._columns.fields()})
