"""Reading spans of the archive, as the partition job and the data source do, whatever format they are in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from waybill.archive.chain import ChainObject
from waybill.errors import ChainBroken, ChainGap, CorruptBatch, ObjectMissing
from waybill.names import BackupName, TopicPartition
from waybill.records.framing import Frame, read_frames
from waybill.store import Store

if TYPE_CHECKING:
    from waybill.archive.read_ahead import ReadAhead
    from waybill.records.decode import DecodeBuffers

__all__ = ["UNREADABLE", "ArchiveFault", "Span", "clip", "fault_of", "find_fault", "is_indexed", "read_span"]


@dataclass(frozen=True, slots=True)
class Span:
    """A range of one backup object: the messages with offsets in `[first_offset, next_offset)`."""

    tp: TopicPartition
    key: str
    first_offset: int
    next_offset: int
    size_bytes: int
    """Size of the whole object."""


@dataclass(frozen=True, slots=True)
class ArchiveFault:
    """What stops a topic-partition: a backup object is missing, damaged, or does not hold its range."""

    tp: TopicPartition
    offset: int
    """From here on the archive cannot give what its listing says."""
    message: str


def clip(tp: TopicPartition, objects: Iterable[ChainObject], start: int | None) -> Iterator[Span]:
    """The ranges of a chain's objects from `start` on; None: all of them."""
    for found in objects:
        first = max(found.name.first_offset, start or 0)
        if first < found.next_offset:
            yield Span(tp, found.key, first, found.next_offset, found.size_bytes)


UNREADABLE = (ChainBroken, CorruptBatch)
"""What `read_span` raises about the archive."""


def read_span(
    store: Store,
    span: Span,
    *,
    in_part: bool = False,
    ahead: ReadAhead | None = None,
    buffers: DecodeBuffers | None = None,
) -> Iterator[pa.RecordBatch]:
    """The messages of a span (`waybill.records.decode.MESSAGE_SCHEMA`), streamed: a few megabytes are in memory.

    A RecordBatch may have one more column, `indexed_reader.SET_ASIDE`: why a message is not in the backup object itself, which could not hold it. What a format does not hold is missing; see `read_messages` there.

    `in_part`: the span may end before the object does. Else its end tells that no offset was damaged: the checksum of a
    record batch does not cover it. `ahead`: what opens the objects of record batches, if not the store. `buffers`: for
    many spans, one after the other.

    Raises `ChainBroken` when the object is not there, or ends beyond the span; its subclass `ChainGap` when it ends
    before the span does; `CorruptBatch` when it, or its index, is damaged.
    """
    try:
        if is_indexed(span):
            yield from _read_indexed(store, span, in_part)
        else:
            yield from _read_batches(ahead or store, span, in_part, buffers)
    except ObjectMissing as error:
        raise ChainBroken(f"{span.tp}: {error}; it was there when the run was planned") from error


def is_indexed(span: Span) -> bool:
    """Whether the span's object is of a format that has an index beside it, and is read by that."""
    return BackupName.parse(span.key).extension.is_indexed


def fault_of(span: Span, error: ChainBroken | CorruptBatch) -> ArchiveFault:
    """From where on the span cannot be read, after `read_span` has raised."""
    offset = span.first_offset
    if isinstance(error, ChainGap) and error.first_offset is not None:
        offset = max(offset, error.first_offset)  # what the object does hold is sound
    return ArchiveFault(span.tp, offset, str(error))


def find_fault(store: Store, span: Span) -> ArchiveFault | None:
    """Read a span, only to see whether it can be."""
    try:
        for _ in read_span(store, span):
            pass
    except UNREADABLE as error:
        return fault_of(span, error)
    return None


def _read_batches(
    store: Store | ReadAhead, span: Span, in_part: bool, buffers: DecodeBuffers | None
) -> Iterator[pa.RecordBatch]:
    # numba takes a second to import, and the driver, which opens stores, decodes nothing.
    from waybill.records.decode import decode

    end = _End()
    with store.open(span.key) as stream:
        yield from decode(
            end.watch(read_frames(stream, span.key)),
            where=span.key,
            first_offset=span.first_offset,
            next_offset=span.next_offset,
            buffers=buffers,
        )
    _check_end(span, end.next_offset, in_part)


def _read_indexed(store: Store, span: Span, in_part: bool) -> Iterator[pa.RecordBatch]:
    from waybill.archive.indexed_reader import IndexedReader

    with IndexedReader(store, span.key) as reader:
        _check_end(span, reader.figures.next_offset, in_part)
        yield from reader.messages(first_offset=span.first_offset, next_offset=span.next_offset)


def _check_end(span: Span, next_offset: int, in_part: bool) -> None:
    if next_offset < span.next_offset:
        raise ChainGap(
            f"{span.tp}: {span.key} ends at offset {next_offset}, and the chain goes on at {span.next_offset}",
            next_offset,
            span.next_offset,
        )
    if next_offset > span.next_offset and not in_part:
        raise ChainBroken(
            f"{span.tp}: {span.key} ends at offset {next_offset}, and the chain goes on before, at {span.next_offset}"
        )


@dataclass(slots=True)
class _End:
    """Notes where the last record batch of an object ends."""

    next_offset: int = 0

    def watch(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            self.next_offset = frame.header.next_offset
            yield frame
