"""The key index made from the unique table: caught up with what the table gained, or built anew.

A sweep that died between its commit and the manifest leaves the index behind: its files are read again, and nothing
else. Where the table's history does not lead from what the index covers to what the table is now (it has expired, or
the table was rolled back), or where no manifest is of use, all files that can hold an arrival at or after the horizon
are read. Either way the index then gives the same answers as the one that sweeps keep up: an entry is a row of the
unique table that has a key, and nothing else decides what is in it.

The work is cut into tasks of as many rows as memory allows, in the order of arrival. Each makes one run a bucket, and
merges (`waybill.dedup.index.merge`) make fewer of them.
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
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table
from pyiceberg.types import TimestamptzType

from waybill.config.dedup import ARRIVED_AT, Dedup
from waybill.dedup.appends import Point, find_gained
from waybill.dedup.candidates import UNBOUNDED_MS
from waybill.dedup.hashing import hash_keys, without_assigned
from waybill.dedup.index.manifest import IndexFiles, IndexOf, Manifest, load, save_next
from waybill.dedup.index.merge import (
    MERGE_BYTES_PER_KEY,
    ForEach,
    MergePolicy,
    by_departure,
    few_keys,
    gather,
    one_by_one,
)
from waybill.dedup.index.runs import Files, Run, RunKeys, write_run
from waybill.dedup.rows import read_batches, topic_partitions_of
from waybill.errors import CommitConflict, ObjectMissing, PlanUnusable, SweepHistoryLost
from waybill.staging.table_layout import TableLayout
from waybill.tables.catalog import available
from waybill.tables.files import files_reachable
from waybill.tables.state import SWEEP_HORIZON_PROPERTY, newest_property

__all__ = ["BuildJob", "BuildTask", "bring_up_to_date", "index_rows", "rebuild"]

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
_ALL_BYTES = 1 << 63


@dataclass(frozen=True, slots=True)
class BuildJob:
    """What all tasks share. It goes to executors and into logs: no secrets."""

    index: str
    """What the keys of the index's files start with."""
    of: IndexOf
    unique: TableLayout
    horizon_ms: int
    """Of the unique table's state: rows that arrived before it are left out."""
    memory_bytes: int
    """That a task may hold."""
    window_ms: int
    budget_bytes: int
    """Of the index."""

    @classmethod
    def of_table(cls, index: str, of: IndexOf, unique: Table, horizon_ms: int, settings: Dedup) -> BuildJob:
        """To index `unique` as it is loaded."""
        return cls(
            index=index,
            of=of,
            unique=TableLayout.of(unique),
            horizon_ms=horizon_ms,
            memory_bytes=settings.memory,
            window_ms=settings.window_ms,
            budget_bytes=settings.index_budget_bytes,
        )

    @property
    def most_rows(self) -> int:
        """How many rows a task holds."""
        return max(self.memory_bytes // MERGE_BYTES_PER_KEY, 1)


@dataclass(frozen=True, slots=True)
class BuildTask:
    """Files of the unique table, whole."""

    files: tuple[str, ...]
    first_sequence: int
    last_sequence: int
    """What their rows are part of; see `Run`."""


Work = Callable[[BuildTask], list[Run]]


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    records: int
    last_arrived_ms: int | None = None
    """None: not known."""


# --- the index as it has to be ----------------------------------------------------------------------------------------


def bring_up_to_date(
    files: IndexFiles, job: BuildJob, unique: Table, *, for_each: ForEach = one_by_one, work: Work | None = None
) -> Manifest:
    """The index of all that is in `unique`, which is refreshed first: the one that is there, caught up, or a new one.

    It is saved, covers the table's current snapshot, and its horizon is not above the job's, nor above the one that the
    table itself has by now. `work`: carries out a task wherever `for_each` has it done; by default in this process. Two
    may do so at the same time: one of the two saves.

    Raises `CommitConflict` when others save faster than this can, `StoreUnavailable`, `PlanUnusable` when a file of
    the unique table is gone, `DamagedFile`.
    """
    return _until_saved(files, job, unique, for_each, work, anew=False)


def rebuild(
    files: IndexFiles, job: BuildJob, unique: Table, *, for_each: ForEach = one_by_one, work: Work | None = None
) -> Manifest:
    """The index built anew, whatever is there: after `IndexDamaged`, or because somebody wants it. Otherwise as
    `bring_up_to_date`.
    """
    return _until_saved(files, job, unique, for_each, work, anew=True)


def _until_saved(
    files: IndexFiles, job: BuildJob, unique: Table, for_each: ForEach, work: Work | None, *, anew: bool
) -> Manifest:
    gone: ObjectMissing | None = None
    ours: Manifest | None = None
    for _ in range(_ATTEMPTS):
        # In this order: what the index covers is in the table by then.
        loaded = load(files, job.index, job.of)
        with available(f"load {job.unique.name}"):
            unique.refresh()
        made = _Made(job, unique, for_each, work or partial(index_rows, files, unique.io, job))
        try:
            # Sweeps go on while an index is built anew: it is caught up with them, and not begun again.
            manifest = made.from_what_is_there(ours if anew else loaded.manifest)
        except ObjectMissing as error:
            # It has expired since the table was loaded. What the table holds now is there.
            logger.warning("key index %s: %s; looking again", job.index, error)
            gone, ours, anew = error, None, True
            continue
        if manifest.version:
            return manifest
        saved = save_next(files, job.index, loaded.newest, manifest)
        if saved is not None:
            return saved
        ours = manifest
    if gone is not None:
        raise PlanUnusable(
            f"table {job.unique.name}: {gone}: the key index cannot be made from it. Roll the table back to a snapshot "
            f"whose files are there, or drop it and the table of duplicates, and the next sweep starts from what the "
            f"main table holds"
        ) from gone
    raise CommitConflict(f"key index {job.index}: {_ATTEMPTS} manifests were refused, each because another came first")


class _Made:
    """One try at an index of the table as it is loaded."""

    def __init__(self, job: BuildJob, unique: Table, for_each: ForEach, work: Work) -> None:
        self._job = job
        self._unique = unique
        self._for_each = for_each
        self._work = work
        snapshot = unique.metadata.current_snapshot()
        self._end = Point(None, 0) if snapshot is None else Point(snapshot.snapshot_id, snapshot.sequence_number or 0)

    def from_what_is_there(self, manifest: Manifest | None) -> Manifest:
        if manifest is None:
            return self.from_nothing()
        if manifest.horizon_ms > max(self._job.horizon_ms, self._horizon_by_now()):
            logger.warning(
                "key index %s: manifest %d knows nothing from before %d, and the unique table counts rows from %d on, "
                "since it was rolled back: the index is built anew",
                self._job.index,
                manifest.version,
                manifest.horizon_ms,
                self._job.horizon_ms,
            )
            return self.from_nothing()
        covered = Point(manifest.covers_snapshot, manifest.covers)
        if covered == self._end:
            return manifest
        try:
            gained = find_gained(self._unique, covered, run_bytes=_ALL_BYTES)
        except SweepHistoryLost:
            logger.warning(
                "key index %s: the history of table %s does not lead back to snapshot %s, which manifest %d covers: "
                "the index is built anew",
                self._job.index,
                self._job.unique.name,
                manifest.covers_snapshot,
                manifest.version,
            )
            return self.from_nothing()
        runs = self._runs([_File(file.path, file.records) for file in gained.files] if gained else [], covered.sequence)
        if runs:
            logger.info(
                "key index %s: caught up from sequence number %d to %d, by %s rows",
                self._job.index,
                covered.sequence,
                self._end.sequence,
                f"{sum(run.keys for run in runs):,}",
            )
        return self._with(manifest, runs)

    def _horizon_by_now(self) -> int:
        """Of the table as it is loaded. If it has risen, a rival has committed the sweep that this is for."""
        return int(newest_property(self._unique.metadata, SWEEP_HORIZON_PROPERTY) or UNBOUNDED_MS)

    def from_nothing(self) -> Manifest:
        files = [
            file
            for file in _live(self._unique)
            if file.last_arrived_ms is None or file.last_arrived_ms >= self._job.horizon_ms
        ]
        made = self._with(Manifest.empty(self._job.of), self._runs(files, 0))
        logger.info(
            "key index %s: built from %d files with %s rows of table %s",
            self._job.index,
            len(files),
            f"{sum(file.records for file in files):,}",
            self._job.unique.name,
        )
        return made

    def _with(self, manifest: Manifest, runs: Sequence[Run]) -> Manifest:
        made = replace(
            manifest,
            covers=self._end.sequence,
            covers_snapshot=self._end.snapshot_id,
            runs=(*manifest.runs, *runs),
            version=0,
        )
        return made.above(self._job.horizon_ms)

    def _runs(self, files: Iterable[_File], covered: int) -> list[Run]:
        tasks = [BuildTask(paths, covered + 1, self._end.sequence) for paths in _packed(files, self._job.most_rows)]
        return [run for runs in self._for_each(self._work, tasks) for run in runs]


def _live(unique: Table) -> Iterator[_File]:
    """The data files of the table's current snapshot, those whose rows arrived first before the others."""
    snapshot = unique.metadata.current_snapshot()
    manifests = [] if snapshot is None else snapshot.manifests(unique.io)
    field_id = unique.schema().find_field(ARRIVED_AT).field_id

    def last_arrived_ms(file: DataFile) -> int | None:
        bound = (file.upper_bounds or {}).get(field_id)
        return None if bound is None else int(from_bytes(TimestamptzType(), bound)) // 1000

    found = [
        _File(entry.data_file.file_path, entry.data_file.record_count, last_arrived_ms(entry.data_file))
        for manifest in manifests
        if manifest.content is ManifestContent.DATA
        for entry in manifest.fetch_manifest_entry(unique.io)
    ]
    return iter(sorted(found, key=lambda file: (file.last_arrived_ms or 0, file.path)))


def _packed(files: Iterable[_File], most_rows: int) -> Iterator[tuple[str, ...]]:
    """Files in their order, in tasks of that many rows at most where a file is not larger."""
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


def index_rows(files: Files, io: FileIO, job: BuildJob, task: BuildTask) -> list[Run]:
    """The runs of a task's rows that have a key and arrived at or after the horizon.

    Raises `ObjectMissing` when a file of the table is gone, `DamagedFile`, `StoreUnavailable`.
    """
    runs: list[Run] = []
    held: list[RunKeys] = []
    for path in task.files:
        with _readable(job, path):
            for _, batch in read_batches(io, job.unique, path, _columns(job)):
                held.append(_entries(job, batch))
                if sum(map(len, held)) >= job.most_rows:
                    runs += _written(files, job, task, held)
                    held = []
    return [*runs, *_written(files, job, task, held)]


@contextmanager
def _readable(job: BuildJob, path: str) -> Iterator[None]:
    with files_reachable(f"the files of table {job.unique.name}"):
        try:
            yield
        except FileNotFoundError as error:
            raise ObjectMissing(path) from error


def _columns(job: BuildJob) -> list[str]:
    return list(dict.fromkeys(("topic", "partition", "offset", ARRIVED_AT, *job.of.key)))


def _entries(job: BuildJob, batch: pa.RecordBatch) -> RunKeys:
    """What is indexed of some rows; not sorted."""
    secret = uuid.UUID(job.of.unique).bytes
    hashes = without_assigned(hash_keys([batch.column(name) for name in job.of.key], secret), job.of.key, batch)
    arrived_ms = batch.column(ARRIVED_AT).cast(pa.int64()).to_numpy() // 1000
    rows = np.flatnonzero(hashes.present & (arrived_ms >= job.horizon_ms))
    tp, topic_partitions = topic_partitions_of(batch)
    return RunKeys(
        hashes.hi[rows],
        hashes.lo[rows],
        arrived_ms[rows],
        tp[rows],
        batch.column("offset").to_numpy()[rows],
        topic_partitions,
    )


def _written(files: Files, job: BuildJob, task: BuildTask, held: Sequence[RunKeys]) -> list[Run]:
    """Runs for each bucket that has entries among these, as a sweep writes them: what leaves together is one."""
    keys = gather(held, job.horizon_ms)
    bits = job.of.buckets.bit_length() - 1
    bucket = np.zeros(len(keys), np.uint16) if not bits else (keys.hi >> np.uint64(64 - bits)).astype(np.uint16)
    bounds = np.searchsorted(bucket, np.arange(job.of.buckets + 1, dtype=np.uint32))
    policy, few = MergePolicy.of(job.window_ms, job.memory_bytes), few_keys(job.budget_bytes, job.of.buckets)
    return [
        write_run(files, job.index, number, (task.first_sequence, task.last_sequence), part)
        for number, (start, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
        if start < end
        for part in by_departure(keys.at(slice(start, end)), policy, few)
    ]
