"""Runs of the key index: the kept keys of one bucket over a span of the unique table's snapshots, in two files.

*The run*: Parquet, sorted by key hash, in small row groups whose footer says which hashes they can hold. *Its filter*
(`filters`): answers for the keys that are surely not there without touching the run. Both are derived from the unique
table: a run that is damaged or gone is made again from there, so nothing here repairs anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from waybill.names import TopicPartition

__all__ = ["Array", "Files", "Matches", "Run", "RunKeys"]

Array: TypeAlias = np.ndarray[Any, Any]


class Files(Protocol):
    """Where the index's files lie: a `Store`, or a directory of the local disk in `bench/dedup.py`.

    Every method raises `ObjectMissing` or `ObjectAlreadyThere`, and `StoreUnavailable` where calling again can help.
    """

    def read(self, key: str) -> bytes:
        """A whole file."""

    def read_range(self, key: str, start: int, length_bytes: int) -> bytes:
        """`length_bytes` from byte `start` on; less only where the file ends before."""

    def create_if_absent(self, key: str, data: Any) -> None:
        """Create a file of a few MiB at most."""

    def upload_if_absent(self, key: str) -> Any:
        """Begin a file of any size: a context manager with `write(data)` and `complete()`, as `store.Upload` is."""


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
