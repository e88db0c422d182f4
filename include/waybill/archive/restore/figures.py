"""Times, sizes and codecs of the record batches of archived ranges, read from the batches' headers.

These figures are not stored, so the preflight reads the backup objects themselves. Up to `READ_BYTES` it reads
everything, and the newest timestamp and the largest batch are exact. Of a larger archive it reads the last objects of
each range, which hold the newest messages (they show a clock that is hours ahead), and from the other objects the first
batches of a sample. Then the figures are an estimate, and `is_estimate` is true.

The oldest timestamp is always an estimate: a header has the timestamp of the batch's first message, and a later one may
be older.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime

from waybill.archive.chain.chain import ChainObject
from waybill.archive.restore.request import SourceRange
from waybill.base.errors import ChainBroken, CorruptBatch, ObjectMissing
from waybill.config.names import TopicPartition
from waybill.records.batches.framing import (
    HEADER_BYTES,
    BatchHeader,
    Codec,
    TimestampType,
    check_crc,
    read_frames,
    read_header,
)
from waybill.services.store import Store

logger = logging.getLogger(__name__)

READ_BYTES = 512 << 20
"""Up to this number of bytes, the whole archive is read, which takes a few seconds."""
_START_BYTES = 64 << 10
"""The bytes that are read from each object of the sample."""
_SAMPLE = 2_000
"""The number of objects in the sample, over all ranges; at least one for each range."""
_THREADS = 4
_DAMAGES = (ChainBroken, CorruptBatch, ObjectMissing)


@dataclass(slots=True)
class BatchFigures:
    """Figures of the batches that were read. Times are milliseconds since 1970 UTC."""

    oldest_ms: int | None = None
    """None: no message with a timestamp was read."""
    newest_ms: int | None = None
    newest_in: str = ""
    """The batch that holds the newest message: `offsets 100–149 of flights/0`."""
    largest_bytes: int = 0
    largest_in: str = ""
    codecs: set[Codec] = field(default_factory=set)
    longest_ms: int = 0
    """The longest time between the oldest and the newest message of one topic-partition."""
    read_bytes: int = 0
    size_bytes: int = 0
    """The size of all objects of the ranges."""
    is_estimate: bool = False
    """Whether batches of the ranges were not read."""

    def add(self, other: BatchFigures) -> None:
        """Add the figures of another reading."""
        self.oldest_ms = min((each for each in (self.oldest_ms, other.oldest_ms) if each is not None), default=None)
        if other.newest_ms is not None and (self.newest_ms is None or other.newest_ms > self.newest_ms):
            self.newest_ms, self.newest_in = other.newest_ms, other.newest_in
        if other.largest_bytes > self.largest_bytes:
            self.largest_bytes, self.largest_in = other.largest_bytes, other.largest_in
        self.codecs |= other.codecs
        self.longest_ms = max(self.longest_ms, other.longest_ms)
        self.read_bytes += other.read_bytes
        self.size_bytes += other.size_bytes
        self.is_estimate |= other.is_estimate

    def count(self, tp: TopicPartition, header: BatchHeader) -> None:
        """Count one batch of messages."""
        where = f"offsets {header.base_offset}–{header.next_offset - 1} of {tp}"
        is_first_known = not header.has_delete_horizon and header.timestamp_type is TimestampType.CREATE_TIME
        oldest_ms = header.base_timestamp_ms if is_first_known else header.max_timestamp_ms
        if oldest_ms >= 0:  # -1: the message has no timestamp, and brokers accept it
            self.oldest_ms = oldest_ms if self.oldest_ms is None else min(oldest_ms, self.oldest_ms)
        if header.max_timestamp_ms >= 0 and (self.newest_ms is None or header.max_timestamp_ms > self.newest_ms):
            self.newest_ms, self.newest_in = header.max_timestamp_ms, where
        if header.size_bytes > self.largest_bytes:
            self.largest_bytes, self.largest_in = header.size_bytes, where
        self.codecs.add(header.codec)


def measure(store: Store, ranges: Sequence[SourceRange], *, read_bytes: int = READ_BYTES) -> dict[str, BatchFigures]:
    """Return the figures of each archived topic of the ranges.

    A damaged object is left out, and its topic-partition's figures are an estimate: the restore itself names it.
    """
    if not ranges:
        return {}
    is_small = sum(each.size_bytes for each in ranges) <= read_bytes
    share = read_bytes if is_small else read_bytes // len(ranges)
    found: dict[str, BatchFigures] = {}
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="waybill-figures") as pool:
        sample = max(1, _SAMPLE // len(ranges))
        measured = pool.map(lambda one: _of_range(store, one, share, sample), ranges)
        for each, figures in zip(ranges, measured, strict=True):
            found.setdefault(each.tp.topic, BatchFigures()).add(figures)
    return found


def _of_range(store: Store, each: SourceRange, share: int, sample: int) -> BatchFigures:
    figures = BatchFigures(size_bytes=each.size_bytes)
    left = share
    objects = list(each.objects)
    while objects and objects[-1].size_bytes <= left:
        chosen = objects.pop()
        left -= chosen.size_bytes
        _count(figures, each, chosen, _whole(store, chosen))
        figures.read_bytes += chosen.size_bytes
    figures.is_estimate |= bool(objects)
    step = max(1, -(-len(objects) // sample))
    for chosen in objects[::step]:
        _count(figures, each, chosen, _first_headers(store, chosen))
        figures.read_bytes += min(_START_BYTES, chosen.size_bytes)
    if figures.oldest_ms is not None and figures.newest_ms is not None:
        figures.longest_ms = figures.newest_ms - figures.oldest_ms
    return figures


def _count(figures: BatchFigures, each: SourceRange, chosen: ChainObject, headers: Iterator[BatchHeader]) -> None:
    try:
        for header in headers:
            is_outside = header.next_offset <= each.first_offset or header.base_offset >= each.next_offset
            if header.record_count and not header.is_control and not is_outside:
                figures.count(each.tp, header)
    except _DAMAGES as error:
        logger.warning("the preflight leaves out the rest of %s: %s", chosen.key, error)
        figures.is_estimate = True


def _whole(store: Store, chosen: ChainObject) -> Iterator[BatchHeader]:
    with store.open(chosen.key) as stream:
        for frame in read_frames(stream, chosen.key):
            check_crc(frame, chosen.key)  # a flipped bit must not look like a timestamp
            yield frame.header


def _first_headers(store: Store, chosen: ChainObject) -> Iterator[BatchHeader]:
    data = store.read_range(chosen.key, 0, _START_BYTES)
    position = 0
    while position + HEADER_BYTES <= len(data):
        header = read_header(data, position, chosen.key)
        yield header
        position += header.size_bytes


def time_text(timestamp_ms: int) -> str:
    """Return a time in UTC; the number itself for one that has no date, for example if the unit is wrong."""
    try:
        return f"{datetime.fromtimestamp(timestamp_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms after 1970"
