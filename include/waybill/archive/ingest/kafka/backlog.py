"""An estimate of the bytes of a topic-partition that are not archived yet, from its offsets."""

from __future__ import annotations

from waybill.services.coordination import CommittedOffset
from waybill.services.kafka.kafka import LogRange

_ASSUMED_MESSAGE_BYTES = 1024
"""The assumed mean message size, if there is no object."""


def estimate_bytes(log_range: LogRange, committed: CommittedOffset | None) -> int:
    """Return the estimated bytes to archive: the lag times the mean message size in the last object."""
    start = log_range.earliest if committed is None else committed.committed_offset
    return max(0, log_range.end - start) * _mean_message_bytes(committed)


def _mean_message_bytes(committed: CommittedOffset | None) -> int:
    if committed is None or not committed.object_messages:
        return _ASSUMED_MESSAGE_BYTES
    return max(1, committed.object_bytes // committed.object_messages)
