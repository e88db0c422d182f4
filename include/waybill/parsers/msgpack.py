"""Messages that are MessagePack maps, read by msgspec.

What MessagePack leaves open is settled so: of a key that is there twice the last value counts; text that is not UTF-8,
a timestamp that Python's datetime cannot hold, and bytes after the map are not read, and neither is nesting beyond
Python's limit (some 900 levels). The message goes to quarantine. A field path leads through keys that are text; keys of
other types are passed over.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from waybill.config import Columns, MsgpackParser
from waybill.parsers.documents import Decoding, DocumentReader
from waybill.parsers.protocol import Parsed, Reason

__all__ = ["MsgpackMessages"]


class MsgpackMessages:
    """The parser `msgpack`: event time, message id and columns by field path."""

    name = "msgpack"

    def __init__(self, config: MsgpackParser, columns: Columns) -> None:
        self._reader = DocumentReader(config.event_time, config.message_id, _MSGPACK, columns)

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """See `Parser.parse`."""
        return self._reader.read(messages.column("value").to_pylist())


_MSGPACK = Decoding(
    msgspec.msgpack.Decoder().decode,
    # A key may be a list that holds a map, which Python cannot hash: a TypeError. A bad text is a ValueError.
    (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError, MemoryError),
    Reason.NOT_MSGPACK,
    Reason.NOT_A_MAP,
)
