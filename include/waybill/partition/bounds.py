"""Event times that cannot be: so far in the past or the future that a clock, or a unit, must be wrong.

One such message would make a partition of its own, and ten thousand of them ten thousand. They go to quarantine.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from waybill.config import EventTimeBounds
from waybill.config.values import format_duration
from waybill.parsers.protocol import EVENT_TIME_TYPE, Parsed, Reason, reason
from waybill.parsers.timestamps import MAX_MICROSECONDS, MIN_MICROSECONDS

__all__ = ["EventTimeCheck"]

_MICROSECOND = timedelta(microseconds=1)
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


class EventTimeCheck:
    """Holds event times against the bounds of one plan: a retry, which carries out the same plan, finds the same."""

    def __init__(self, bounds: EventTimeBounds, planned_at: datetime) -> None:
        at_us = pa.scalar(planned_at, EVENT_TIME_TYPE).value
        # Beyond the years that there are, a bound means nothing.
        self._first_us = max(at_us - bounds.past // _MICROSECOND, MIN_MICROSECONDS)
        self._last_us = min(at_us + bounds.future // _MICROSECOND, MAX_MICROSECONDS)
        self._before = f" is before {_text(self._first_us)}, {format_duration(bounds.past)} before the run was planned"
        self._after = f" is after {_text(self._last_us)}, {format_duration(bounds.future)} after the run was planned"

    def check(self, parsed: Parsed) -> Parsed:
        """The same, but that what is out of bounds has an error, if it had none."""
        times_us = parsed.event_time.cast(pa.int64())
        found = pc.min_max(times_us)
        if not found["min"].is_valid or (
            found["min"].as_py() >= self._first_us and found["max"].as_py() <= self._last_us
        ):
            return parsed
        is_outside = pc.or_(pc.less(times_us, self._first_us), pc.greater(times_us, self._last_us))
        is_outside = pc.and_(is_outside.fill_null(False), parsed.error.is_null())
        why = self._why(parsed.event_time.filter(is_outside))
        return parsed._replace(error=pc.replace_with_mask(parsed.error, is_outside, why))

    def _why(self, times: pa.Array) -> pa.Array:
        bound = pc.if_else(pc.less(times.cast(pa.int64()), self._first_us), self._before, self._after)
        written = pc.strftime(times, format=_TIME_FORMAT)
        return pc.binary_join_element_wise(reason(Reason.EVENT_TIME_OUT_OF_BOUNDS, ""), written, bound, "")


def _text(at_us: int) -> str:
    return str(pc.strftime(pa.scalar(at_us, pa.int64()).cast(EVENT_TIME_TYPE), format=_TIME_FORMAT).as_py())
