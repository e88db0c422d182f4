"""An example of a user's own parser, for `parser: {name: python, class: …}`."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from waybill.parsers.protocol import EVENT_TIME_TYPE, Parsed

_UNITS_US = {10: 1_000_000, 13: 1_000}


class KeyTime:
    """Reads the event time at the start of the Kafka key, `1357016400123:…`. It does not read the value.

    `digits`: 10 for seconds since 1970, 13 for milliseconds.
    """

    name = "key_time"

    def __init__(self, digits: int = 13) -> None:
        if digits not in _UNITS_US:
            raise ValueError("digits must be 10 (seconds) or 13 (milliseconds)")
        self._digits = digits

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """See `Parser.parse`."""
        keys = messages.column("key")
        # RE2 matches bytes like text. For a null key the result is null, which counts as no match.
        matching = pc.fill_null(pc.match_substring_regex(keys, rf"^[0-9]{{{self._digits}}}:"), False)
        digits = pc.binary_slice(pc.if_else(matching, keys, pa.scalar(None, pa.binary())), 0, self._digits)
        times = pc.multiply(digits.cast(pa.string()).cast(pa.int64()), _UNITS_US[self._digits]).cast(EVENT_TIME_TYPE)
        message = pa.scalar(f"no_key_time: the key does not start with {self._digits} digits and a colon")
        return Parsed(
            event_time=times,
            message_id=pa.nulls(len(keys), pa.string()),
            error=pc.if_else(matching, pa.scalar(None, pa.string()), message),
        )
