"""Build the key index from the unique table: add the missing rows, or rebuild the index.

A sweep that dies between its commit and the index manifest leaves the index behind; then only the files of the missing
snapshots are read. Two cases need a rebuild: the table's history does not lead from the covered snapshot to the current
one (it has expired, or the table was rolled back), or no manifest is usable. A rebuild reads all files that can have
rows that arrived at or after the horizon. In both cases the index gives the same answers as one that sweeps kept up to
date: its entries are the rows of the unique table that have a key, and its content depends on nothing else.

The work is cut into tasks of as many rows as fit into memory, in the order of arrival. Each task writes one sorted run
for each bucket, and merges (`waybill.tables.dedup.index.merge`) reduce their number.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.types import TimestamptzType

from waybill.base.errors import CommitConflict, ObjectMissing, PlanUnusable, SweepHistoryLost
from waybill.config.models import Storage
from waybill.config.models.dedup import ARRIVED_AT, Dedup
from waybill.services.store import Store
from waybill.tables.dedup.appends import TablePosition, current_position, scan_appends
from waybill.tables.dedup.index.manifest import IndexIdentity, IndexStore, Manifest, load_manifest, save_manifest
from waybill.tables.dedup.index.merge import (
    MERGE_BYTES_PER_KEY,
    ForEach,
    MergePolicy,
    least_run_keys,
    merge_entries,
    one_by_one,
    split_by_expiry,
)
from waybill.tables.dedup.index.run_file import IndexEntries, tail_of
from waybill.tables.dedup.index.sorted_runs import FileStore, SortedRun, write_run
from waybill.tables.dedup.keys import exclude_assigned_ids, hash_keys, hash_range_of
from waybill.tables.dedup.rows import topic_partitions_of
from waybill.tables.iceberg.catalog import task_io, translate_catalog_errors
from waybill.tables.iceberg.dedup import NO_HORIZON_MS
from waybill.tables.iceberg.files import translate_storage_errors
from waybill.tables.iceberg.state import SWEEP_HORIZON_PROPERTY, live_files, newest_property
from waybill.tables.staging.file_reader import read_batches
from waybill.tables.staging.table_layout import TableLayout

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
_NO_LIMIT = 1 << 63


@dataclass(frozen=True, slots=True)
class BuildJob:
    """The input that all tasks share. It is sent to executors and logged: no credentials."""

    index: str
    """Prefix of the object keys of the index."""
    identity: IndexIdentity
    unique: TableLayout
    horizon_ms: int
    """Horizon of the unique table's state: rows that arrived before it are left out."""
    memory_bytes: int
    """Memory of a task."""
    window_ms: int
    budget_bytes: int
    """Limit of the index's size."""

    @classmethod
    def of_table(cls, index: str, identity: IndexIdentity, unique: Table, horizon_ms: int, settings: Dedup) -> BuildJob:
        """Return the job that indexes the loaded `unique`."""
        return cls(
            index=index,
            identity=identity,
            unique=TableLayout.of(unique),
            horizon_ms=horizon_ms,
            memory_bytes=settings.memory,
            window_ms=settings.window_ms,
            budget_bytes=settings.index_budget_bytes,
        )

    @property
    def most_rows(self) -> int:
        """Return the number of rows that fit into a task's memory."""
        return max(self.memory_bytes // MERGE_BYTES_PER_KEY, 1)


@dataclass(frozen=True, slots=True)
class BuildTask:
    """Whole files of the unique table."""

    files: tuple[str, ...]
    first_sequence: int
    last_sequence: int
    """Range of sequence numbers for the runs; see `SortedRun`."""


Work = Callable[[BuildTask], list[SortedRun]]


@dataclass(frozen=True, slots=True)
class _UniqueFile:
    path: str
    records: int
    last_arrived_ms: int | None = None
    """None: not known."""


# --- the driver -------------------------------------------------------------------------------------------------------


def bring_up_to_date(
    files: IndexStore, job: BuildJob, unique: Table, *, for_each: ForEach = one_by_one, work: Work | None = None
) -> Manifest:
    """Refresh `unique`, and return an index of all its rows: the stored index with the missing rows, or a new one.

    The returned manifest is saved and covers the table's current snapshot. Its horizon is not above the job's, nor
    above the one that the table has after the refresh. `work` runs one task wherever `for_each` runs it; by default in
    this process. Several processes may do this at the same time: one of them saves its manifest, and the others use it.

    Raises `CommitConflict` when other processes save faster than this one can, `StoreUnavailable`, `PlanUnusable` when
    a file of the unique table does not exist, `DamagedFile`.
    """
    return _build_until_saved(files, job, unique, for_each, work, from_scratch=False)


def rebuild(
    files: IndexStore, job: BuildJob, unique: Table, *, for_each: ForEach = one_by_one, work: Work | None = None
) -> Manifest:
    """Return an index built from all files, even if a usable one is stored. Otherwise as `bring_up_to_date`."""
    return _build_until_saved(files, job, unique, for_each, work, from_scratch=True)


def _build_until_saved(
    files: IndexStore, job: BuildJob, unique: Table, for_each: ForEach, work: Work | None, *, from_scratch: bool
) -> Manifest:
    missing: ObjectMissing | None = None
    ours: Manifest | None = None
    for _ in range(_ATTEMPTS):
        # Load the manifest first: then the table has all rows that the manifest covers.
        loaded = load_manifest(files, job.index, job.identity)
        with translate_catalog_errors(f"load {job.unique.name}"):
            unique.refresh()
        builder = _Builder(job, unique, for_each, work or partial(index_rows, files, unique.io, job))
        try:
            # Sweeps continue during a rebuild: the second attempt adds the missing rows to the rebuilt index, and does
            # not start again.
            manifest = builder.build_on(ours if from_scratch else loaded.manifest)
        except ObjectMissing as error:
            # The file's snapshot has expired since the table was loaded. The files of the current one exist.
            logger.warning("key index %s: %s; loading the table again", job.index, error)
            missing, ours, from_scratch = error, None, True
            continue
        if manifest.version:  # a stored manifest that covers everything
            return manifest
        saved = save_manifest(files, job.index, loaded.newest_version, manifest)
        if saved is not None:
            return saved
        ours = manifest
    if missing is not None:
        raise PlanUnusable(
            f"table {job.unique.name}: {missing}: the key index cannot be built from it. Roll the table back to a "
            f"snapshot whose files exist, or drop it and the duplicates table, and the next sweep starts from what the "
            f"main table holds"
        ) from missing
    raise CommitConflict(f"key index {job.index}: {_ATTEMPTS} manifests were refused, each because another came first")


class _Builder:
    """Builds the index of a loaded table, in one attempt."""

    def __init__(self, job: BuildJob, unique: Table, for_each: ForEach, work: Work) -> None:
        self._job = job
        self._unique = unique
        self._for_each = for_each
        self._work = work
        self._end = current_position(unique)

    def build_on(self, manifest: Manifest | None) -> Manifest:
        """Return `manifest` itself if it covers the table, else one with the missing rows added, else a new index."""
        if manifest is None:
            return self.build_new()
        if manifest.horizon_ms > max(self._job.horizon_ms, self._current_horizon_ms()):
            logger.warning(
                "key index %s: manifest %d has no rows from before %d, but the unique table was rolled back and "
                "compares rows from %d on: the index is rebuilt",
                self._job.index,
                manifest.version,
                manifest.horizon_ms,
                self._job.horizon_ms,
            )
            return self.build_new()
        covered = TablePosition(manifest.covers_snapshot, manifest.covers)
        if covered == self._end:
            return manifest
        try:
            appended = scan_appends(self._unique, covered, run_bytes=_NO_LIMIT)
        except SweepHistoryLost:
            logger.warning(
                "key index %s: the history of table %s does not lead back to snapshot %s, which manifest %d covers: "
                "the index is rebuilt",
                self._job.index,
                self._job.unique.name,
                manifest.covers_snapshot,
                manifest.version,
            )
            return self.build_new()
        files = [_UniqueFile(file.path, file.records) for file in appended.files] if appended else []
        runs = self._index(files, covered.sequence)
        if runs:
            logger.info(
                "key index %s: caught up from sequence number %d to %d, by %s rows",
                self._job.index,
                covered.sequence,
                self._end.sequence,
                f"{sum(run.keys for run in runs):,}",
            )
        return self._with_runs(manifest, runs)

    def build_new(self) -> Manifest:
        """Return an index of all files that can have rows that arrived at or after the horizon."""
        files = [
            file
            for file in _files_by_arrival(self._unique)
            if file.last_arrived_ms is None or file.last_arrived_ms >= self._job.horizon_ms
        ]
        built = self._with_runs(Manifest.empty(self._job.identity), self._index(files, 0))
        logger.info(
            "key index %s: built from %d files with %s rows of table %s",
            self._job.index,
            len(files),
            f"{sum(file.records for file in files):,}",
            self._job.unique.name,
        )
        return built

    def _current_horizon_ms(self) -> int:
        """Return the horizon of the loaded table: it is higher than the job's if a rival committed the sweep."""
        return int(newest_property(self._unique.metadata, SWEEP_HORIZON_PROPERTY) or NO_HORIZON_MS)

    def _with_runs(self, manifest: Manifest, runs: Sequence[SortedRun]) -> Manifest:
        extended = replace(
            manifest,
            covers=self._end.sequence,
            covers_snapshot=self._end.snapshot_id,
            runs=(*manifest.runs, *runs),
            version=0,
        )
        return extended.with_horizon(self._job.horizon_ms)

    def _index(self, files: Iterable[_UniqueFile], covered: int) -> list[SortedRun]:
        tasks = [BuildTask(paths, covered + 1, self._end.sequence) for paths in _packed(files, self._job.most_rows)]
        return [run for runs in self._for_each(self._work, tasks) for run in runs]


def _files_by_arrival(unique: Table) -> list[_UniqueFile]:
    """Return the data files of the table's current snapshot, sorted by their last arrival."""
    field_id = unique.schema().find_field(ARRIVED_AT).field_id

    def last_arrived_ms(file: DataFile) -> int | None:
        bound = (file.upper_bounds or {}).get(field_id)
        return None if bound is None else int(from_bytes(TimestamptzType(), bound)) // 1000

    found = [
        _UniqueFile(file.file_path, file.record_count, last_arrived_ms(file))
        for file in live_files(unique, unique.metadata.current_snapshot())
    ]
    return sorted(found, key=lambda file: (file.last_arrived_ms or 0, file.path))


def _packed(files: Iterable[_UniqueFile], most_rows: int) -> Iterator[tuple[str, ...]]:
    """Pack files, in their order, into tasks of at most that many rows; a larger file is a separate task."""
    paths: list[str] = []
    rows = 0
    for file in files:
        if paths and rows + file.records > most_rows:
            yield tuple(paths)
            paths, rows = [], 0
        paths.append(file.path)
        rows += file.records
    if paths:
        yield tuple(paths)


# --- a task -----------------------------------------------------------------------------------------------------------


def run_build_task(storage: Storage, catalog_connection: str, job: BuildJob, task: BuildTask) -> list[SortedRun]:
    """Run one task on an executor, with its own connections. Raises as `index_rows` does."""
    io = task_io(storage, catalog_connection, job.unique.data_location)
    with Store.of(storage) as store:
        return index_rows(store, io, job, task)


def index_rows(files: FileStore, io: FileIO, job: BuildJob, task: BuildTask) -> list[SortedRun]:
    """Write the sorted runs of a task's rows that have a key and arrived at or after the horizon.

    Raises `ObjectMissing` when a file of the table does not exist, `DamagedFile`, `StoreUnavailable`.
    """
    runs: list[SortedRun] = []
    parts: list[IndexEntries] = []
    for path in task.files:
        with _translate_read_errors(job, path):
            for _, batch in read_batches(io, job.unique, path, _columns(job)):
                parts.append(_entries_of(job, batch))
                if sum(map(len, parts)) >= job.most_rows:
                    runs += _write_runs(files, job, task, parts)
                    parts = []
    return [*runs, *_write_runs(files, job, task, parts)]


@contextmanager
def _translate_read_errors(job: BuildJob, path: str) -> Iterator[None]:
    with translate_storage_errors(f"the files of table {job.unique.name}"):
        try:
            yield
        except FileNotFoundError as error:
            raise ObjectMissing(path) from error


def _columns(job: BuildJob) -> list[str]:
    return list(dict.fromkeys(("topic", "partition", "offset", ARRIVED_AT, *job.identity.key)))


def _entries_of(job: BuildJob, batch: pa.RecordBatch) -> IndexEntries:
    """Return the index entries of some rows, not sorted."""
    secret = uuid.UUID(job.identity.unique).bytes
    key = job.identity.key
    hashes = exclude_assigned_ids(hash_keys([batch.column(name) for name in key], secret), key, batch)
    arrived_ms = batch.column(ARRIVED_AT).cast(pa.int64()).to_numpy() // 1000
    rows = np.flatnonzero(hashes.present & (arrived_ms >= job.horizon_ms))
    tp, topic_partitions = topic_partitions_of(batch)
    return IndexEntries(
        hashes.hi[rows],
        tail_of(hashes.lo[rows]),
        arrived_ms[rows],
        tp[rows],
        batch.column("offset").to_numpy()[rows],
        topic_partitions,
    )


def _write_runs(files: FileStore, job: BuildJob, task: BuildTask, parts: Sequence[IndexEntries]) -> list[SortedRun]:
    """Write runs for each bucket that has entries, split by expiry as a sweep's runs are."""
    entries = merge_entries(parts, job.horizon_ms)
    buckets = job.identity.buckets
    bounds = np.searchsorted(hash_range_of(entries.hi, buckets), np.arange(buckets + 1, dtype=np.uint32))
    policy = MergePolicy.of(job.window_ms, job.memory_bytes)
    least_keys = least_run_keys(job.budget_bytes, buckets)
    return [
        write_run(files, job.index, number, (task.first_sequence, task.last_sequence), part)
        for number, (start, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
        if start < end
        for part in split_by_expiry(entries.select(slice(start, end)), policy, least_keys)
    ]
