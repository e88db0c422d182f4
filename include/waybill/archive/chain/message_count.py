"""The number of messages in a record batch that belong to a backup object's range.

A batch that contains the object's first offset is kept whole, and readers clip it. So its messages before that offset
do not count.
"""

from __future__ import annotations

from waybill.records.batches import framing


def count_messages(frame: framing.Frame, first_offset: int, where: str) -> int:
    """Return how many messages of a batch have an offset at or after `first_offset`. Its CRC is not checked.

    The header shows it for nearly every batch. Only a batch that lacks offsets, and starts before `first_offset`, is
    decoded. `where` names the batch's origin in errors.

    Raises `CorruptBatch` when its records cannot be decoded.
    """
    header = frame.header
    if header.base_offset >= first_offset or not header.record_count:
        return header.record_count
    if header.is_dense:
        return max(header.next_offset - first_offset, 0)
    # numba takes a second to import, and a lane starts every minute.
    from waybill.records.batches.decode import decode_offsets

    return sum(
        len(found) for found in decode_offsets([frame], where=where, first_offset=first_offset, verify_crc=False)
    )
