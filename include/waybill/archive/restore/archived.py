"""Read the archive for a restore: the record batches of a range, checked, without missing offsets.

Every batch is checked by its CRC, and every object by its range: its batches must lie within the range that the chain
gives it, and its last batch must end where the next object begins. An object that is missing, damaged, swapped with
another one or cut short raises an error that names it, before any later object is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from waybill.archive.chain.chain import ChainObject, walk_chain
from waybill.archive.chain.read_ahead import ReadAhead
from waybill.archive.chain.span import Span
from waybill.archive.chain.spans import spans_from
from waybill.base.errors import ChainBroken, ChainGap, ObjectMissing, RestoreRefused
from waybill.config.names import BackupName, Extension, TopicPartition
from waybill.records.batches.framing import Frame, check_crc, read_frames
from waybill.records.batches.produced import is_sendable, renumber
from waybill.services.store import Store

_READ_BYTES = 8 << 20
"""The number of bytes that `ReadAhead` fetches at once, so that batches are framed without a copy."""


class ArchivedBatch(NamedTuple):
    """A record batch of the archive that holds a message for each of its offsets, or none."""

    frame: Frame | None
    """The batch in a form that a client can send (`is_sendable`); None if it has no message of the range."""
    archived: Frame
    """The archived bytes of the batch."""
    next_offset: int
    """The archived offset at which the next batch begins."""


def objects_of_range(
    store: Store, generation: int, tp: TopicPartition, first_offset: int | None, next_offset: int | None
) -> list[ChainObject]:
    """Return the objects of a chain that hold `[first_offset, next_offset)`; None stands for the chain's own bounds.

    The chain may end before `next_offset`. Raises `ChainBroken` when it begins after `first_offset`, and
    `RestoreRefused` for a format other than `kafka`.
    """
    objects = []
    for each in walk_chain(store, generation, tp, from_offset=first_offset):
        if next_offset is not None and each.name.first_offset >= next_offset:
            break
        if each.name.extension is not Extension.KAFKA:
            raise RestoreRefused(
                f"{tp}: the archive holds {each.name.extension} objects. Only the format `kafka` keeps record batches "
                f"byte for byte; read the objects with `waybill cat` instead"
            )
        objects.append(each)
        if next_offset is not None and each.next_offset >= next_offset:
            break  # the next object is not opened, since it may be damaged
    return objects


def read_batches(
    store: Store, tp: TopicPartition, objects: list[ChainObject], first_offset: int, next_offset: int
) -> Iterator[ArchivedBatch]:
    """Yield the record batches of `[first_offset, next_offset)`, whose objects are passed in order.

    Batches at the edges hold only messages of the range. A batch that lacks offsets (compaction) or has LogAppendTime
    is encoded again; the others are the bytes of the archive.

    Raises `ChainBroken`, its subclass `ChainGap`, or `CorruptBatch`, all of which name the object.
    """
    spans = list(spans_from(tp, objects, first_offset))
    with ReadAhead(store, spans) as ahead:
        for span in spans:
            if span.first_offset >= next_offset:
                return
            try:
                yield from _read_object(ahead, span, first_offset, next_offset)
            except ObjectMissing as error:
                raise ChainBroken(f"{tp}: {error}, but a listing had it", span.first_offset) from error
    end = spans[-1].next_offset if spans else first_offset
    if end < next_offset:
        raise ChainBroken(f"{tp}: the chain ends at offset {end}, before {next_offset}", end, next_offset)


def _read_object(ahead: ReadAhead, span: Span, first_offset: int, next_offset: int) -> Iterator[ArchivedBatch]:
    object_start = BackupName.parse(span.key).first_offset
    low, high = max(first_offset, object_start), min(next_offset, span.next_offset)
    end = object_start
    with ahead.open(span.key) as stream:
        for frame in read_frames(stream, span.key, chunk_bytes=_READ_BYTES):
            header = frame.header
            _check_place(span, header.base_offset, header.next_offset, end, object_start)
            end = header.next_offset
            if end <= low:
                continue
            if header.base_offset >= high:
                return
            check_crc(frame, span.key)
            if header.is_control or not header.record_count:
                sendable = None
            elif is_sendable(header, low, high):
                sendable = frame
            else:
                sendable = renumber(frame, low, high, span.key)
            yield ArchivedBatch(sendable, frame, min(end, high))
    if end < span.next_offset:
        raise ChainGap(
            f"{span.tp}: {span.key} ends at offset {end}, but the chain goes on at {span.next_offset}: the object was "
            f"cut short or replaced. Restore it from the bucket's versions or replica",
            end,
            span.next_offset,
        )


def _check_place(span: Span, base_offset: int, end: int, previous_end: int, object_start: int) -> None:
    """Refuse a batch with offsets outside of the object's range.

    CRCs do not cover offsets, and a swapped object has sound CRCs.
    """
    is_first = previous_end == object_start
    if end <= object_start or base_offset >= span.next_offset or (base_offset < object_start and not is_first):
        raise ChainBroken(
            f"{span.tp}: {span.key} holds a batch of offsets {base_offset}–{end - 1}, but the chain has "
            f"{object_start}–{span.next_offset - 1} there: the object was replaced by another one. Restore it from the "
            f"bucket's versions or replica",
            max(span.first_offset, object_start),
        )
    if end > span.next_offset:
        raise ChainBroken(
            f"{span.tp}: {span.key} goes on to offset {end - 1}, but the next object begins at {span.next_offset}",
            span.next_offset,
        )


def message_runs(batch: ArchivedBatch, first_offset: int, next_offset: int) -> Iterator[tuple[int, int]]:
    """Yield the archived offsets of a batch's messages, as runs of (first offset, number)."""
    header = batch.archived.header
    if header.is_dense:
        low, high = max(header.base_offset, first_offset), min(header.next_offset, next_offset)
        yield low, high - low
        return
    from waybill.records.batches.decode import decode_offsets

    run: tuple[int, int] | None = None
    frames = [batch.archived]
    for offsets in decode_offsets(
        frames, where="the archive", first_offset=first_offset, next_offset=next_offset, verify_crc=False
    ):
        for offset in offsets.tolist():
            if run is not None and run[0] + run[1] == offset:
                run = run[0], run[1] + 1
            else:
                if run is not None:
                    yield run
                run = offset, 1
    if run is not None:
        yield run
