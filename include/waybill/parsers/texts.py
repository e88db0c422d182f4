"""Shared by the parsers of text: decode bytes, and convert the texts of fields to event times and message ids."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from waybill.config import EventTimeFormat
from waybill.parsers.protocol import Parsed, Reason, reason
from waybill.parsers.timestamps import convert_times

__all__ = ["NO_TEXT", "decode_utf8", "parse_fields", "scatter"]

NO_TEXT = pa.scalar(None, pa.string())


def decode_utf8(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return binary values as strings, and errors for those that are not UTF-8. In each row one of the two is null."""
    try:
        return values.cast(pa.string()), pa.nulls(len(values), pa.string())
    except pa.ArrowInvalid:  # one value is not UTF-8, and Arrow does not report which one
        pass
    texts: list[str | None] = []
    errors: list[str | None] = []
    for value in values.to_pylist():
        try:
            texts.append(value.decode())
            errors.append(None)
        except UnicodeDecodeError as error:
            texts.append(None)
            errors.append(reason(Reason.NOT_UTF8, f"{error.reason} at byte {error.start}"))
    return pa.array(texts, pa.string()), pa.array(errors, pa.string())


def parse_fields(
    times: pa.Array, ids: pa.Array | None, error: pa.Array, *, time_name: str, time_format: EventTimeFormat
) -> Parsed:
    """Return event times, ids and errors of messages from the texts of two fields. The arrays have one length.

    `times`: an empty text is a missing time. `ids`: an empty text is a missing id; None if no field has ids. `error`:
    earlier errors; the texts of a message with an error are ignored.
    """
    missing = pa.scalar(reason(Reason.EVENT_TIME_MISSING, f"field {time_name} is empty"))
    empty = pc.fill_null(pc.equal(times, ""), True)
    error = pc.coalesce(error, pc.if_else(empty, missing, NO_TEXT))
    ids = pa.nulls(len(times), pa.string()) if ids is None else pc.if_else(pc.equal(ids, ""), NO_TEXT, ids)
    if error.null_count == len(error):
        event_time, errors = convert_times(times, time_format)
        return Parsed(event_time, ids, _with_errors(error, errors))
    present = error.is_null()
    event_time, errors = convert_times(times.filter(present), time_format)
    new_errors = _with_errors(pa.nulls(len(event_time), pa.string()), errors)
    return Parsed(scatter(event_time, present), ids, pc.coalesce(error, scatter(new_errors, present)))


def _with_errors(error: pa.Array, errors: list[tuple[int, str]]) -> pa.Array:
    if not errors:
        return error
    texts = error.to_pylist()
    for index, message in errors:
        texts[index] = message
    return pa.array(texts, pa.string())


def scatter(array: pa.Array, present: pa.Array) -> pa.Array:
    """Return an array as long as `present`: the values of `array`, in order, in the rows that are true, else null."""
    counted = pc.cumulative_sum(present.cast(pa.int64()))
    return array.take(pc.if_else(present, pc.subtract(counted, 1), pa.scalar(None, pa.int64())))
