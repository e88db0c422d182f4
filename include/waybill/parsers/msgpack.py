"""The parser `msgpack`: messages that are MessagePack maps, decoded by msgspec.

MessagePack leaves some cases open. If a key is given twice, the last value counts. A message goes to quarantine for
text that is not UTF-8, a timestamp that Python's datetime cannot hold, bytes after the map, or nesting beyond Python's
limit (about 900 levels). A field path leads through keys that are text; keys of other types are ignored, but a message
with very many of them is not read (`max_other_keys`).
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waybill.config.models import Columns, MsgpackParser
from waybill.parsers._msgpack_kernels import mark_many_other_keys
from waybill.parsers.documents import DocumentFormat, DocumentReader
from waybill.parsers.named_fields import content_of
from waybill.parsers.protocol import Parsed, Reason, reason


class MsgpackMessages:
    """The parser `msgpack`: event time, message id and columns are found by field path."""

    name = "msgpack"

    def __init__(self, config: MsgpackParser, columns: Columns) -> None:
        self._reader = DocumentReader(config.event_time, config.message_id, _MSGPACK, columns)
        self._most = config.max_other_keys
        self._too_many = reason(
            Reason.NOT_MSGPACK, f"its maps have more than {self._most:,} keys that are not text (max_other_keys)"
        )

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """See `Parser.parse`."""
        column = messages.column("value")
        marks = np.zeros(len(column), np.bool_)
        mark_many_other_keys(*content_of(column), self._most, marks)
        if not marks.any():
            return self._reader.read(column.to_pylist())
        values = [_UNREADABLE if mark else value for mark, value in zip(marks, column.to_pylist(), strict=True)]
        parsed = self._reader.read(values)
        return parsed._replace(error=pc.if_else(pa.array(marks), self._too_many, parsed.error))


_UNREADABLE = b""
"""Bytes that are no MessagePack message, in place of a message that must not be read."""


class Ext:
    """A value of an extension type. msgspec's own class shows its address: the reason for quarantine would change."""

    type_name = "an extension"

    def __init__(self, code: int, data: memoryview) -> None:
        self._code, self._size = code, len(data)

    def __repr__(self) -> str:
        return f"extension {self._code} of {self._size:,} bytes"


_MSGPACK = DocumentFormat(
    msgspec.msgpack.Decoder(ext_hook=Ext).decode,
    # TypeError: a key is a list that contains a map, which Python cannot hash. ValueError: a text is not UTF-8.
    (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError, MemoryError),
    Reason.NOT_MSGPACK,
    Reason.NOT_A_MAP,
)
