"""Convert archived record batches to batches that a producer can send, to restore them to a topic.

A broker assigns offsets and the leader epoch when it appends a batch. The producer's fields (id, epoch, sequence) must
be those of the sending producer, and a client can send neither LogAppendTime nor a batch that lacks offsets
(`LogValidator` of Kafka's broker). So:

- `stamp` rewrites the header of a batch, and keeps its records section unchanged, compressed or not.
- `renumber` builds a batch anew from some of its records: at the edges of a range, after compaction, and for
  LogAppendTime. Keys, values and headers are copied byte for byte, and the codec remains.

The transactional bit is removed: the archive holds only committed messages, and the restore needs no transaction.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import crc32c

from waybill.base.errors import CorruptBatch
from waybill.records.batches.framing import (
    BATCH_MAGIC,
    HEADER_BYTES,
    BatchHeader,
    Codec,
    Frame,
    TimestampType,
    pack_batch,
    read_header,
)

_FRONT = struct.Struct(">qiibI")
_CHECKED = struct.Struct(">hiqqqhii")
_NO_EPOCH = -1
_SEQUENCE_MASK = (1 << 31) - 1
_CODEC_MASK = 0x07
_MOST_RECORD_BYTES = 256 << 20
"""The limit for batches that are built again: they are decompressed as a whole, and a few kilobytes can hold
gigabytes."""


class Producer(NamedTuple):
    """The identity with which an idempotent producer sends batches (KIP-98)."""

    producer_id: int
    epoch: int

    def sequence(self, index: int) -> int:
        """Return the sequence number of the message at an index. As in Kafka, it starts again at 0 after 2^31 - 1."""
        return index & _SEQUENCE_MASK


def is_sendable(header: BatchHeader, first_offset: int, next_offset: int) -> bool:
    """Return whether `stamp` can send the batch: its range is within the given one, and no offset is missing."""
    return (
        header.is_dense
        and header.timestamp_type is TimestampType.CREATE_TIME
        and first_offset <= header.base_offset
        and header.next_offset <= next_offset
    )


def stamp(frame: Frame, producer: Producer, index: int) -> bytes:
    """Return the batch with a new header for the producer. `index`: the number of messages that it has sent before.

    The batch must have been checked (`check_crc`), and `is_sendable`.
    """
    header = frame.header
    # A delete horizon is a base timestamp for the log cleaner alone; timestamps are still relative to it.
    attributes = header.attributes & _CODEC_MASK
    checked = _CHECKED.pack(
        attributes,
        header.last_offset_delta,
        header.base_timestamp_ms,
        header.max_timestamp_ms,
        producer.producer_id,
        producer.epoch,
        producer.sequence(index),
        header.record_count,
    )
    records = frame.data[HEADER_BYTES:]
    crc = crc32c.crc32c(records, crc32c.crc32c(checked))
    return b"".join((_FRONT.pack(0, header.batch_length, _NO_EPOCH, BATCH_MAGIC, crc), checked, records))


def renumber(
    frame: Frame,
    first_offset: int,
    next_offset: int,
    where: str,
    *,
    max_batch_bytes: int = _MOST_RECORD_BYTES,
) -> Frame | None:
    """Return a batch of the records with an offset in `[first_offset, next_offset)`, without missing offsets.

    Returns None if there is no such record. The batch must have been checked (`check_crc`). The records keep their
    order, and each keeps the timestamp that a consumer sees. `where` names the object in errors.

    Raises `CorruptBatch` when the records are malformed, or take more than `max_batch_bytes`.
    """
    import numpy as np  # numba takes a second to import, and a restore of whole batches needs neither

    from waybill.records.batches import _kernels as kernels

    header = frame.header
    if not header.record_count:
        return None
    source = np.frombuffer(_records(frame, where, max_batch_bytes), np.uint8)
    batch = np.zeros(kernels.BATCH_COLUMNS, np.int64)
    is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    batch[kernels.END] = len(source)
    batch[kernels.BASE_OFFSET] = header.base_offset
    batch[kernels.LAST_DELTA] = header.last_offset_delta
    batch[kernels.BASE_TIMESTAMP] = header.base_timestamp_ms
    batch[kernels.APPEND_TIME] = header.max_timestamp_ms
    batch[kernels.IS_APPEND_TIME] = is_append_time
    batch[kernels.COUNT] = header.record_count
    target = np.empty(len(source), np.uint8)
    result = np.zeros(kernels.RENUMBERED_FIELDS, np.int64)
    kernels.renumber(source, batch, np.array([first_offset, next_offset]), target, result)
    if result[kernels.RENUMBER_FAULT]:
        raise CorruptBatch(where, frame.position, "its records are malformed")
    kept = int(result[kernels.KEPT])
    if not kept:
        return None
    new_header = header._replace(
        attributes=header.attributes & _CODEC_MASK,
        last_offset_delta=kept - 1,
        base_timestamp_ms=header.max_timestamp_ms if is_append_time else header.base_timestamp_ms,
        max_timestamp_ms=int(result[kernels.MAX_TIMESTAMP]),
        record_count=kept,
    )
    data = pack_batch(new_header, _compressed(header.codec, target.data[: int(result[kernels.WRITTEN])]))
    return Frame(frame.position, read_header(data, 0, where), memoryview(data))


def _compressed(codec: Codec, records: memoryview) -> bytes:
    from waybill.records.batches.compression import compress

    return compress(codec, records)


def _records(frame: Frame, where: str, max_batch_bytes: int) -> memoryview:
    """Return the records section, decompressed. The decompressed size is unknown, so the output grows until it fits."""
    from waybill.records.batches.compression import BadCompression, OutputTooSmall, decompress_into

    body = frame.data[HEADER_BYTES:]
    if frame.header.codec is Codec.NONE:
        return body
    room = max(8 * len(body), 64 << 10)
    while True:
        output = memoryview(bytearray(min(room, max_batch_bytes)))
        try:
            return output[: decompress_into(frame.header.codec, body, output)]
        except BadCompression as error:
            raise CorruptBatch(where, frame.position, f"records cannot be decompressed ({error})") from None
        except OutputTooSmall:
            if room >= max_batch_bytes:
                raise CorruptBatch(
                    where,
                    frame.position,
                    f"the batch of offsets {frame.header.base_offset}–{frame.header.next_offset - 1} holds more than "
                    f"{max_batch_bytes:,} bytes of records, and would have to be built again. It can be restored as it "
                    f"is, if it lacks no offset: give ranges that do not begin or end within it; or leave it out",
                ) from None
            room *= 4
