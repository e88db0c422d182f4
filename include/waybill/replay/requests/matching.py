"""Select the messages of a request: those with one of its keys and a timestamp in its range."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from waybill.base.errors import CorruptBatch
from waybill.config.names import TopicPartition
from waybill.records.batches.limits import SET_ASIDE, is_beyond_limits
from waybill.replay.requests.message import ReplayedMessage


class WantedMessages:
    """The keys and the time range of a request."""

    def __init__(self, keys: Collection[bytes], from_ms: int, to_ms: int) -> None:
        """`from_ms` is included, `to_ms` is not; both are Kafka timestamps in epoch ms."""
        self.keys = tuple(sorted(keys))
        self.from_ms, self.to_ms = from_ms, to_ms
        self._key_set = pa.array(self.keys, pa.binary())
        time = pa.timestamp("us", tz="UTC")
        self._from, self._to = pa.scalar(from_ms * 1000, time), pa.scalar(to_ms * 1000, time)

    def select(self, tp: TopicPartition, messages: pa.RecordBatch) -> list[ReplayedMessage]:
        """Return the wanted messages of a batch of `records.decode.MESSAGE_SCHEMA`, in its order.

        A message without a timestamp or without a key is never wanted. Raises `CorruptBatch` for a wanted message that
        no reader can hold: its null value is no tombstone.
        """
        # Compare keys first: in most batches, no message has a wanted key.
        found = messages.filter(pc.is_in(messages.column("key"), value_set=self._key_set))
        if not found.num_rows:
            return []
        timestamps = found.column("timestamp")
        found = found.filter(pc.and_(pc.greater_equal(timestamps, self._from), pc.less(timestamps, self._to)))
        _check_complete(tp, found)
        columns = zip(
            found.column("offset").to_pylist(),
            found.column("timestamp").cast(pa.int64()).to_pylist(),
            found.column("key").to_pylist(),
            found.column("value").to_pylist(),
            found.column("headers").to_pylist(),
            strict=True,
        )
        return [
            ReplayedMessage(
                tp, offset, timestamp_us // 1000, key, value, tuple((each["key"], each["value"]) for each in headers)
            )
            for offset, timestamp_us, key, value, headers in columns
        ]


def _check_complete(tp: TopicPartition, found: pa.RecordBatch) -> None:
    """Raise `CorruptBatch` if a wanted message has no value here, since it is larger than any reader can hold."""
    if SET_ASIDE not in found.schema.names:
        return
    for offset, why in zip(found.column("offset").to_pylist(), found.column(SET_ASIDE).to_pylist(), strict=True):
        if why is not None and is_beyond_limits(why):
            raise CorruptBatch(str(tp), 0, f"offset {offset} cannot be replayed: {why}")
