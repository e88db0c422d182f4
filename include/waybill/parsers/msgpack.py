"""The parser `msgpack`: messages that are MessagePack maps, decoded by msgspec.

MessagePack leaves some cases open. If a key is given twice, the last value counts. A message goes to quarantine for
text that is not UTF-8, a timestamp that Python's datetime cannot hold, bytes after the map, or nesting beyond Python's
limit (about 900 levels). A field path leads through keys that are text; keys of other types are ignored.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from waybill.config import Columns, MsgpackParser
from waybill.parsers.documents import DocumentFormat, DocumentReader
from waybill.parsers.protocol import Parsed, Reason

__all__ = ["MsgpackMessages"]


class MsgpackMessages:
    """The parser `msgpack`: event time, message id and columns are found by field path."""

    name = "msgpack"

    def __init__(self, config: MsgpackParser, columns: Columns) -> None:
        self._reader = DocumentReader(config.event_time, config.message_id, _MSGPACK, columns)

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """See `Parser.parse`."""
        return self._reader.read(messages.column("value").to_pylist())


class Ext:
    """A value of an extension type. msgspec's own class shows its address: the reason for quarantine would change."""

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
