"""Runs of the key index: the kept keys of one bucket over a span of the unique table's snapshots, in two files.

*The run* (`run_file`): Parquet, sorted by key hash, in small row groups whose footer says which hashes they can hold.
*Its filter* (`filters`): answers for the keys that are surely not there without touching the run. Both are derived from
the unique table: a run that is damaged or gone is made again from there, so nothing here repairs anything.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import crc32c
import numpy as np

from waybill.dedup.index import filters
from waybill.dedup.index.run_file import Array, Entries, Footer, Pieces, RunKeys, Sink, write
from waybill.errors import GenerationConflict, IndexDamaged, ObjectAlreadyThere, ObjectMissing
from waybill.names import TopicPartition, key_index_filter_key, key_index_run_key

__all__ = [
    "Array",
    "Content",
    "Files",
    "Matches",
    "Reads",
    "Run",
    "RunKeys",
    "Writing",
    "lookup",
    "read_run",
    "slices",
    "write_run",
]

Content: TypeAlias = bytes | memoryview
"""What was read of a file."""

_WHOLE_BYTES = 2 << 20  # as fast to read as any part of it, footer and all
_SLICE_BYTES = 4 << 20  # of a run, read and decoded at a time: 200,000 entries, some 20 MB with what Arrow needs


_COLUMNS = {"hi": np.uint64, "lo": np.uint64, "arrived_ms": np.int64, "tp": np.int32, "offset": np.int64}


class Writing(Protocol):
    """A file in the making."""

    def write(self, data: Any) -> None:
        """Append bytes; they are copied."""

    def complete(self) -> None:
        """Let the file be. Before, there is none; raises `ObjectAlreadyThere` if one of that name came before."""


class Reads(Protocol):
    """Where the index's files are read from.

    Every method raises `ObjectMissing`, and `StoreUnavailable` where calling again can help. They are called from
    several threads.
    """

    @property
    def gap_bytes(self) -> int:
        """How many bytes are rather read for nothing than that another read begins behind them."""

    def read(self, key: str) -> Content:
        """A whole file."""

    def read_range(self, key: str, start: int, length_bytes: int) -> Content:
        """`length_bytes` from byte `start` on; less only where the file ends before."""


class Files(Reads, Protocol):
    """Where they are written, too: a `Store`. What creates raises `ObjectAlreadyThere`."""

    def read(self, key: str) -> bytes:
        """A whole file."""

    def create_if_absent(self, key: str, data: Any) -> None:
        """Create a file of a few MiB at most."""

    def upload_if_absent(self, key: str) -> AbstractContextManager[Writing]:
        """Begin a file of any size; leaving it before `complete` was called forgets it."""


@dataclass(frozen=True, slots=True)
class Run:
    """What the index's manifest says of a run. The files themselves say nothing that is not here or checked by it."""

    bucket: int
    """Which bucket of the hash space: the top bits of `hi`."""
    first_sequence: int
    last_sequence: int
    """The snapshots of the unique table whose rows these are, by Iceberg sequence number, both included."""
    keys: int
    """How many entries. A key that was kept again after the window is there once for each time."""
    min_arrived_ms: int
    max_arrived_ms: int
    """The arrivals of the entries, epoch ms, both included."""
    path: str
    """The key of the Parquet file in the store."""
    bytes: int
    """Size of the Parquet file."""
    footer_bytes: int
    """How many bytes at its end are Parquet's footer, so that one read gets it."""
    footer_crc32c: int
    """CRC-32C of these; what is before them is covered by Parquet's page checksums."""
    filter_path: str
    """The key of the filter's file in the store."""
    filter_bytes: int
    filter_crc32c: int
    """CRC-32C of the filter's file."""


@dataclass(frozen=True, slots=True)
class Matches:
    """What a run holds of the keys that were asked for: numpy arrays of one length, at most one match a key."""

    index: Array
    """Which of the keys asked for, int64, ascending."""
    arrived_ms: Array
    """Arrival of that key's latest entry in the run, epoch ms, int64."""
    tp: Array
    """The entry's topic-partition: index in `topic_partitions`, int32."""
    offset: Array
    """The entry's Kafka offset, int64."""
    topic_partitions: tuple[TopicPartition, ...]

    def __len__(self) -> int:
        return len(self.index)


# --- writing ----------------------------------------------------------------------------------------------------------


def write_run(files: Files, prefix: str, bucket: int, sequences: tuple[int, int], keys: RunKeys) -> Run:
    """Write the two files of a run below `prefix` (`names.key_index_prefix`), under names that nobody else has.

    `sequences`: first and last sequence number. `keys`: at least one, sorted by (hi, lo); beside them it takes
    `filters.BUILD_BYTES_PER_KEY` for each. Raises `ValueError` for keys that cannot be a run, `StoreUnavailable` when
    they could not be written: what was written is named by nothing then.
    """
    if not len(keys) or not _is_sorted(keys):
        raise ValueError(f"{len(keys)} keys are no run of bucket {bucket}: it takes one, and they must be sorted")
    path = key_index_run_key(prefix, bucket, *sequences, uuid.uuid4().hex)
    with _new(files, path) as upload:
        sink = Sink(upload)
        write(sink, keys)
    filter_path, fuse = key_index_filter_key(path), filters.build(_distinct(keys.hi))
    with _new(files, filter_path) as upload:
        upload.write(fuse)
    return Run(
        bucket=bucket,
        first_sequence=sequences[0],
        last_sequence=sequences[1],
        keys=len(keys),
        min_arrived_ms=int(keys.arrived_ms.min()),
        max_arrived_ms=int(keys.arrived_ms.max()),
        path=path,
        bytes=sink.size_bytes,
        footer_bytes=len(sink.kept),
        footer_crc32c=crc32c.crc32c(sink.kept),
        filter_path=filter_path,
        filter_bytes=len(fuse),
        filter_crc32c=crc32c.crc32c(fuse),
    )


@contextmanager
def _new(files: Files, key: str) -> Iterator[Writing]:
    with files.upload_if_absent(key) as upload:
        yield upload
        with suppress(ObjectAlreadyThere):  # by an earlier try of this very call: nobody else has its token
            upload.complete()


def _is_sorted(keys: RunKeys) -> bool:
    before, after = keys.hi[:-1], keys.hi[1:]
    return bool(np.all((before < after) | ((before == after) & (keys.lo[:-1] <= keys.lo[1:]))))


def _distinct(hi: Array) -> Array:
    first = np.ones(len(hi), np.bool_)
    np.not_equal(hi[1:], hi[:-1], out=first[1:])
    return hi if first.all() else hi[first]


# --- reading ----------------------------------------------------------------------------------------------------------


def read_run(files: Reads, run: Run) -> RunKeys:
    """All entries of a run: 36 bytes each, and a slice. Raises `IndexDamaged`, and `StoreUnavailable`."""
    values = {name: np.empty(run.keys, kind) for name, kind in _COLUMNS.items()}
    tps: tuple[TopicPartition, ...] = ()
    filled = 0
    for part in slices(files, run):
        for name, column in values.items():
            column[filled : filled + len(part)] = getattr(part, name)
        filled, tps = filled + len(part), part.topic_partitions
    return RunKeys(**values, topic_partitions=tps)


def slices(files: Reads, run: Run) -> Iterator[RunKeys]:
    """The entries of a run in order, a few hundred thousand at a time; equal keys may be on both sides of a cut.

    Raises `IndexDamaged` when the run is gone or not what was written, `StoreUnavailable` when S3 does not answer.
    """
    opened = _Opened(files, run)
    for groups in opened.cut(np.arange(opened.footer.metadata.num_row_groups)):
        yield opened.footer.keys(opened.read(groups))


def lookup(files: Reads, run: Run, hi: Array, lo: Array) -> Matches:
    """Which of the keys (hashes, uint64[n] each, in any order, repeated or not) the run holds, and their latest entry.

    Reads the filter, and where that lets keys through the row groups that can hold them, a slice at a time. What of it
    matches is compared with all 128 bits.

    Raises `IndexDamaged` when a file is gone or not what was written, `StoreUnavailable` when S3 does not answer.
    """
    index = np.flatnonzero(_passed(files, run, hi)) if len(hi) else np.empty(0, np.int64)
    if not len(index):
        return _nothing()
    index = index[np.argsort(hi[index], kind="stable")]
    asked_hi, asked_lo = hi[index], lo[index]
    opened = _Opened(files, run)
    places = opened.footer.places
    found = []
    for groups in opened.cut(opened.footer.holding(asked_hi)):
        part = opened.read(groups)
        asked, entry = _matching(part, asked_hi, asked_lo)
        tp, offset = places.decode(part.place[entry])
        found.append(Matches(index[asked], part.arrived_ms[entry], tp, offset, places.topic_partitions))
    return _latest(found)


def _passed(files: Reads, run: Run, hi: Array) -> Array:
    with _sound(run.filter_path):
        fuse = files.read(run.filter_path)
        _check(fuse, run.filter_bytes, run.filter_crc32c)
        return filters.probe(fuse, hi)


def _matching(part: Entries, hi: Array, lo: Array) -> tuple[Array, Array]:
    """All pairs of a key and an entry that has it: index of the key, index of the entry. Both are sorted by `hi`."""
    first, end = np.searchsorted(part.hi, hi, "left"), np.searchsorted(part.hi, hi, "right")
    counts = end - first
    asked = np.repeat(np.arange(len(hi)), counts)
    # Of each key's entries the first, then the ones after it.
    entry = np.repeat(first, counts) + np.arange(len(asked)) - np.repeat(np.cumsum(counts) - counts, counts)
    same = part.lo[entry] == lo[asked]
    return asked[same], entry[same]


def _latest(found: Sequence[Matches]) -> Matches:
    """Of each key the latest entry; among equal ones whichever, but always the same."""
    if not found:
        return _nothing()
    index = np.concatenate([matches.index for matches in found])
    arrived_ms = np.concatenate([matches.arrived_ms for matches in found])
    tp = np.concatenate([matches.tp for matches in found])
    offset = np.concatenate([matches.offset for matches in found])
    order = np.lexsort((offset, tp, arrived_ms, index))
    last = np.ones(len(order), np.bool_)
    np.not_equal(index[order[1:]], index[order[:-1]], out=last[:-1])
    order = order[last]
    return Matches(index[order], arrived_ms[order], tp[order], offset[order], found[0].topic_partitions)


def _nothing() -> Matches:
    none = np.empty(0, np.int64)
    return Matches(none, none, np.empty(0, np.int32), none, ())


class _Opened:
    """A run whose footer was read; the whole of it, if it is small."""

    def __init__(self, files: Reads, run: Run) -> None:
        self._files = files
        self._run = run
        self._whole: Content | None = None
        with _sound(run.path):
            self.footer = Footer.parse(self._footer())
            if self.footer.metadata.num_rows != run.keys:
                raise ValueError(f"it has {self.footer.metadata.num_rows:,} entries instead of {run.keys:,}")

    def _footer(self) -> Content:
        run = self._run
        if run.bytes <= _WHOLE_BYTES:
            self._whole = self._files.read(run.path)
            _check(self._whole, run.bytes)
            footer = self._whole[-run.footer_bytes :]
        else:
            footer = self._files.read_range(run.path, run.bytes - run.footer_bytes, run.footer_bytes)
        _check(footer, run.footer_bytes, run.footer_crc32c)
        return footer

    def cut(self, groups: Array) -> Iterator[list[tuple[int, int, int]]]:
        """Row groups in slices: number, start and end of each."""
        cut: list[tuple[int, int, int]] = []
        size = 0
        for group in groups.tolist():
            start, end = self.footer.extent(group)
            if cut and start - cut[-1][2] <= self._files.gap_bytes:
                size += start - cut[-1][2]
            if cut and size + end - start > _SLICE_BYTES:
                yield cut
                cut, size = [], 0
            cut.append((group, start, end))
            size += end - start
        if cut:
            yield cut

    def read(self, groups: Sequence[tuple[int, int, int]]) -> Entries:
        """The entries of one slice."""
        with _sound(self._run.path):
            if self._whole is not None:
                pieces = [(0, self._whole)]
            else:
                pieces = [(start, self._part(start, end)) for start, end in _joined(groups, self._files.gap_bytes)]
            return self.footer.read(Pieces(pieces), [group for group, _, _ in groups])

    def _part(self, start: int, end: int) -> Content:
        content = self._files.read_range(self._run.path, start, end - start)
        _check(content, end - start)
        return content


def _joined(groups: Sequence[tuple[int, int, int]], gap_bytes: int) -> Iterator[tuple[int, int]]:
    """What to read for row groups: those with no more between them than that at once."""
    _, start, end = groups[0]
    for _, next_start, next_end in groups[1:]:
        if next_start - end > gap_bytes:
            yield start, end
            start = next_start
        end = next_end
    yield start, end


def _check(content: Content, size_bytes: int, checksum: int | None = None) -> None:
    if len(content) != size_bytes:
        raise ValueError(f"it has {len(content):,} bytes instead of {size_bytes:,}")
    if checksum is not None and crc32c.crc32c(content) != checksum:
        raise ValueError("its checksum differs")


@contextmanager
def _sound(key: str) -> Iterator[None]:
    """Whatever cannot be read of a file of the index means that it is damaged."""
    try:
        yield
    except ObjectMissing as error:
        raise IndexDamaged(key, "it is gone") from error
    except (ValueError, KeyError, TypeError, OSError, OverflowError, IndexError, GenerationConflict) as error:
        raise IndexDamaged(key, f"it is not what was written: {error}") from error
