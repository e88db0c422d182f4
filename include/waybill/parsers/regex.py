"""Messages that are text in which a pattern finds the fields, by RE2 in Arrow.

RE2 takes time in proportion to the text, whatever the pattern and the text: no message can hold up a run.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from waybill.config import Columns, RegexParser
from waybill.parsers.column_texts import TextColumns
from waybill.parsers.protocol import Parsed, Reason, reason
from waybill.parsers.texts import NO_TEXT, decode_utf8, read_fields

__all__ = ["RegexMessages"]

_NOT_MATCHED = reason(Reason.PATTERN_NOT_FOUND, "the pattern is found nowhere in the message")


class RegexMessages:
    """The parser `regex`: event time, message id and columns by named groups of the pattern's first match."""

    name = "regex"

    def __init__(self, config: RegexParser, columns: Columns) -> None:
        self._columns = TextColumns(columns)
        self._pattern = config.pattern
        self._format = config.event_time.format
        self._time = ".".join(config.event_time.field)
        self._id = None if config.message_id is None else ".".join(config.message_id)

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """See `Parser.parse`."""
        texts, error = decode_utf8(messages.column("value"))
        groups = pc.extract_regex(texts, self._pattern)
        error = pc.coalesce(error, pc.if_else(groups.is_valid(), NO_TEXT, pa.scalar(_NOT_MATCHED)))
        times = pc.struct_field(groups, self._time)
        ids = None if self._id is None else pc.struct_field(groups, self._id)
        parsed = read_fields(times, ids, error, time_name=self._time, written=self._format)
        return self._columns.add_to(parsed, {name: pc.struct_field(groups, name) for name in self._columns.fields()})
