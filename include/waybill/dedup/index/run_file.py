"""The Parquet file of a run: entries sorted by key hash, in row groups small enough to read for one key.

Columns, all required, none compressed (hashes cannot be, and the encodings leave little of the others):

- `hi`, `lo`: the key's hash, uint64. `hi` is sorted, and DELTA_BINARY_PACKED.
- `arrived_at`: timestamp in ms, UTC, DELTA_BINARY_PACKED.
- `place`: int64, DELTA_BINARY_PACKED: topic-partition and offset as one number that is as small as the run allows. The
  topic-partitions follow each other, each with the span of its offsets in the run.

Its metadata has, under `waybill.run`, where each topic-partition's places start and which offset that is; and the first
`hi` of each row group, since asking Arrow for two thousand statistics takes longer than reading what they point to.
Every page has a checksum.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from waybill.documents import read_document
from waybill.names import TopicPartition

__all__ = ["ROW_GROUP_ROWS", "Array", "Entries", "Footer", "Pieces", "Places", "RunKeys", "Sink", "write"]

Array: TypeAlias = np.ndarray[Any, Any]

ROW_GROUP_ROWS = 2048
"""Smaller ones make the footer long, larger ones are more to read and decode for one key: 41 KB are a good read."""

_VERSION = 1
_METADATA = "waybill.run"
_DELTA = "DELTA_BINARY_PACKED"
_ENCODINGS = {"hi": _DELTA, "lo": "PLAIN", "arrived_at": _DELTA, "place": _DELTA}
_SCHEMA = pa.schema(
    [
        pa.field("hi", pa.uint64(), nullable=False),
        pa.field("lo", pa.uint64(), nullable=False),
        pa.field("arrived_at", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("place", pa.int64(), nullable=False),
    ]
)
_PLACES = 1 << 63  # what int64 holds


@dataclass(frozen=True, slots=True)
class RunKeys:
    """Entries of the index, sorted by (hi, lo): numpy arrays of one length.

    Entries of one key (kept again after the window) lie side by side, in no order that anybody may rely on.
    """

    hi: Array
    lo: Array
    """The key's hash, uint64 each."""
    arrived_ms: Array
    """Arrival of the kept row as dedup counts it, epoch ms, int64."""
    tp: Array
    """Its topic-partition: index in `topic_partitions`, int32."""
    offset: Array
    """Its Kafka offset, int64."""
    topic_partitions: tuple[TopicPartition, ...]

    def __len__(self) -> int:
        return len(self.hi)

    def at(self, rows: Array | slice) -> RunKeys:
        """The entries of these indices, ascending, or where this mask is true."""
        return RunKeys(
            self.hi[rows], self.lo[rows], self.arrived_ms[rows], self.tp[rows], self.offset[rows], self.topic_partitions
        )


class _Writing(Protocol):
    def write(self, data: Any) -> None: ...


class Sink:
    """What Arrow writes a file to: passes it on, and keeps what comes after `keep`."""

    def __init__(self, to: _Writing) -> None:
        self._to = to
        self._kept: bytearray | None = None
        self.size_bytes = 0
        self.closed = False

    def keep(self) -> None:
        self._kept = bytearray()

    @property
    def kept(self) -> bytes:
        return bytes(self._kept or b"")

    def write(self, data: Any) -> int:
        with memoryview(data) as view:
            self._to.write(view)
            if self._kept is not None:
                self._kept += view
            self.size_bytes += len(view)
            return len(view)

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None:
        """What it is passed on to decides when something is sent."""

    def close(self) -> None:
        self.closed = True


def write(sink: Sink, keys: RunKeys) -> None:
    """The file of `keys`, at least one; what `sink` has kept afterwards is the footer.

    Raises `ValueError` when the offsets are so far apart that the sum of their spans is no int64.
    """
    places = Places.of(keys)
    description = {"v": _VERSION, **places.document(), "first_hi": _text(keys.hi[::ROW_GROUP_ROWS])}
    columns = [keys.hi, keys.lo, keys.arrived_ms, places.encode(keys.tp, keys.offset)]
    table = pa.table([pa.array(v).cast(f.type) for v, f in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA)
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
        writer.add_key_value_metadata({_METADATA: json.dumps(description, separators=(",", ":"))})
        sink.keep()


@dataclass(frozen=True, slots=True)
class Footer:
    """What a run's footer says: which row groups there are, and what `place` means."""

    metadata: pq.FileMetaData
    first_hi: Array
    """The first hash of each row group."""
    places: Places

    @classmethod
    def parse(cls, content: bytes | memoryview) -> Self:
        """From the file's last bytes. Raises `ValueError`, `KeyError` or `OSError` when they are no such footer."""
        metadata = pq.read_metadata(pa.BufferReader(content))
        found = (metadata.metadata or {}).get(_METADATA.encode())
        if found is None:
            raise ValueError(f"its footer has no {_METADATA}")
        document = read_document(found, _VERSION, "a run of the key index")
        first_hi = np.frombuffer(b64decode(document["first_hi"]), np.dtype("<u8"))
        if len(first_hi) != metadata.num_row_groups:
            raise ValueError(f"it has {metadata.num_row_groups} row groups and says where {len(first_hi)} begin")
        return cls(metadata, first_hi, Places.parse(document))

    def extent(self, group: int) -> tuple[int, int]:
        """Where a row group's bytes start and end."""
        found = self.metadata.row_group(group)
        start = int(found.column(0).data_page_offset)
        return start, start + int(found.total_byte_size)

    def holding(self, hi: Array) -> Array:
        """The row groups that can hold any of these hashes (sorted), ascending."""
        # A hash that a row group begins with can be at the end of the one before it, too.
        first = np.maximum(np.searchsorted(self.first_hi, hi, "left") - 1, 0)
        last = np.searchsorted(self.first_hi, hi, "right")
        steps = np.zeros(len(self.first_hi) + 1, np.int64)
        np.add.at(steps, first, 1)
        np.add.at(steps, np.maximum(first, last), -1)
        return np.flatnonzero(np.cumsum(steps[:-1]))

    def read(self, file: Pieces, groups: Sequence[int]) -> Entries:
        """The entries of some row groups, whose bytes `file` has.

        Raises `OSError` or `ValueError` when they are damaged.
        """
        reader = pq.ParquetFile(file, metadata=self.metadata, page_checksum_verification=True)
        table = reader.read_row_groups(list(groups), use_threads=False)
        hi, lo, arrived, place = (column.to_numpy() for column in table.columns)
        return Entries(hi, lo, arrived.view(np.int64), place)

    def keys(self, entries: Entries) -> RunKeys:
        """The same as everybody knows them."""
        tp, offset = self.places.decode(entries.place)
        return RunKeys(entries.hi, entries.lo, entries.arrived_ms, tp, offset, self.places.topic_partitions)


class Entries(NamedTuple):
    """Entries as the file has them: a lookup compares many, and wants to know of few where they are from."""

    hi: Array
    lo: Array
    arrived_ms: Array
    place: Array


class Pieces:
    """A file of which some parts are here, for Arrow to read."""

    def __init__(self, parts: Sequence[tuple[int, bytes | memoryview]]) -> None:
        """`parts`: where each starts, and its bytes; in order."""
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
class Places:
    """Topic-partition and offset as one number: `start + offset - base` of that topic-partition."""

    topic_partitions: tuple[TopicPartition, ...]
    starts: Array
    bases: Array

    @classmethod
    def of(cls, keys: RunKeys) -> Self:
        count = len(keys.topic_partitions)
        least, greatest = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
        np.minimum.at(least, keys.tp, keys.offset)
        np.maximum.at(greatest, keys.tp, keys.offset)
        ends = zip(least.tolist(), greatest.tolist(), strict=True)
        spans = [high - low + 1 if high >= low else 0 for low, high in ends]
        *starts, end = accumulate(spans, initial=0)
        if end >= _PLACES:
            raise ValueError(f"the offsets of {count} topic-partitions are too far apart for one run")
        bases = [low if span else 0 for low, span in zip(least.tolist(), spans, strict=True)]
        return cls(keys.topic_partitions, np.array(starts, np.int64), np.array(bases, np.int64))

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
        # Of topic-partitions that start at the same place only the last has any.
        tp = np.searchsorted(self.starts, place, "right") - 1
        return tp.astype(np.int32), place - self.starts[tp] + self.bases[tp]


def _text(hashes: Array) -> str:
    return b64encode(np.ascontiguousarray(hashes, np.dtype("<u8")).tobytes()).decode()
