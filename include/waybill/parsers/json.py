"""Messages that are JSON objects, read by orjson; the usual ones among them, with the same result, by msgspec.

What JSON leaves open is settled so: of a key that is there twice the last value counts; NaN and Infinity, a byte order
mark, bytes that are not UTF-8 and lone surrogates are not JSON; nesting beyond orjson's limit of 1,024 levels is not
read. None of these stops a run: the message goes to quarantine.
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
from waybill.parsers.documents import Decoding, DocumentReader, Getter
from waybill.parsers.named_fields import NamedFieldReader, Rows
from waybill.parsers.protocol import Parsed, Reason, reason

__all__ = ["JsonMessages"]


class JsonMessages:
    """The parser `json`: event time, message id and columns by field path."""

    name = "json"

    def __init__(self, config: JsonParser, columns: Mapping[str, Column] = MappingProxyType({})) -> None:
        self._reader = DocumentReader(config.event_time, config.message_id, _JSON, columns)
        self._named = NamedFieldReader.of(config.event_time, config.message_id, columns)

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """See `Parser.parse`."""
        values = messages.column("value")
        if self._named is None:
            return self._reader.read(values.to_pylist())
        usual, rows = self._named.read(values)
        others = np.setdiff1d(np.arange(len(values)), rows, assume_unique=True)
        if not len(others):
            return usual
        return _together(usual, rows, self._reader.read(values.take(pa.array(others)).to_pylist()), others)


def _together(usual: Parsed, rows: Rows, unusual: Parsed, others: Rows) -> Parsed:
    """Two answers as one, each message where it was."""
    place = pa.array(np.argsort(np.concatenate([rows, others])))

    def join(one: pa.Array, other: pa.Array) -> pa.Array:
        return pa.concat_arrays([one, other]).take(place)

    return Parsed(
        join(usual.event_time, unusual.event_time),
        join(usual.message_id, unusual.message_id),
        join(usual.error, unusual.error),
        {name: join(column, unusual.columns[name]) for name, column in usual.columns.items()},
    )


def _number_text(found: Any, value: bytes, get: Getter) -> str | None:
    """A number as the producer wrote it: orjson makes a float of a long integer, and two ids one."""
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
    """orjson makes a float of each number with a fraction, and of a whole one of more than 64 bits."""
    try:
        return _read_decimals(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None


_JSON = Decoding(
    orjson.loads,
    (orjson.JSONDecodeError, RecursionError),
    Reason.NOT_JSON,
    Reason.NOT_AN_OBJECT,
    other_id=_number_text,
    read_exactly=_read_exactly,
    base64_texts=True,
)
