"""Rows of the stream's table out of its data files, whoever wrote them, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO

from waybill.dedup.candidates import arrivals_ms
from waybill.dedup.plan import low_ms
from waybill.dedup.tasks import Piece, SweepJob, UnknownTopicPartitions
from waybill.errors import PlanUnusable, StoreUnavailable
from waybill.names import TopicPartition
from waybill.records._kernels import Array
from waybill.staging.table_layout import TableLayout
from waybill.tables import damage_named

__all__ = [
    "ARRIVAL_COLUMNS",
    "Arrivals",
    "Rows",
    "StrangeRows",
    "read_batches",
    "read_rows",
    "topic_partitions_of",
]

_BATCH_BYTES = 16 << 20
_BATCH_ROWS = 64 << 10
_FIELD_ID = b"PARQUET:field_id"

ARRIVAL_COLUMNS = ("topic", "partition", "offset", "kafka_timestamp", "event_time")
"""What `Arrivals` looks at, and the offset."""


class StrangeRows(Exception):
    """Rows of topic-partitions that the job does not know."""

    def __init__(self, unknown: UnknownTopicPartitions) -> None:
        super().__init__(", ".join(map(str, sorted(unknown.topic_partitions))))
        self.unknown = unknown


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a file, one after the other."""

    file: int
    """Ordinal in the plan's files."""
    first_row: int
    """Where in the file the first of them is, from 0."""
    batch: pa.RecordBatch


def read_rows(io: FileIO, job: SweepJob, piece: Piece, columns: Sequence[str]) -> Iterator[Rows]:
    """The rows of a piece, of the table's columns `columns` as the table has them by now, a few megabytes at a time.

    Raises `StoreUnavailable` when S3 does not answer, `PlanUnusable` when the file is gone, `DamagedFile`.
    """
    path = job.files[piece.file].path
    try:
        yield from _read_rows(io, job, piece, columns)
    except FileNotFoundError as error:
        raise PlanUnusable(
            f"plan {job.plan.key}: file {path} of table {job.main.name} is gone: the snapshot that added it expired "
            f"before dedup had swept it. Drop the tables of unique rows and of duplicates, and the next sweep starts "
            f"from what the table holds now"
        ) from error
    except OSError as error:  # what Arrow's client for S3 raises
        raise StoreUnavailable(f"file {path} of table {job.main.name} cannot be read: {error}") from error


def _read_rows(io: FileIO, job: SweepJob, piece: Piece, columns: Sequence[str]) -> Iterator[Rows]:
    for first_row, batch in read_batches(io, job.main, job.files[piece.file].path, columns, piece.row_groups):
        yield Rows(piece.file, first_row, batch)


def read_batches(
    io: FileIO, layout: TableLayout, path: str, columns: Sequence[str], row_groups: Callable[[int], range] = range
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows of a table's file, of its columns as the table has them by now, a few megabytes at a time, each time with
    the number of the first row. `row_groups`: which of the file's, by how many it has; by default all.

    Raises `FileNotFoundError` when the file is gone, `DamagedFile`, another `OSError` when it cannot be reached.
    """
    with damage_named(layout.name, path):
        yield from _read_batches(io, layout, path, columns, row_groups)


def _read_batches(
    io: FileIO, layout: TableLayout, path: str, columns: Sequence[str], row_groups: Callable[[int], range]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    wanted = layout.arrow_schema(pa.schema([(name, pa.null()) for name in columns]))
    with io.new_input(path).open() as source:
        parquet = pq.ParquetFile(source)
        names = _names_in_file(parquet.schema_arrow, wanted)
        present = [name for name in names if name is not None]
        groups = [parquet.metadata.row_group(number) for number in range(parquet.num_row_groups)]
        starts = np.concatenate(([0], np.cumsum([group.num_rows for group in groups], dtype=np.int64)))
        for number in row_groups(len(groups)):
            group, first = groups[number], int(starts[number])
            row_bytes = max(group.total_byte_size // max(group.num_rows, 1), 1)
            batch_rows = min(max(_BATCH_BYTES // row_bytes, 1), _BATCH_ROWS)
            for batch in parquet.iter_batches(batch_rows, row_groups=[number], columns=present, use_threads=False):
                yield first, _as_wanted(batch, names, wanted)
                first += batch.num_rows


def _names_in_file(file: pa.Schema, wanted: pa.Schema) -> list[str | None]:
    """What the file calls each column; None: it is older than the column. Iceberg knows columns by their ids."""
    by_id = {field.metadata[_FIELD_ID]: field.name for field in file if field.metadata and _FIELD_ID in field.metadata}
    if not by_id:  # written without Iceberg and added as it is
        return [field.name if field.name in file.names else None for field in wanted]
    return [by_id.get(field.metadata[_FIELD_ID]) for field in wanted]


def _as_wanted(batch: pa.RecordBatch, names: Sequence[str | None], wanted: pa.Schema) -> pa.RecordBatch:
    columns = []
    for name, field in zip(names, wanted, strict=True):
        column = pa.nulls(batch.num_rows, field.type) if name is None else batch.column(name)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=wanted.remove_metadata())


def topic_partitions_of(batch: pa.RecordBatch) -> tuple[Array, tuple[TopicPartition, ...]]:
    """The topic-partition of each row, int32, and what these numbers mean: those that occur."""
    topic = batch.column("topic").dictionary_encode()
    place = pc.bit_wise_or(
        pc.shift_left(topic.indices.cast(pa.int64()), 32), batch.column("partition").cast(pa.int64())
    ).dictionary_encode()
    topics = topic.dictionary.to_pylist()
    found = tuple(TopicPartition(topics[n >> 32], n & 0xFFFF_FFFF) for n in place.dictionary.to_pylist())
    return place.indices.to_numpy(), found


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Tells topic-partitions by their number in the job, and when rows arrived."""

    codes: dict[TopicPartition, int]
    low_ms: Array
    high_ms: int

    @classmethod
    def of(cls, job: SweepJob) -> Arrivals:
        plan = job.plan
        low = [low_ms(plan.watermarks, tp, plan.window_ms) for tp in job.topic_partitions]
        codes = {tp: code for code, tp in enumerate(job.topic_partitions)}
        return cls(codes, np.array(low, np.int64), plan.high_ms)

    def codes_of(self, batch: pa.RecordBatch) -> Array:
        """The topic-partition of each row, int32. Raises `StrangeRows` for those that the job does not know."""
        numbers, found = topic_partitions_of(batch)
        unknown = frozenset(tp for tp in found if tp not in self.codes)
        if unknown:
            raise StrangeRows(UnknownTopicPartitions(unknown))
        of_rows: Array = np.array([self.codes[tp] for tp in found], np.int32)[numbers]
        return of_rows

    def ms_of(self, batch: pa.RecordBatch, codes: Array) -> Array:
        """When each row arrived, epoch ms."""
        return arrivals_ms(
            batch.column("kafka_timestamp"), batch.column("event_time"), codes, self.low_ms, self.high_ms
        )
