"""What parsers of text share: bytes as text, and from the texts of fields to event times and message ids."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from waybill.config import EventTimeFormat
from waybill.parsers.protocol import Parsed, Reason, reason
from waybill.parsers.timestamps import convert

__all__ = ["NO_TEXT", "decode_utf8", "read_fields", "spread"]

NO_TEXT = pa.scalar(None, pa.string())


def decode_utf8(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Binary values as texts, and for those that are not UTF-8 an error; each array is null where the other is not."""
    try:
        return values.cast(pa.string()), pa.nulls(len(values), pa.string())
    except pa.ArrowInvalid:  # one of them; which one, Arrow does not say
        pass
    texts: list[str | None] = []
    errors: list[str | None] = []
    for value in values.to_pylist():
        try:
            texts.append(value.decode())
            errors.append(None)
        except UnicodeDecodeError as fault:
            texts.append(None)
            errors.append(reason(Reason.NOT_UTF8, f"{fault.reason} at byte {fault.start}"))
    return pa.array(texts, pa.string()), pa.array(errors, pa.string())


def read_fields(
    times: pa.Array, ids: pa.Array | None, error: pa.Array, *, time_name: str, written: EventTimeFormat
) -> Parsed:
    """From the texts of two fields of each message. All arrays are strings and of one length.

    `times`: an empty one is missing. `ids`: an empty one is none; None if there is no such field. `error`: what was
    wrong with a message before; its texts do not count.
    """
    missing = pa.scalar(reason(Reason.EVENT_TIME_MISSING, f"field {time_name} is empty"))
    empty = pc.fill_null(pc.equal(times, ""), True)
    error = pc.coalesce(error, pc.if_else(empty, missing, NO_TEXT))
    ids = pa.nulls(len(times), pa.string()) if ids is None else pc.if_else(pc.equal(ids, ""), NO_TEXT, ids)
    if error.null_count == len(error):
        event_time, faults = convert(times, written)
        return Parsed(event_time, ids, _with_faults(error, faults))
    present = error.is_null()
    event_time, faults = convert(times.filter(present), written)
    found = _with_faults(pa.nulls(len(event_time), pa.string()), faults)
    return Parsed(spread(event_time, present), ids, pc.coalesce(error, spread(found, present)))


def _with_faults(error: pa.Array, faults: list[tuple[int, str]]) -> pa.Array:
    if not faults:
        return error
    texts = error.to_pylist()
    for index, why in faults:
        texts[index] = why
    return pa.array(texts, pa.string())


def spread(array: pa.Array, present: pa.Array) -> pa.Array:
    """Put values to the rows that are present, in order; null to the others."""
    counted = pc.cumulative_sum(present.cast(pa.int64()))
    return array.take(pc.if_else(present, pc.subtract(counted, 1), pa.scalar(None, pa.int64())))
