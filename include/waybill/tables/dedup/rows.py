"""Rows of a sweep: read from the stream's data files in bounded memory, with topic-partition and arrival."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO

from waybill.base.errors import PlanUnusable, StoreUnavailable
from waybill.config.names import TopicPartition
from waybill.records.batches._kernels import Array
from waybill.tables.dedup.sweep_plan import earliest_arrival_ms
from waybill.tables.dedup.tasks import FilePart, SweepJob, UnplannedPartitions
from waybill.tables.staging.file_reader import read_batches

ARRIVAL_COLUMNS = ("topic", "partition", "offset", "kafka_timestamp", "event_time")
"""The columns that `Arrivals` needs, and the offset."""


# --- reading ---


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Consecutive rows of a file."""

    file: int
    """Position of the file in the plan's list."""
    first_row: int
    """Position of the first row in the file, from 0."""
    batch: pa.RecordBatch


def read_rows(io: FileIO, job: SweepJob, part: FilePart, columns: Sequence[str]) -> Iterator[RowBatch]:
    """Yield the rows of a part of a file with these columns of the present table schema, a few megabytes at a time.

    Raises `StoreUnavailable` when S3 does not answer, `PlanUnusable` when the file does not exist any more,
    `DamagedFile`.
    """
    path = job.files[part.file].path
    try:
        for first_row, batch in read_batches(io, job.main, path, columns, part.row_groups):
            yield RowBatch(part.file, first_row, batch)
    except FileNotFoundError as error:
        raise PlanUnusable(
            f"plan {job.plan.key}: file {path} of table {job.main.name} does not exist any more: the snapshot that "
            f"added it expired before a dedup sweep. Drop the unique table and the duplicates table, and the next "
            f"sweep starts from what the main table holds now"
        ) from error
    except OSError as error:  # raised by Arrow's S3 client
        raise StoreUnavailable(f"file {path} of table {job.main.name} cannot be read: {error}") from error


# --- topic-partition and arrival ---


class UnplannedPartitionsFound(Exception):
    """Rows have topic-partitions that the job does not list."""

    def __init__(self, unplanned: UnplannedPartitions) -> None:
        super().__init__(", ".join(map(str, sorted(unplanned.topic_partitions))))
        self.unplanned = unplanned


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Computes the topic-partition number and the arrival of rows."""

    numbers: dict[TopicPartition, int]
    """Position of each topic-partition in the job's list."""
    earliest_ms: Array
    latest_ms: int

    @classmethod
    def of(cls, job: SweepJob) -> Arrivals:
        plan = job.plan
        earliest = [earliest_arrival_ms(plan.watermarks, tp, plan.window_ms) for tp in job.topic_partitions]
        numbers = {tp: number for number, tp in enumerate(job.topic_partitions)}
        return cls(numbers, np.array(earliest, np.int64), plan.latest_arrival_ms)

    def numbers_of(self, batch: pa.RecordBatch) -> Array:
        """Return the topic-partition number of each row, int32.

        Raises `UnplannedPartitionsFound` if the job does not list a topic-partition.
        """
        row_numbers, found = topic_partitions_of(batch)
        unplanned = frozenset(tp for tp in found if tp not in self.numbers)
        if unplanned:
            raise UnplannedPartitionsFound(UnplannedPartitions(unplanned))
        of_rows: Array = np.array([self.numbers[tp] for tp in found], np.int32)[row_numbers]
        return of_rows

    def ms_of(self, batch: pa.RecordBatch, numbers: Array) -> Array:
        """Return the arrival of each row, epoch ms, int64. `numbers`: what `numbers_of` returned for the batch."""
        return arrivals_ms(
            batch.column("kafka_timestamp"), batch.column("event_time"), numbers, self.earliest_ms, self.latest_ms
        )


def topic_partitions_of(batch: pa.RecordBatch) -> tuple[Array, tuple[TopicPartition, ...]]:
    """Return a number for the topic-partition of each row, int32, and the topic-partitions in the order of numbers."""
    topic = batch.column("topic").dictionary_encode()
    place = pc.bit_wise_or(
        pc.shift_left(topic.indices.cast(pa.int64()), 32), batch.column("partition").cast(pa.int64())
    ).dictionary_encode()
    topics = topic.dictionary.to_pylist()
    found = tuple(TopicPartition(topics[n >> 32], n & 0xFFFF_FFFF) for n in place.dictionary.to_pylist())
    return place.indices.to_numpy(), found


def arrivals_ms(
    kafka_timestamp: pa.Array, event_time: pa.Array, tp: Array, earliest_ms: Array, latest_ms: int
) -> Array:
    """Return the arrival of each row as dedup defines it: epoch ms, int64.

    The arrival is Kafka's timestamp, or the event time if there is none, in whole milliseconds, not later than
    `latest_ms` and not earlier than `earliest_ms[tp]` (int64; `NO_HORIZON_MS`: no bound). If the bounds contradict, the
    lower one applies.

    Raises `ValueError` if a row has neither time.
    """
    times = pc.coalesce(kafka_timestamp, event_time.cast(kafka_timestamp.type))
    if times.null_count:
        raise ValueError(f"{times.null_count:,} rows have neither kafka_timestamp nor event_time")
    return np.maximum(np.minimum(_whole_ms(times), latest_ms), np.asarray(earliest_ms, np.int64)[tp])


def _whole_ms(times: pa.Array) -> Array:
    """Return timestamps of any unit in ms, rounded down, before 1970 too."""
    ticks: Array = times.cast(pa.int64()).to_numpy()
    per_second = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[times.type.unit]
    return ticks * 1_000 if per_second == 1 else ticks // (per_second // 1_000)
