"""Marks: which rows of a sweep's files are duplicates, and of what. From the tasks that judge to those that write.

An object of Parquet beside the plan for each task that judges, sorted by file and row, in small row groups: a task
that writes reads only those of its files.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO

from waybill.log._kernels import Array
from waybill.names import TopicPartition, sweep_marks_key
from waybill.store import Store

__all__ = ["MarkedRows", "Marks", "marks_of_files", "write_marks"]

_ROW_GROUP_ROWS = 64 << 10
_THREADS = 8

_SCHEMA = pa.schema(
    [
        pa.field("file", pa.int32(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("first_topic", pa.string(), nullable=False),
        pa.field("first_partition", pa.int32(), nullable=False),
        pa.field("first_offset", pa.int64(), nullable=False),
        pa.field("first_arrived_ms", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Marks:
    """Rows that are duplicates: file, by its ordinal in the plan, row in it, and where its key was first seen."""

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @classmethod
    def of(
        cls,
        *,
        file: Array,
        row: Array,
        first_tp: Array,
        first_offset: Array,
        first_arrived_ms: Array,
        topic_partitions: Sequence[TopicPartition],
    ) -> Marks:
        """Columns of one length; `first_tp`: ordinals in `topic_partitions`."""
        topics = pa.array([tp.topic for tp in topic_partitions], pa.string())
        partitions = pa.array([tp.partition for tp in topic_partitions], pa.int32())
        ordinals = pa.array(first_tp)
        columns = [
            pa.array(file, pa.int32()),
            pa.array(row, pa.int64()),
            topics.take(ordinals),
            partitions.take(ordinals),
            pa.array(first_offset, pa.int64()),
            pa.array(first_arrived_ms, pa.int64()),
        ]
        return cls(pa.Table.from_arrays(columns, schema=_SCHEMA))

    @staticmethod
    def concat(parts: Sequence[Marks]) -> Marks:
        """All of them, in order of file and row."""
        table = pa.concat_tables([_SCHEMA.empty_table(), *(part.table for part in parts)])
        return Marks(table.sort_by([("file", "ascending"), ("row", "ascending")]))

    def of_rows(self, file: int, first_row: int, rows: int) -> MarkedRows:
        """Those of `rows` rows of a file from `first_row` on; the table must be in order, and of one chunk."""
        files = self.table.column("file").to_numpy()
        begin, end = np.searchsorted(files, [file, file + 1])
        of_file = self.table.column("row").to_numpy()[begin:end]
        first, last = np.searchsorted(of_file, [first_row, first_row + rows])
        found = self.table.slice(begin + first, last - first)
        return MarkedRows(of_file[first:last] - first_row, found)


@dataclass(frozen=True, slots=True)
class MarkedRows:
    """Which of some rows are duplicates."""

    at: Array
    """Their places among these rows, ascending."""
    marks: pa.Table
    """What is said of each."""


def write_marks(store: Store, plan: str, marks: Marks) -> str:
    """Create an object that says it, beside the plan of that key. Returns the object's key."""
    key = sweep_marks_key(plan, uuid.uuid4().hex)
    sink = io.BytesIO()
    pq.write_table(marks.table, sink, row_group_size=_ROW_GROUP_ROWS, compression="zstd", write_page_checksum=True)
    with store.upload_if_absent(key) as upload:
        upload.write(sink.getbuffer())
        upload.complete()
    return key


def marks_of_files(files_io: FileIO, locations: Sequence[str], files: Sequence[int]) -> Marks:
    """What the objects at these locations say of some files of the plan, in order."""
    wanted = pa.array(sorted(set(files)), pa.int32())

    def read(location: str) -> Marks:
        with files_io.new_input(location).open() as source:
            table = pq.read_table(source, filters=pc.field("file").isin(wanted), page_checksum_verification=True)
        return Marks(table.cast(_SCHEMA))

    with ThreadPoolExecutor(_THREADS) as pool:
        found = Marks.concat(list(pool.map(read, locations)))
    return Marks(found.table.combine_chunks())
