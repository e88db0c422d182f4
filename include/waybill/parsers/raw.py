"""The parser `raw`: it reads Kafka's timestamp of a message, and not the message's value."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from waybill.parsers.protocol import EVENT_TIME_TYPE, Parsed, Reason, reason
from waybill.parsers.timestamps import MAX_MICROSECONDS, MIN_MICROSECONDS
from waybill.records.batches.message_rows import NO_TIMESTAMP_US

_NO_TIMESTAMP = reason(Reason.KAFKA_TIMESTAMP_MISSING, "the message has no Kafka timestamp")
_OUT_OF_RANGE = reason(Reason.EVENT_TIME_OUT_OF_RANGE, "the Kafka timestamp is not between the years 1 and 9999")


class RawMessages:
    """The parser `raw`: the event time is Kafka's timestamp, and messages have no ids."""

    name = "raw"

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """See `Parser.parse`."""
        times = messages.column("timestamp")
        microseconds = times.cast(pa.int64())
        out_of_range = pc.or_(pc.less(microseconds, MIN_MICROSECONDS), pc.greater(microseconds, MAX_MICROSECONDS))
        error = pc.if_else(out_of_range, pa.scalar(_OUT_OF_RANGE), pa.scalar(None, pa.string()))
        error = pc.if_else(pc.equal(microseconds, NO_TIMESTAMP_US), pa.scalar(_NO_TIMESTAMP), error)
        event_time = pc.if_else(error.is_valid(), pa.scalar(None, EVENT_TIME_TYPE), times)
        return Parsed(event_time, pa.nulls(messages.num_rows, pa.string()), error)
