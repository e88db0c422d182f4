"""Sorted runs of the key index: the kept keys of one bucket over a range of the unique table's snapshots, in two files.

*The run file* (`run_file`) is Parquet, sorted by key hash, in small row groups; its footer has the range of hashes of
each. *The filter file* (`filters`) answers for keys that the run certainly does not contain, without a read of the run
file. Both are derived from the unique table. So a damaged or missing file is never repaired: the index is rebuilt.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import crc32c
import numpy as np

from waybill.base.errors import DocumentTooNew, IndexDamaged, ObjectExists, ObjectMissing
from waybill.config.names import TopicPartition, key_index_filter_key, key_index_run_key
from waybill.tables.dedup.index import filters
from waybill.tables.dedup.index.run_file import (
    Array,
    EncodedEntries,
    FooterSink,
    IndexEntries,
    PartialFile,
    RunFooter,
    write,
)

Content: TypeAlias = bytes | memoryview
"""Bytes read from a file."""

_WHOLE_BYTES = 2 << 20  # reading this much takes as long as reading a part of it after its footer
_SLICE_BYTES = 4 << 20  # of a run file, read and decoded at a time: 270,000 entries, some 25 MB with Arrow's buffers
_COLUMNS = {"hi": np.uint64, "tail": np.uint32, "arrived_ms": np.int64, "tp": np.int32, "offset": np.int64}


class FileUpload(Protocol):
    """A file while it is written."""

    def write(self, data: Any) -> None:
        """Append bytes; they are copied."""

    def complete(self) -> None:
        """Create the file, which does not exist before. Raise `ObjectExists` if the name is taken."""


class FileReader(Protocol):
    """Reads the files of the index; several threads call it.

    Every method raises `ObjectMissing`, and `StoreUnavailable` where a later call may succeed.
    """

    @property
    def coalesce_bytes(self) -> int:
        """Read two byte ranges as one if the distance between them is not larger."""

    def read(self, key: str) -> Content:
        """Return the bytes of a file."""

    def read_range(self, key: str, start: int, length_bytes: int) -> Content:
        """Return `length_bytes` from byte `start` on; fewer only at the end of the file."""


class FileStore(FileReader, Protocol):
    """Reads and creates the files of the index: a `Store`. Methods that create raise `ObjectExists`."""

    def read(self, key: str) -> bytes:
        """Return the bytes of a file."""

    def create_if_absent(self, key: str, data: Any) -> None:
        """Create a file of a few MiB at most."""

    def upload_if_absent(self, key: str) -> AbstractContextManager[FileUpload]:
        """Start a file of any size. Leaving the context before `complete` discards it."""


@dataclass(frozen=True, slots=True)
class SortedRun:
    """The index manifest's entry of a sorted run. It suffices to read and to check the two files.

    The field names are those of the stored manifest.
    """

    bucket: int
    """Bucket of the hash space: the leading bits of `hi`."""
    first_sequence: int
    last_sequence: int
    """Iceberg sequence numbers of the unique table's snapshots whose rows are in the run, both inclusive."""
    keys: int
    """Number of entries. A key that was kept again after the window has an entry for each time."""
    min_arrived_ms: int
    max_arrived_ms: int
    """Range of the entries' arrivals, epoch ms, both inclusive."""
    path: str
    """Object key of the run file."""
    bytes: int
    """Size of the run file."""
    footer_bytes: int
    """Size of the run file's Parquet footer, so that one read fetches it."""
    footer_crc32c: int
    """CRC-32C of the footer; Parquet's page checksums cover the bytes before it."""
    filter_path: str
    """Object key of the filter file."""
    filter_bytes: int
    filter_crc32c: int
    """CRC-32C of the filter file."""


@dataclass(frozen=True, slots=True)
class RunMatches:
    """The keys of a query that a sorted run contains: numpy arrays of one length, at most one match for each key."""

    index: Array
    """Position of the key in the query, int64, ascending."""
    arrived_ms: Array
    """Arrival of the key's latest entry in the run, epoch ms, int64."""
    tp: Array
    """Topic-partition of the entry: index into `topic_partitions`, int32."""
    offset: Array
    """Kafka offset of the entry, int64."""
    topic_partitions: tuple[TopicPartition, ...]

    @classmethod
    def none(cls) -> RunMatches:
        """Return no match."""
        empty = np.empty(0, np.int64)
        return cls(empty, empty, np.empty(0, np.int32), empty, ())

    def __len__(self) -> int:
        return len(self.index)


# --- writing ----------------------------------------------------------------------------------------------------------


def write_run(
    files: FileStore, prefix: str, bucket: int, sequences: tuple[int, int], entries: IndexEntries
) -> SortedRun:
    """Write the two files of a sorted run below `prefix` (`names.key_index_prefix`), under unique names.

    `sequences`: first and last sequence number. `entries`: at least one, sorted by (hi, tail); the filter needs
    `filters.BUILD_BYTES_PER_KEY` of memory for each.

    Raises `ValueError` for entries that cannot be a run, `StoreUnavailable` when a file could not be written; files
    that exist by then are not referenced.
    """
    if not len(entries) or not _is_sorted(entries):
        raise ValueError(f"{len(entries)} keys are no run of bucket {bucket}: it needs one at least, and sorted keys")
    path = key_index_run_key(prefix, bucket, *sequences, uuid.uuid4().hex)
    with _new_file(files, path) as upload:
        sink = FooterSink(upload)
        write(sink, entries)
    filter_path, fuse = key_index_filter_key(path), filters.build(_distinct(entries.hi))
    with _new_file(files, filter_path) as upload:
        upload.write(fuse)
    return SortedRun(
        bucket=bucket,
        first_sequence=sequences[0],
        last_sequence=sequences[1],
        keys=len(entries),
        min_arrived_ms=int(entries.arrived_ms.min()),
        max_arrived_ms=int(entries.arrived_ms.max()),
        path=path,
        bytes=sink.size_bytes,
        footer_bytes=len(sink.kept),
        footer_crc32c=crc32c.crc32c(sink.kept),
        filter_path=filter_path,
        filter_bytes=len(fuse),
        filter_crc32c=crc32c.crc32c(fuse),
    )


@contextmanager
def _new_file(files: FileStore, key: str) -> Iterator[FileUpload]:
    with files.upload_if_absent(key) as upload:
        yield upload
        # The name has a random token: an existing object was created by an earlier attempt of this process, whose
        # response was lost.
        with suppress(ObjectExists):
            upload.complete()


def _is_sorted(entries: IndexEntries) -> bool:
    before, after = entries.hi[:-1], entries.hi[1:]
    return bool(np.all((before < after) | ((before == after) & (entries.tail[:-1] <= entries.tail[1:]))))


def _distinct(hi: Array) -> Array:
    first = np.ones(len(hi), np.bool_)
    np.not_equal(hi[1:], hi[:-1], out=first[1:])
    return hi if first.all() else hi[first]


# --- reading ----------------------------------------------------------------------------------------------------------


def read_run(files: FileReader, run: SortedRun) -> IndexEntries:
    """Return all entries of a run. It takes 32 bytes for each, and a slice. Raises as `read_slices` does."""
    values = {name: np.empty(run.keys, kind) for name, kind in _COLUMNS.items()}
    tps: tuple[TopicPartition, ...] = ()
    filled = 0
    for part in read_slices(files, run):
        for name, column in values.items():
            column[filled : filled + len(part)] = getattr(part, name)
        filled, tps = filled + len(part), part.topic_partitions
    return IndexEntries(**values, topic_partitions=tps)


def read_slices(files: FileReader, run: SortedRun) -> Iterator[IndexEntries]:
    """Yield the entries of a run in order, some hundred thousand at a time; a key may continue in the next slice.

    Raises `IndexDamaged` when the run file is missing or its content changed, `StoreUnavailable` when S3 does not
    answer.
    """
    opened = _OpenRun(files, run)
    for groups in opened.slices(np.arange(opened.footer.metadata.num_row_groups)):
        yield opened.footer.decode(opened.read(groups))


def find_in_run(files: FileReader, run: SortedRun, hi: Array, tail: Array) -> RunMatches:
    """Return which of the keys (as in `IndexEntries`, in any order, repeated or not) the run contains.

    Reads the filter file and, for keys that pass the filter, the row groups that can contain them, a slice at a time.
    These entries are compared by all their bits. Of a key with several entries the latest one is returned.

    Raises `IndexDamaged` when a file is missing or its content changed, `StoreUnavailable` when S3 does not answer.
    """
    index = np.flatnonzero(_passes_filter(files, run, hi)) if len(hi) else np.empty(0, np.int64)
    if not len(index):
        return RunMatches.none()
    index = index[np.argsort(hi[index], kind="stable")]
    query_hi, query_tail = hi[index], tail[index]
    opened = _OpenRun(files, run)
    places = opened.footer.places
    matches = []
    for groups in opened.slices(opened.footer.groups_for(query_hi)):
        part = opened.read(groups)
        query, entry = _matching_pairs(part, query_hi, query_tail)
        tp, offset = places.decode(part.place[entry])
        matches.append(RunMatches(index[query], part.arrived_ms[entry], tp, offset, places.topic_partitions))
    return _latest_of_each_key(matches)


def _passes_filter(files: FileReader, run: SortedRun, hi: Array) -> Array:
    with _as_index_damage(run.filter_path):
        fuse = files.read(run.filter_path)
        _check_content(fuse, run.filter_bytes, run.filter_crc32c)
        return filters.probe(fuse, hi)


def _matching_pairs(part: EncodedEntries, hi: Array, tail: Array) -> tuple[Array, Array]:
    """Return all pairs of a key and an entry of it: index of the key, index of the entry. Both are sorted by `hi`."""
    first, end = np.searchsorted(part.hi, hi, "left"), np.searchsorted(part.hi, hi, "right")
    counts = end - first
    query = np.repeat(np.arange(len(hi)), counts)
    # For each key: the first entry with its `hi`, then those that follow it.
    entry = np.repeat(first, counts) + np.arange(len(query)) - np.repeat(np.cumsum(counts) - counts, counts)
    same = part.tail[entry] == tail[query]
    return query[same], entry[same]


def _latest_of_each_key(found: Sequence[RunMatches]) -> RunMatches:
    """Return the latest entry of each key; if several are equally late, always the same one."""
    if not found:
        return RunMatches.none()
    index = np.concatenate([matches.index for matches in found])
    arrived_ms = np.concatenate([matches.arrived_ms for matches in found])
    tp = np.concatenate([matches.tp for matches in found])
    offset = np.concatenate([matches.offset for matches in found])
    order = np.lexsort((offset, tp, arrived_ms, index))
    last = np.ones(len(order), np.bool_)
    np.not_equal(index[order[1:]], index[order[:-1]], out=last[:-1])
    order = order[last]
    return RunMatches(index[order], arrived_ms[order], tp[order], offset[order], found[0].topic_partitions)


_GroupRange: TypeAlias = tuple[int, int, int]
"""A row group: its number, and the positions of its first byte and of the byte after its last."""


class _OpenRun:
    """A sorted run whose footer was read; a small run file was read as a whole."""

    def __init__(self, files: FileReader, run: SortedRun) -> None:
        self._files = files
        self._run = run
        self._whole: Content | None = None
        with _as_index_damage(run.path):
            self.footer = RunFooter.parse(self._read_footer())
            if self.footer.metadata.num_rows != run.keys:
                raise ValueError(f"it has {self.footer.metadata.num_rows:,} entries instead of {run.keys:,}")

    def _read_footer(self) -> Content:
        run = self._run
        if run.bytes <= _WHOLE_BYTES:
            self._whole = self._files.read(run.path)
            _check_content(self._whole, run.bytes)
            footer = self._whole[-run.footer_bytes :]
        else:
            footer = self._files.read_range(run.path, run.bytes - run.footer_bytes, run.footer_bytes)
        _check_content(footer, run.footer_bytes, run.footer_crc32c)
        return footer

    def slices(self, groups: Array) -> Iterator[list[_GroupRange]]:
        """Yield row groups in slices of at most `_SLICE_BYTES` to read, or of a single row group."""
        part: list[_GroupRange] = []
        size = 0
        for group in groups.tolist():
            start, end = self.footer.byte_range(group)
            if part and start - part[-1][2] <= self._files.coalesce_bytes:
                size += start - part[-1][2]  # these bytes will be read too
            if part and size + end - start > _SLICE_BYTES:
                yield part
                part, size = [], 0
            part.append((group, start, end))
            size += end - start
        if part:
            yield part

    def read(self, groups: Sequence[_GroupRange]) -> EncodedEntries:
        """Return the entries of one slice."""
        with _as_index_damage(self._run.path):
            if self._whole is not None:
                pieces = [(0, self._whole)]
            else:
                pieces = [
                    (start, self._read(start, end)) for start, end in _coalesced(groups, self._files.coalesce_bytes)
                ]
            return self.footer.read(PartialFile(pieces), [group for group, _, _ in groups])

    def _read(self, start: int, end: int) -> Content:
        content = self._files.read_range(self._run.path, start, end - start)
        _check_content(content, end - start)
        return content


def _coalesced(groups: Sequence[_GroupRange], coalesce_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the byte ranges to read: row groups with at most `coalesce_bytes` between them are read at once."""
    _, start, end = groups[0]
    for _, next_start, next_end in groups[1:]:
        if next_start - end > coalesce_bytes:
            yield start, end
            start = next_start
        end = next_end
    yield start, end


def _check_content(content: Content, size_bytes: int, checksum: int | None = None) -> None:
    if len(content) != size_bytes:
        raise ValueError(f"it has {len(content):,} bytes instead of {size_bytes:,}")
    if checksum is not None and crc32c.crc32c(content) != checksum:
        raise ValueError("its checksum differs")


@contextmanager
def _as_index_damage(key: str) -> Iterator[None]:
    """Raise `IndexDamaged` for any error that shows that a file of the index cannot be read as it was written."""
    try:
        yield
    except ObjectMissing as error:
        raise IndexDamaged(key, "it is missing") from error
    except (ValueError, KeyError, TypeError, OSError, OverflowError, IndexError, DocumentTooNew) as error:
        raise IndexDamaged(key, f"it is not what was written: {error}") from error
