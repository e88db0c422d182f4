"""The object that stands in a chain for an accepted hole: no message, and the hole's range.

It makes the decision safe as well as visible. Whoever would still put messages there, such as a lane that was asleep
since before the decision, is refused by S3 as anywhere in the protocol; and every reader of the chain, Kafka's own
tools among them, goes over exactly that range.
"""

from __future__ import annotations

from waybill.gaps import Gap
from waybill.ingest.backup_object import BackupObject
from waybill.log import framing

__all__ = ["fill"]


def fill(target: BackupObject, gap: Gap) -> None:
    """Create the object, which was begun at the hole's start. Raises `ObjectAlreadyThere` or `StoreUnavailable`."""
    offset = gap.first_offset
    while offset < gap.next_offset:
        reach = min(gap.next_offset, offset + framing.MAX_OFFSETS_IN_BATCH)
        # No leader epoch: after a hole there is nothing in the log that the next batch must follow on.
        batch = memoryview(framing.empty_batch(offset, reach, leader_epoch=-1))
        target.begin_chunk(batch)
        for frame in framing.frames(batch, where=str(gap)):
            target.take(frame, archived=False)
        offset = reach
    target.complete()
