"""Which record batches are archived: no control batches, and under `read_committed` none of an aborted transaction."""

from __future__ import annotations

from collections.abc import Iterator

from waybill.log import framing
from waybill.sources.kafka import Chunk

__all__ = ["archived_frames"]


def archived_frames(chunk: Chunk) -> Iterator[tuple[framing.Frame, bool]]:
    """Each batch of a chunk, and whether it is archived.

    As Kafka's own consumer decides (`CompletedFetch` in its Java client): a transaction of the chunk's list is open
    from its first offset until its producer id's abort marker; transactional batches of that producer id in between are
    left out. The list is that of this fetch response, so nothing is carried over to the next.
    """
    if not chunk.aborted:
        for frame in chunk.frames:
            yield frame, not frame.header.is_control
        return
    ahead, position, aborting = chunk.aborted, 0, set[int]()
    for frame in chunk.frames:
        header = frame.header
        while position < len(ahead) and ahead[position].first_offset < header.next_offset:
            aborting.add(ahead[position].producer_id)
            position += 1
        if header.is_control:
            if framing.is_abort_marker(frame, chunk.where):
                aborting.discard(header.producer_id)
            yield frame, False
        else:
            yield frame, not (header.is_transactional and header.producer_id in aborting)
