"""Messages that are JSON objects, read by orjson.

What JSON leaves open is settled so: of a key that is there twice the last value counts; NaN and Infinity, a byte order
mark, bytes that are not UTF-8 and lone surrogates are not JSON; nesting beyond orjson's limit of 1,024 levels is not
read. None of these stops a run: the message goes to quarantine.
"""

from __future__ import annotations

import json
from typing import Any

import orjson
import pyarrow as pa

from waybill.config import JsonParser
from waybill.parsers.documents import Decoding, DocumentReader, Getter
from waybill.parsers.protocol import Parsed, Reason, reason

__all__ = ["JsonMessages"]


class JsonMessages:
    """The parser `json`: event time and message id by field path."""

    name = "json"

    def __init__(self, config: JsonParser) -> None:
        self._reader = DocumentReader(config.event_time, config.message_id, _JSON)

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """See `Parser.parse`."""
        return self._reader.read(messages.column("value").to_pylist())


def _number_text(found: Any, value: bytes, get: Getter) -> str | None:
    """A number as the producer wrote it: orjson makes a float of a long integer, and two ids one."""
    if type(found) is not float:
        return None
    try:
        return str(get(json.loads(value, parse_float=str, parse_int=str)))
    except RecursionError:
        raise ValueError(reason(Reason.NOT_JSON, "nested too deeply to read the message id")) from None


_JSON = Decoding(
    orjson.loads, (orjson.JSONDecodeError, RecursionError), Reason.NOT_JSON, Reason.NOT_AN_OBJECT, _number_text
)
