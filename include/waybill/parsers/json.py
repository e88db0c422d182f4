"""The parser `json`: messages that are JSON objects. msgspec reads most of them, orjson the others, with equal results.

JSON leaves some cases open. If a key is given twice, the last value counts. A message goes to quarantine for NaN and
Infinity, a byte order mark, bytes that are not UTF-8, a lone surrogate, or nesting beyond the 1,024 levels of orjson.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import orjson
import pyarrow as pa

from waybill.config import Column, JsonParser
from waybill.parsers.documents import DocumentFormat, DocumentReader, Getter
from waybill.parsers.named_fields import NamedFieldReader, Rows
from waybill.parsers.protocol import Parsed, Reason, reason

__all__ = ["JsonMessages"]


class JsonMessages:
    """The parser `json`: event time, message id and columns are found by field path."""

    name = "json"

    def __init__(self, config: JsonParser, columns: Mapping[str, Column] = MappingProxyType({})) -> None:
        self._reader = DocumentReader(config.event_time, config.message_id, _JSON, columns)
        self._named = NamedFieldReader.for_fields(config.event_time, config.message_id, columns)

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """See `Parser.parse`."""
        values = messages.column("value")
        if self._named is None:
            return self._reader.read(values.to_pylist())
        by_msgspec, rows = self._named.read(values)
        other_rows = np.setdiff1d(np.arange(len(values)), rows, assume_unique=True)
        if not len(other_rows):
            return by_msgspec
        by_orjson = self._reader.read(values.take(pa.array(other_rows)).to_pylist())
        return _merge(by_msgspec, rows, by_orjson, other_rows)


def _merge(first: Parsed, first_rows: Rows, second: Parsed, second_rows: Rows) -> Parsed:
    """Return the results of two sets of messages as one result, in the order of the batch."""
    order = pa.array(np.argsort(np.concatenate([first_rows, second_rows])))

    def merge(one: pa.Array, other: pa.Array) -> pa.Array:
        return pa.concat_arrays([one, other]).take(order)

    return Parsed(
        merge(first.event_time, second.event_time),
        merge(first.message_id, second.message_id),
        merge(first.error, second.error),
        {name: merge(column, second.columns[name]) for name, column in first.columns.items()},
    )


def _number_text(found: Any, value: bytes, get: Getter) -> str | None:
    """Return a number as the producer wrote it. orjson reads a long integer as a float, which makes two ids equal."""
    if type(found) is not float:
        return None
    try:
        return str(get(json.loads(value, parse_float=str, parse_int=str)))
    except RecursionError:
        raise ValueError(reason(Reason.NOT_JSON, "nested too deeply to read the message id")) from None


def _decimal(text: str) -> Decimal | str:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent of twenty digits
        return text


_read_decimals = msgspec.json.Decoder(float_hook=_decimal).decode


def _read_exactly(value: bytes) -> Any:
    """Decode a message with exact decimals. orjson reads fractions, and integers of more than 64 bits, as floats."""
    try:
        return _read_decimals(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None


_JSON = DocumentFormat(
    orjson.loads,
    (orjson.JSONDecodeError, RecursionError),
    Reason.NOT_JSON,
    Reason.NOT_AN_OBJECT,
    other_id=_number_text,
    read_exactly=_read_exactly,
    base64_texts=True,
)
