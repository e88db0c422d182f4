"""Read one backup object of any format: a checked summary, its messages, or only their offsets.

An object of the format `kafka` consists of record batches and needs nothing else. Objects of the other formats are read
together with their index object (`waybill.archive.chain.indexed_reader`).

This module imports neither numba nor pyarrow, which take a second: an ingest lane starts every minute and only needs
`inspect_object`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from waybill.archive.chain.gaps import GAP_METADATA_KEY
from waybill.archive.chain.message_count import count_messages
from waybill.base.errors import ChainBroken, CorruptBatch, ObjectMissing
from waybill.config.names import BackupName
from waybill.records.batches import framing
from waybill.records.shards.checkpoint_batch import SlotState, read_checkpoint_batch
from waybill.services.store import Store, StoredObject

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ObjectSummary:
    """The content of a backup object in figures. Times are milliseconds since 1970 UTC."""

    next_offset: int
    """The offset after the last one of the object's last batch."""
    messages: int
    batches: int
    """The number of record batches; 0 for a format that has none."""
    size_bytes: int
    leader_epoch: int
    """The leader epoch of the last batch; -1 if Kafka did not set one."""
    min_timestamp_ms: int
    """The lowest base timestamp of a batch with messages; -1 if no batch has messages."""
    max_timestamp_ms: int
    """The highest timestamp; -1 if no batch has messages."""
    is_gap_marker: bool = False
    """Whether the object stands for an accepted gap."""
    slot_state: SlotState | None = None
    """The content of the checkpoint batch, for an object of a Kinesis slot."""


def inspect_object(store: Store, name: BackupName, key: str) -> ObjectSummary:
    """Read a whole object in little memory, check every CRC and the order of offsets, and return its summary.

    Raises `ChainBroken` when the object is missing, damaged, or holds no offset at or after the one in its name.
    """
    try:
        summary = _summarise_indexed(store, key) if name.extension.is_indexed else _summarise_batches(store, name, key)
    except (CorruptBatch, ObjectMissing) as error:
        raise ChainBroken(f"{name.topic}/{name.partition}: {error}") from error
    if summary is None or summary.next_offset <= name.first_offset:
        content = "no record batch" if summary is None else f"only offsets below {summary.next_offset}"
        raise ChainBroken(f"{name.topic}/{name.partition}: {key} holds {content}")
    return summary


def read_next_offset(store: Store, stored: StoredObject) -> int:
    """Return where an object ends, from its last record batch. Raises `ChainBroken` as `inspect_object` does."""
    return inspect_object(store, stored.name, stored.key).next_offset


def read_messages(
    store: Store, key: str, *, first_offset: int | None = None, next_offset: int | None = None
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the messages of an object with offsets in `[first_offset, next_offset)`, in order of offset.

    The batches are of `MESSAGE_SCHEMA`, with the column `SET_ASIDE` as in `IndexedReader.messages`; that column also
    marks messages that no reader can hold (`records.limits.LARGEST`). An object whose key is not a backup object's,
    such as a copy, is read as record batches. Close the generator to end before the last one.

    Raises `CorruptBatch` when the object or its index is damaged, `ObjectMissing` when there is no object.
    """
    if _is_indexed(key):
        from waybill.archive.chain.indexed_reader import IndexedReader

        with IndexedReader(store, key) as reader:
            yield from reader.messages(first_offset=first_offset, next_offset=next_offset)
        return
    from waybill.records.batches.decode import decode

    with store.open(key) as stream:
        frames = framing.read_frames(stream, key)
        yield from decode(frames, where=key, first_offset=first_offset, next_offset=next_offset, set_aside=True)


def read_offsets(
    store: Store, key: str, *, first_offset: int | None = None, next_offset: int | None = None
) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
    """Yield the offsets of the messages in `[first_offset, next_offset)`, as int64 arrays.

    CRCs are not checked. Offsets of a format with an index come from the index, and the object's content is not read.

    Raises `CorruptBatch` when the object or its index is damaged, `ObjectMissing` when there is no object.
    """
    if _is_indexed(key):
        from waybill.archive.chain.indexed_reader import IndexedReader

        with IndexedReader(store, key) as reader:
            yield from reader.offsets(first_offset=first_offset, next_offset=next_offset)
        return
    from waybill.records.batches.decode import decode_offsets

    with store.open(key) as stream:
        yield from decode_offsets(
            framing.read_frames(stream, key),
            where=key,
            first_offset=first_offset,
            next_offset=next_offset,
            verify_crc=False,
        )


def _is_indexed(key: str) -> bool:
    try:
        return BackupName.parse(key).extension.is_indexed
    except ValueError:
        return False


def _summarise_indexed(store: Store, key: str) -> ObjectSummary:
    """Return the figures of an object's index, after the object's bytes have been checked against it."""
    from waybill.archive.chain.indexed_reader import IndexedReader

    with IndexedReader(store, key) as reader:
        reader.check()
        figures, is_gap_marker = reader.figures, GAP_METADATA_KEY in reader.metadata
    return ObjectSummary(
        figures.next_offset,
        figures.messages,
        batches=0,
        size_bytes=figures.size_bytes,
        leader_epoch=figures.leader_epoch,
        min_timestamp_ms=figures.min_timestamp_ms,
        max_timestamp_ms=figures.max_timestamp_ms,
        is_gap_marker=is_gap_marker,
    )


def _summarise_batches(store: Store, name: BackupName, key: str) -> ObjectSummary | None:
    """Return the summary of an object of record batches; None if it has no batch."""
    messages, batches, size_bytes, lowest, highest = 0, 0, 0, -1, -1
    header, slot_state = None, None
    with store.open(key) as stream:
        is_gap_marker = GAP_METADATA_KEY in stream.metadata
        for frame in framing.read_frames(stream, key):
            framing.check_crc(frame, key)
            header = frame.header
            messages += count_messages(frame, name.first_offset, key)
            batches += 1
            size_bytes += header.size_bytes
            highest = max(highest, header.max_timestamp_ms)
            slot_state = read_checkpoint_batch(frame, key)
            if header.record_count:
                lowest = header.base_timestamp_ms if lowest < 0 else min(lowest, header.base_timestamp_ms)
    if header is None:
        return None
    return ObjectSummary(
        header.next_offset,
        messages,
        batches,
        size_bytes,
        header.leader_epoch,
        lowest,
        highest,
        is_gap_marker,
        slot_state,
    )
