"""The parser `json`: messages that are JSON objects, read by the fastest of three readers that supports them.

All give equal results.

A compiled loop reads most messages of a stream without typed columns, msgspec most of the others, and orjson the rest.

JSON leaves some cases open. If a key is given twice, the last value counts. A message goes to quarantine for NaN and
Infinity, a byte order mark, bytes that are not UTF-8, a lone surrogate, or nesting beyond the 1,024 levels of orjson.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import orjson
import pyarrow as pa

from waybill.config.models import Column, JsonParser
from waybill.parsers.documents import DocumentFormat, DocumentReader, Getter
from waybill.parsers.named_fields import NamedFieldReader, Rows
from waybill.parsers.plain_json import PlainJsonReader
from waybill.parsers.protocol import Parsed, Reason, reason


class JsonMessages:
    """The parser `json`: event time, message id and columns are found by field path."""

    name = "json"

    def __init__(self, config: JsonParser, columns: Mapping[str, Column] = MappingProxyType({})) -> None:
        self._reader = DocumentReader(config.event_time, config.message_id, _JSON, columns)
        plain = None if columns else PlainJsonReader.for_fields(config.event_time, config.message_id)
        named = NamedFieldReader.for_fields(config.event_time, config.message_id, columns)
        self._quick: list[PlainJsonReader | NamedFieldReader] = [each for each in (plain, named) if each is not None]

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """See `Parser.parse`."""
        return self._read(messages.column("value"), self._quick)

    def _read(self, values: pa.Array, readers: Sequence[PlainJsonReader | NamedFieldReader]) -> Parsed:
        """Read messages by the first of `readers`, the messages that it leaves by the next, and the rest by orjson."""
        if not readers:
            return self._reader.read(values.to_pylist())
        found, rows = readers[0].read(values)
        if len(rows) == len(values):
            return found
        if not len(rows):
            return self._read(values, readers[1:])
        other_rows = np.setdiff1d(np.arange(len(values)), rows, assume_unique=True)
        others = self._read(values.take(pa.array(other_rows)), readers[1:])
        return _merge(found, rows, others, other_rows)


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
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def _read_verbatim(value: bytes) -> Any:
    """Decode a message with each number as it was written: `orjson.dumps` writes a fragment as it is."""
    try:
        return json.loads(value, parse_float=orjson.Fragment, parse_int=orjson.Fragment)
    except RecursionError:
        raise ValueError("nested too deeply") from None


_JSON = DocumentFormat(
    orjson.loads,
    (orjson.JSONDecodeError, RecursionError),
    Reason.NOT_JSON,
    Reason.NOT_AN_OBJECT,
    other_id=_number_text,
    read_exactly=_read_exactly,
    read_verbatim=_read_verbatim,
    base64_texts=True,
)
