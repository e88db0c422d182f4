"""Sets of messages, identified by topic-partition and offset."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from waybill.config.names import TopicPartition

if TYPE_CHECKING:
    Int64s = np.ndarray[Any, np.dtype[np.int64]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]

_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
    ]
)


class OffsetSet:
    """A set of messages. Takes 8 bytes of memory for each."""

    def __init__(self, by_tp: Mapping[TopicPartition, Int64s] | None = None) -> None:
        """`by_tp`: the offsets of each topic-partition, ascending and without duplicates."""
        self._by_tp = {tp: offsets for tp, offsets in sorted((by_tp or {}).items()) if len(offsets)}

    def __len__(self) -> int:
        return sum(len(offsets) for offsets in self._by_tp.values())

    @property
    def ranges(self) -> dict[TopicPartition, tuple[int, int]]:
        """The range `[first, next)` of each topic-partition's offsets."""
        return {tp: (int(offsets[0]), int(offsets[-1]) + 1) for tp, offsets in self._by_tp.items()}

    def of(self, tp: TopicPartition) -> Int64s:
        """Return the offsets of a topic-partition, ascending."""
        return self._by_tp.get(tp, np.empty(0, np.int64))

    def mask(self, rows: pa.RecordBatch) -> Bools:
        """Return which rows are in the set. The rows have the columns topic, partition and offset."""
        found = np.zeros(rows.num_rows, bool)
        if not self._by_tp:
            return found
        offsets = rows.column("offset").to_numpy()
        for tp, places in by_topic_partition(rows):
            found[places] = self.contains(tp, offsets[places])
        return found

    def contains(self, tp: TopicPartition, offsets: Int64s) -> Bools:
        """Return which of a topic-partition's offsets are in the set."""
        known = self.of(tp)
        if not len(known):
            return np.zeros(len(offsets), bool)
        places = np.minimum(np.searchsorted(known, offsets), len(known) - 1)
        return np.asarray(known[places] == offsets)

    def union(self, other: OffsetSet) -> OffsetSet:
        """Return the union of both sets."""
        tps = {*self._by_tp, *other._by_tp}
        return OffsetSet({tp: np.union1d(self.of(tp), other.of(tp)) for tp in tps})

    def to_parquet(self) -> bytes:
        """Return a Parquet file with one row for each message, in order."""
        sink = io.BytesIO()
        with pq.ParquetWriter(
            sink,
            _SCHEMA,
            compression="zstd",
            use_dictionary=["topic", "partition"],
            column_encoding={"offset": "DELTA_BINARY_PACKED"},
        ) as writer:
            for tp, offsets in self._by_tp.items():
                n = len(offsets)
                columns = [pa.repeat(tp.topic, n), pa.repeat(pa.scalar(tp.partition, pa.int32()), n), offsets]
                writer.write_table(pa.Table.from_arrays([pa.array(c) for c in columns], schema=_SCHEMA))
        return sink.getvalue()

    @classmethod
    def from_parquet(cls, content: bytes) -> OffsetSet:
        """Parse what `to_parquet` returned. Raises `ValueError` for anything else."""
        builder = OffsetsBuilder()
        for batch in pq.ParquetFile(io.BytesIO(content)).iter_batches():
            builder.add_rows(batch)
        return builder.result()


class OffsetsBuilder:
    """Collects a set piece by piece."""

    def __init__(self) -> None:
        self._pieces: dict[TopicPartition, list[Int64s]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, tp: TopicPartition, offsets: Int64s) -> None:
        """Add offsets of a topic-partition, in any order."""
        if len(offsets):
            self._pieces.setdefault(tp, []).append(offsets.copy())  # a view would keep the whole batch in memory
            self._count += len(offsets)

    def add_rows(self, rows: pa.RecordBatch) -> None:
        """Add the messages of rows with the columns topic, partition and offset."""
        offsets = rows.column("offset").to_numpy()
        for tp, places in by_topic_partition(rows):
            self.add(tp, offsets[places])

    def repeated(self) -> list[str]:
        """Return the messages that were added more than once, each as `topic/partition@offset`."""
        found = []
        for tp, pieces in sorted(self._pieces.items()):
            offsets, times = np.unique(np.concatenate(pieces), return_counts=True)
            found += [f"{tp}@{offset}" for offset in offsets[times > 1].tolist()]
        return found

    def result(self) -> OffsetSet:
        """Return the set of all added messages."""
        return OffsetSet({tp: np.unique(np.concatenate(pieces)) for tp, pieces in self._pieces.items()})


def by_topic_partition(rows: pa.RecordBatch) -> Iterator[tuple[TopicPartition, Int64s]]:
    """Yield the topic-partitions of the rows, each with the indices of its rows in order."""
    topics = rows.column("topic").dictionary_encode()
    topic = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    partition = rows.column("partition").to_numpy().astype(np.int64)
    codes, inverse = np.unique((topic << 32) | partition, return_inverse=True)
    for number, code in enumerate(codes.tolist()):
        tp = TopicPartition(topics.dictionary[code >> 32].as_py(), code & 0xFFFFFFFF)
        yield tp, np.flatnonzero(inverse == number)
