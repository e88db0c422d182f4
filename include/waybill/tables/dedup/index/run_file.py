"""The Parquet file of a sorted run: entries sorted by key hash, in row groups small enough to read for a single key.

Columns, all required, none compressed (hashes cannot be, and the encodings make the others small):

- `hi`: the first eight bytes of the key's hash, uint64, sorted, DELTA_BINARY_PACKED.
- `tail`: the last three bytes of the hash, unencoded. Together these are 88 of its 128 bits, which is enough
  (docs/decisions/0015).
- `arrived_at`: timestamp in ms, UTC, DELTA_BINARY_PACKED.
- `place`: int64, DELTA_BINARY_PACKED: topic-partition and offset as one number (`PlaceCodec`).

The file's metadata has, under `waybill.run`, the parameters of `place`, and the first `hi` of each row group: reading
two thousand column statistics through Arrow takes longer than reading the row groups. Every page has a checksum.

Version 1 had `lo`, the last eight bytes of the hash as uint64, in the place of `tail`. Such files are still read.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from waybill.base.documents import Document
from waybill.config.names import TopicPartition

Array: TypeAlias = np.ndarray[Any, Any]

ROW_GROUP_ROWS = 2048
"""Entries of a row group, about 31 KB. Smaller ones make the footer longer, larger ones cost more to read for one
key."""

_DOCUMENT = Document(version=2, name="a run of the key index")
_METADATA = "waybill.run"
_DELTA = "DELTA_BINARY_PACKED"
_TAIL_BYTES = 3
_ENCODINGS = {"hi": _DELTA, "tail": "PLAIN", "arrived_at": _DELTA, "place": _DELTA}
_SCHEMA = pa.schema(
    [
        pa.field("hi", pa.uint64(), nullable=False),
        pa.field("tail", pa.binary(_TAIL_BYTES), nullable=False),
        pa.field("arrived_at", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("place", pa.int64(), nullable=False),
    ]
)
_PLACES = 1 << 63  # limit of int64


@dataclass(frozen=True, slots=True)
class IndexEntries:
    """Entries of the index, sorted by (hi, tail): numpy arrays of one length.

    Entries of one key (a key is kept again after the window) are adjacent, in no defined order.
    """

    hi: Array
    """The first half of the key's hash, uint64."""
    tail: Array
    """The leading 24 bits of the other half, uint32: `tail_of`."""
    arrived_ms: Array
    """Arrival of the kept row as dedup defines it, epoch ms, int64."""
    tp: Array
    """Topic-partition of the kept row: index into `topic_partitions`, int32."""
    offset: Array
    """Kafka offset of the kept row, int64."""
    topic_partitions: tuple[TopicPartition, ...]

    def __len__(self) -> int:
        return len(self.hi)

    def select(self, rows: Array | slice) -> IndexEntries:
        """Return the entries at these indices (ascending), or where this mask is true."""
        return IndexEntries(
            self.hi[rows],
            self.tail[rows],
            self.arrived_ms[rows],
            self.tp[rows],
            self.offset[rows],
            self.topic_partitions,
        )


def tail_of(lo: Array) -> Array:
    """Return the part of the hashes' second halves (uint64) that the index stores: the leading 24 bits, uint32.

    Leading bits, so that entries in the order of the whole hashes stay in order.
    """
    return (lo >> np.uint64(64 - 8 * _TAIL_BYTES)).astype(np.uint32)


# --- writing ---


class _Writer(Protocol):
    def write(self, data: Any) -> None: ...


class FooterSink:
    """The file object that Arrow writes to: forwards all bytes, and also keeps those after `keep_from_here`."""

    def __init__(self, target: _Writer) -> None:
        self._target = target
        self._kept: bytearray | None = None
        self.size_bytes = 0
        self.closed = False

    def keep_from_here(self) -> None:
        self._kept = bytearray()

    @property
    def kept(self) -> bytes:
        return bytes(self._kept or b"")

    def write(self, data: Any) -> int:
        with memoryview(data) as view:
            self._target.write(view)
            if self._kept is not None:
                self._kept += view
            self.size_bytes += len(view)
            return len(view)

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None:
        """Do nothing: the target decides when it sends bytes."""

    def close(self) -> None:
        self.closed = True


def write(sink: FooterSink, entries: IndexEntries) -> None:
    """Write the Parquet file of `entries` (at least one) to `sink`, which then has kept the file's footer.

    Raises `ValueError` when the sum of the topic-partitions' offset spans exceeds int64.
    """
    places = PlaceCodec.of(entries)
    description = _DOCUMENT.write({**places.document(), "first_hi": _base64(entries.hi[::ROW_GROUP_ROWS])})
    columns = [
        pa.array(entries.hi),
        _pack(entries.tail),
        pa.array(entries.arrived_ms).cast(_SCHEMA.field("arrived_at").type),
        pa.array(places.encode(entries.tp, entries.offset)),
    ]
    table = pa.table(columns, schema=_SCHEMA)
    with pq.ParquetWriter(
        sink,
        _SCHEMA,
        compression="NONE",
        use_dictionary=False,
        column_encoding=_ENCODINGS,
        write_statistics=["hi"],
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        writer.add_key_value_metadata({_METADATA: description})
        sink.keep_from_here()


# --- reading ---


class EncodedEntries(NamedTuple):
    """Entries with `place` still encoded: a lookup compares many entries and decodes the place of few."""

    hi: Array
    tail: Array
    arrived_ms: Array
    place: Array


@dataclass(frozen=True, slots=True)
class RunFooter:
    """The footer of a sorted run's file: its row groups, and the meaning of `place`."""

    metadata: pq.FileMetaData
    first_hi: Array
    """The first `hi` of each row group, uint64."""
    places: PlaceCodec

    @classmethod
    def parse(cls, content: bytes | memoryview) -> Self:
        """Parse the last bytes of the file. Raises `ValueError`, `KeyError` or `OSError` when they are not a footer."""
        metadata = pq.read_metadata(pa.BufferReader(content))
        description = (metadata.metadata or {}).get(_METADATA.encode())
        if description is None:
            raise ValueError(f"its footer has no {_METADATA}")
        document = _DOCUMENT.read(description, "")
        first_hi = np.frombuffer(b64decode(document["first_hi"]), np.dtype("<u8"))
        if len(first_hi) != metadata.num_row_groups:
            raise ValueError(f"it has {metadata.num_row_groups} row groups, and its footer lists {len(first_hi)}")
        return cls(metadata, first_hi, PlaceCodec.parse(document))

    def byte_range(self, group: int) -> tuple[int, int]:
        """Return the position of a row group's first byte, and of the byte after its last."""
        found = self.metadata.row_group(group)
        start = int(found.column(0).data_page_offset)
        return start, start + int(found.total_byte_size)

    def groups_for(self, hi: Array) -> Array:
        """Return the row groups that can contain any of these hashes (sorted), ascending."""
        # A hash that begins a row group can also end the group before it.
        first = np.maximum(np.searchsorted(self.first_hi, hi, "left") - 1, 0)
        last = np.searchsorted(self.first_hi, hi, "right")
        steps = np.zeros(len(self.first_hi) + 1, np.int64)
        np.add.at(steps, first, 1)
        np.add.at(steps, np.maximum(first, last), -1)
        return np.flatnonzero(np.cumsum(steps[:-1]))

    def read(self, file: PartialFile, groups: Sequence[int]) -> EncodedEntries:
        """Read the entries of row groups whose bytes `file` has.

        Raises `OSError` or `ValueError` when they are damaged.
        """
        reader = pq.ParquetFile(file, metadata=self.metadata, page_checksum_verification=True)
        table = reader.read_row_groups(list(groups), use_threads=False)
        hi, tail, arrived, place = table.columns
        is_whole = pa.types.is_uint64(tail.type)  # in version 1
        tails = tail_of(tail.to_numpy()) if is_whole else _unpack(tail.combine_chunks())
        return EncodedEntries(hi.to_numpy(), tails, arrived.to_numpy().view(np.int64), place.to_numpy())

    def decode(self, entries: EncodedEntries) -> IndexEntries:
        """Return the entries with topic-partitions and offsets."""
        tp, offset = self.places.decode(entries.place)
        return IndexEntries(entries.hi, entries.tail, entries.arrived_ms, tp, offset, self.places.topic_partitions)


class PartialFile:
    """A file object for Arrow that has only some byte ranges of a file."""

    def __init__(self, parts: Sequence[tuple[int, bytes | memoryview]]) -> None:
        """`parts`: position and bytes of each range, ascending."""
        self._starts = [start for start, _ in parts]
        self._contents = [memoryview(content) for _, content in parts]
        self._position = 0
        self.closed = False

    def seek(self, position: int, whence: int = 0) -> int:
        if whence == 0:
            self._position = position
        elif whence == 1:
            self._position += position
        else:
            self._position = self._starts[-1] + len(self._contents[-1]) + position
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int) -> memoryview:
        part = bisect_right(self._starts, self._position) - 1
        start = self._position - self._starts[part]
        found = self._contents[part][start : start + size]
        self._position += len(found)
        return found

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True, slots=True)
class PlaceCodec:
    """Encodes topic-partition and offset as one int64: `start + offset - base` of the topic-partition.

    The topic-partitions follow each other, each with the span of its offsets in the run, so the numbers stay small.
    """

    topic_partitions: tuple[TopicPartition, ...]
    starts: Array
    bases: Array

    @classmethod
    def of(cls, entries: IndexEntries) -> Self:
        count = len(entries.topic_partitions)
        least, greatest = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
        np.minimum.at(least, entries.tp, entries.offset)
        np.maximum.at(greatest, entries.tp, entries.offset)
        ends = zip(least.tolist(), greatest.tolist(), strict=True)
        spans = [high - low + 1 if high >= low else 0 for low, high in ends]
        *starts, end = accumulate(spans, initial=0)
        if end >= _PLACES:
            raise ValueError(f"the offsets of {count} topic-partitions are too far apart for one run")
        bases = [low if span else 0 for low, span in zip(least.tolist(), spans, strict=True)]
        return cls(entries.topic_partitions, np.array(starts, np.int64), np.array(bases, np.int64))

    @classmethod
    def parse(cls, document: dict[str, Any]) -> Self:
        tps = tuple(TopicPartition(topic, partition) for topic, partition, _, _ in document["places"])
        numbers = np.array([[start, base] for _, _, start, base in document["places"]], np.int64).reshape(-1, 2)
        return cls(tps, numbers[:, 0], numbers[:, 1])

    def document(self) -> dict[str, Any]:
        rows = zip(self.topic_partitions, self.starts.tolist(), self.bases.tolist(), strict=True)
        return {"places": [[tp.topic, tp.partition, start, base] for tp, start, base in rows]}

    def encode(self, tp: Array, offset: Array) -> Array:
        place: Array = offset - self.bases[tp] + self.starts[tp]
        return place

    def decode(self, place: Array) -> tuple[Array, Array]:
        # If several topic-partitions have the same start, only the last one has entries.
        tp = np.searchsorted(self.starts, place, "right") - 1
        return tp.astype(np.int32), place - self.starts[tp] + self.bases[tp]


def _base64(hashes: Array) -> str:
    return b64encode(np.ascontiguousarray(hashes, np.dtype("<u8")).tobytes()).decode()


def _pack(tails: Array) -> pa.Array:
    """Return the numbers as little-endian bytes: the last bytes of the hashes, which are little-endian too."""
    octets = tails.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :_TAIL_BYTES]
    return pa.Array.from_buffers(pa.binary(_TAIL_BYTES), len(tails), [None, pa.py_buffer(np.ascontiguousarray(octets))])


def _unpack(tails: pa.FixedSizeBinaryArray) -> Array:
    """Return the numbers that `_pack` packed."""
    octets = np.zeros((len(tails), 4), np.uint8)
    stored = np.frombuffer(tails.buffers()[1], np.uint8, _TAIL_BYTES * len(tails), _TAIL_BYTES * tails.offset)
    octets[:, :_TAIL_BYTES] = stored.reshape(-1, _TAIL_BYTES)
    return octets.view("<u4").reshape(-1).astype(np.uint32, copy=False)
