"""Spans: ranges of backup objects, read as Arrow batches by the partition job and the Spark data source.

A span can be of any format. When an object turns out to be missing or damaged, `fault_from_error` determines the offset
from which its topic-partition cannot be read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from waybill.archive.chain.chain import ChainObject
from waybill.archive.chain.span import Span
from waybill.base.errors import ChainBroken, ChainGap, CorruptBatch, ObjectMissing, UnexpectedFailure, WaybillError
from waybill.config.names import BackupName, TopicPartition
from waybill.records.batches.framing import Frame, read_frames
from waybill.records.batches.limits import LARGEST, Limits
from waybill.services.store import Store

if TYPE_CHECKING:
    from waybill.archive.chain.read_ahead import ReadAhead
    from waybill.records.batches.decode import DecodeBuffers

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ArchiveFault:
    """Why a topic-partition stops: a backup object is missing, damaged or incomplete, or its reader raises."""

    tp: TopicPartition
    offset: int
    """The first offset that cannot be read."""
    message: str


def spans_from(tp: TopicPartition, objects: Iterable[ChainObject], start: int | None) -> Iterator[Span]:
    """Yield the spans of a chain's objects from the offset `start` on; None for all of them."""
    for chain_object in objects:
        first = max(chain_object.name.first_offset, start or 0)
        if first < chain_object.next_offset:
            yield Span(tp, chain_object.key, first, chain_object.next_offset, chain_object.size_bytes)


def read_span(
    store: Store,
    span: Span,
    *,
    in_part: bool = False,
    ahead: ReadAhead | None = None,
    buffers: DecodeBuffers | None = None,
    limits: Limits | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a span as `waybill.records.batches.decode.MESSAGE_SCHEMA`, with a few megabytes in memory.

    A RecordBatch can have one more column, `SET_ASIDE`: the reason why the object's format could not hold a message, or
    that the message exceeds the `limits` and has no value and no headers here. Without `limits`, a message that no
    reader can hold is a `CorruptBatch`. `IndexedReader.messages` lists other data that a format cannot hold.

    `in_part`: allow the span to end before the object does. Otherwise the object must end where the span ends. This
    check detects a damaged offset, which the checksum of a record batch does not cover. `ahead`: opens objects of
    record batches in place of the store. `buffers`: memory that the calls for many spans use one after the other.

    Raises `ChainBroken` when the object is missing or ends after the span, its subclass `ChainGap` when it ends before
    the span, `CorruptBatch` when the object or its index is damaged.
    """
    try:
        if is_indexed(span):
            yield from _read_indexed(store, span, in_part)
        else:
            yield from _read_batches(ahead or store, span, in_part, buffers, limits)
    except ObjectMissing as error:
        raise ChainBroken(f"{span.tp}: {error}, but it existed when the run was planned") from error


def is_indexed(span: Span) -> bool:
    """Return whether the span's object is of a format that has an index object."""
    return BackupName.parse(span.key).extension.is_indexed


def is_archive_fault(error: Exception) -> bool:
    """Return whether an error of `read_span` concerns its topic-partition alone.

    Errors of the machine and of services do not: `OSError`, `MemoryError`, and the other errors of Waybill.
    """
    if isinstance(error, WaybillError):
        return isinstance(error, ChainBroken | CorruptBatch)
    return not isinstance(error, OSError | MemoryError)


def fault_from_error(span: Span, error: Exception) -> ArchiveFault:
    """Return the archive fault for an error of `read_span`. An unexpected error is logged."""
    if not isinstance(error, WaybillError):
        failure = UnexpectedFailure(f"{span.tp}: {span.key}", error)
        logger.error("%s", failure, exc_info=error)
        return ArchiveFault(span.tp, span.first_offset, str(failure))
    offset = span.first_offset
    if isinstance(error, ChainGap) and error.first_offset is not None:
        offset = max(offset, error.first_offset)  # the messages in the object are sound
    return ArchiveFault(span.tp, offset, str(error))


def find_fault(store: Store, span: Span) -> ArchiveFault | None:
    """Read a whole span and return its archive fault; None if it is sound."""
    try:
        # Use the limits of a run: a message that exceeds them is set aside, and is not a fault.
        for _ in read_span(store, span, limits=LARGEST):
            pass
    except Exception as error:
        if not is_archive_fault(error):
            raise
        return fault_from_error(span, error)
    return None


def _read_batches(
    store: Store | ReadAhead, span: Span, in_part: bool, buffers: DecodeBuffers | None, limits: Limits | None
) -> Iterator[pa.RecordBatch]:
    # numba takes a second to import, and the Spark driver lists spans but decodes nothing.
    from waybill.records.batches.decode import decode

    end = _EndTracker()
    with store.open(span.key) as stream:
        yield from decode(
            end.track(read_frames(stream, span.key)),
            where=span.key,
            first_offset=span.first_offset,
            next_offset=span.next_offset,
            limits=limits or LARGEST,
            set_aside=limits is not None,
            buffers=buffers,
        )
    _check_end(span, end.next_offset, in_part)


def _read_indexed(store: Store, span: Span, in_part: bool) -> Iterator[pa.RecordBatch]:
    from waybill.archive.chain.indexed_reader import IndexedReader

    with IndexedReader(store, span.key) as reader:
        _check_end(span, reader.figures.next_offset, in_part)
        yield from reader.messages(first_offset=span.first_offset, next_offset=span.next_offset)


def _check_end(span: Span, next_offset: int, in_part: bool) -> None:
    if next_offset < span.next_offset:
        raise ChainGap(
            f"{span.tp}: {span.key} ends at offset {next_offset}, but the chain goes on at {span.next_offset}",
            next_offset,
            span.next_offset,
        )
    if next_offset > span.next_offset and not in_part:
        raise ChainBroken(
            f"{span.tp}: {span.key} ends at offset {next_offset}, but the next object starts before it, at "
            f"{span.next_offset}"
        )


@dataclass(slots=True)
class _EndTracker:
    """Tracks where the last record batch of an object ends."""

    next_offset: int = 0

    def track(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            self.next_offset = frame.header.next_offset
            yield frame
