"""What all targets of parsers share: a batch of messages, and what is true of every result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter

from waybill.config.models import Columns, ParserConfig
from waybill.parsers import Parsed, Parser
from waybill.parsers.protocol import EVENT_TIME_TYPE, Reason
from waybill.parsers.timestamps import MAX_MICROSECONDS, MIN_MICROSECONDS
from waybill.records.batches.message_rows import MESSAGE_SCHEMA

MAX_REASON_BYTES = 2_000
"""No reason for quarantine may be longer, whatever the message holds."""
_REASONS = set(Reason)


def parser_config(**keys: object) -> ParserConfig:
    """Return a parser's config from the keys of the YAML."""
    config: ParserConfig = TypeAdapter(ParserConfig).validate_python(keys)
    return config


def columns_of(**types: object) -> Columns:
    """Return columns from the YAML's short or long form."""
    found: Columns = TypeAdapter(Columns).validate_python(types)
    return found


def messages(values: Sequence[bytes], times_us: Sequence[int] = ()) -> pa.RecordBatch:
    """Return messages with these values."""
    n = len(values)
    times = pa.array(times_us or [0] * n, pa.int64()).cast(EVENT_TIME_TYPE)
    headers = pa.array([[]] * n, MESSAGE_SCHEMA.field("headers").type)
    arrays = [pa.array(range(n), pa.int64()), times, pa.nulls(n, pa.binary()), pa.array(values, pa.binary()), headers]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGE_SCHEMA)


def parse(parser: Parser, values: Sequence[bytes], columns: Columns | None = None) -> list[dict[str, Any]]:
    """Parse messages, check what is true of every result, and return it as a dict for each message.

    Each message must have the result that it has in any other batch: the same messages in the opposite order, and as a
    slice of a larger batch, give the same.
    """
    batch = messages(values)
    found = parser.parse(batch)
    check_parsed(found, len(values), columns)
    rows = rows_of(found)
    turned = messages([b"before", *reversed(values), b"after"]).slice(1, len(values))
    again = rows_of(parser.parse(turned))
    again.reverse()
    for value, one, other in zip(values, rows, again, strict=True):
        assert repr(one) == repr(other), f"the result depends on the batch: {value!r}: {one} and {other}"
    return rows


def check_parsed(parsed: Parsed, n: int, columns: Columns | None = None) -> None:
    """Check a result: a time or an error for each message, valid text, times in range, reasons of bounded size."""
    arrays = [parsed.event_time, parsed.message_id, parsed.error, *parsed.columns.values()]
    assert [array.type for array in arrays[:3]] == [EVENT_TIME_TYPE, pa.string(), pa.string()]
    assert set(parsed.columns) == set(columns or ())
    for array in arrays:
        assert len(array) == n
        array.validate(full=True)
    assert pc.all(pc.or_(parsed.event_time.is_valid(), parsed.error.is_valid())).as_py()
    times = parsed.event_time.cast(pa.int64()).drop_null().to_pylist()
    assert all(MIN_MICROSECONDS <= time <= MAX_MICROSECONDS for time in times)
    for text in parsed.error.drop_null().to_pylist():
        assert text.partition(":")[0] in _REASONS, text[:200]
        assert len(text.encode()) <= MAX_REASON_BYTES, f"a reason of {len(text):,} characters: {text[:200]}"


def rows_of(parsed: Parsed) -> list[dict[str, Any]]:
    """Return a result row by row: `time` in microseconds, `id`, `error`, and the columns."""
    fields = {"time": parsed.event_time.cast(pa.int64()), "id": parsed.message_id, "error": parsed.error}
    names = [*fields, *parsed.columns]
    values = [array.to_pylist() for array in (*fields.values(), *parsed.columns.values())]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
    # In a row with an error, the other values have no meaning.
    return [row if row["error"] is None else {"time": None, "id": None, "error": row["error"]} for row in rows]
