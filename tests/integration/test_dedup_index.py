"""The key index built from a unique table: a real table of PyIceberg, on the local disk."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from index_files import MemoryFiles
from partition_scenes import DAY_MS, Scene, event
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from waybill.base.errors import DamagedFile, IndexDamaged, PlanUnusable
from waybill.config import names
from waybill.config.models import Dedup
from waybill.config.names import TopicPartition
from waybill.tables.dedup.index.lookup import BucketIndex
from waybill.tables.dedup.index.manifest import IndexIdentity, Manifest, load_manifest, save_manifest
from waybill.tables.dedup.index.merge import MERGE_BYTES_PER_KEY, MergePolicy, merge_all
from waybill.tables.dedup.index.sorted_runs import FileStore, SortedRun
from waybill.tables.dedup.index_build import BuildJob, BuildTask, bring_up_to_date, index_rows, rebuild
from waybill.tables.dedup.keys import hash_keys
from waybill.tables.iceberg import commit_snapshot, ensure_dedup_tables
from waybill.tables.iceberg.dedup import NO_HORIZON_MS
from waybill.tables.iceberg.state import SWEEP_HORIZON_PROPERTY

pytestmark = pytest.mark.integration

INDEX = "archive/dedup/flights/0/index/"
SCHEMA = Schema(
    NestedField(1, "topic", StringType(), required=True),
    NestedField(2, "partition", IntegerType(), required=True),
    NestedField(3, "offset", LongType(), required=True),
    NestedField(4, "message_id", StringType(), required=False),
    NestedField(5, "arrived_at", TimestamptzType(), required=True),
)
ROWS = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("message_id", pa.string()),
        pa.field("arrived_at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)


@dataclass(frozen=True)
class Row:
    """A row of the unique table."""

    tp: TopicPartition
    offset: int
    message_id: str | None
    arrived_ms: int


@dataclass
class Unique:
    """A unique table, and the index of it."""

    table: Table
    files: MemoryFiles = field(default_factory=MemoryFiles)
    buckets: int = 4
    budget_bytes: int = 16 << 30
    tasks: list[BuildTask] = field(default_factory=list)
    """The tasks that ran."""

    @property
    def identity(self) -> IndexIdentity:
        return IndexIdentity(str(self.table.metadata.table_uuid), ("message_id",), self.buckets)

    def job(self, horizon_ms: int = NO_HORIZON_MS, rows: int = 1000) -> BuildJob:
        job = BuildJob.of_table(INDEX, self.identity, self.table, horizon_ms, Dedup())
        return replace(job, memory_bytes=rows * MERGE_BYTES_PER_KEY, budget_bytes=self.budget_bytes)

    def append(self, *rows: Row) -> None:
        """Append rows in one snapshot, as a sweep's commit does."""
        columns = zip(
            *((r.tp.topic, r.tp.partition, r.offset, r.message_id, r.arrived_ms * 1000) for r in rows), strict=True
        )
        arrays = [pa.array(column, f.type) for column, f in zip(columns, ROWS, strict=True)]
        self.table.append(pa.Table.from_arrays(arrays, schema=ROWS))

    def compact(self) -> None:
        """Replace all files by one, in one snapshot."""
        path = f"{self.table.location()}/data/{uuid.uuid4()}.parquet"
        with self.table.io.new_output(path).create() as sink:
            pq.write_table(self.table.scan().to_arrow().cast(self.table.schema().as_arrow()), sink)
        with self.table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
            for task in self.table.scan().plan_files():
                overwrite.delete_data_file(task.file)
            overwrite.append_data_file(parquet_file_to_data_file(self.table.io, self.table.metadata, path))

    def up_to_date(self, horizon_ms: int = NO_HORIZON_MS, rows: int = 1000) -> Manifest:
        """Bring the index up to date; `tasks` then has the tasks that ran."""
        job, self.tasks = self.job(horizon_ms, rows), []

        def work(task: BuildTask) -> list[SortedRun]:
            self.tasks.append(task)
            return index_rows(self.files, self.table.io, job, task)

        return bring_up_to_date(self.files, job, self.table, work=work)

    def answers(self, manifest: Manifest, ids: Sequence[str], horizon_ms: int = NO_HORIZON_MS) -> dict[str, Row]:
        """Return what the index answers for these ids."""
        return answers(self.files, manifest, ids, horizon_ms)


def answers(
    files: FileStore, manifest: Manifest, ids: Sequence[str], horizon_ms: int = NO_HORIZON_MS
) -> dict[str, Row]:
    """Return what an index answers for these ids."""
    hashes = hash_keys([pa.array(ids, pa.string())], uuid.UUID(manifest.identity.unique).bytes)
    bucket_of = (
        hashes.hi >> np.uint64(64 - manifest.identity.buckets.bit_length() + 1)
        if manifest.identity.buckets > 1
        else hashes.hi * 0
    )
    found: dict[str, Row] = {}
    for bucket in range(manifest.identity.buckets):
        here = np.flatnonzero(bucket_of == bucket)
        tps: list[TopicPartition] = []
        index = BucketIndex(files, manifest.bucket(bucket), tps)
        earlier = index.lookup(hashes.hi[here], hashes.lo[here], horizon_ms)
        for at, arrived, tp, offset in zip(
            earlier.candidate, earlier.arrived_ms, earlier.tp, earlier.offset, strict=True
        ):
            name = ids[here[at]]
            found[name] = Row(tps[tp], int(offset), name, int(arrived))
    return found


def latest(rows: Sequence[Row], horizon_ms: int = NO_HORIZON_MS) -> dict[str, Row]:
    """Return what the index must answer."""
    counted = [row for row in rows if row.message_id is not None and row.arrived_ms >= horizon_ms]
    return {
        str(row.message_id): row
        for row in sorted(counted, key=lambda row: row.arrived_ms)
        if row.message_id != f"{row.tp}@{row.offset}"
    }


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    folder = tmp_path_factory.mktemp("warehouse")
    made = SqlCatalog("waybill", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    made.create_namespace("test")
    yield made
    made.close()


def new_unique(catalog: Catalog) -> Unique:
    return Unique(catalog.create_table(f"test.t{uuid.uuid4().hex}", SCHEMA))


@pytest.fixture
def unique(catalog: Catalog) -> Unique:
    return new_unique(catalog)


A, B = TopicPartition("flights", 0), TopicPartition("a.b", 3)
IDS = [f"id-{n}" for n in range(60)]
ROWS_A = [Row(A, n, f"id-{n}", 1000 + n) for n in range(20)]
ROWS_B = [Row(B, n, f"id-{n}", 2000 + n) for n in range(20, 40)]
ROWS_C = [Row(A, n, f"id-{n}", 3000 + n) for n in range(40, 60)]


def test_index_of_a_table_without_rows_is_empty(unique: Unique) -> None:
    manifest = unique.up_to_date()
    assert (manifest.covers, manifest.covers_snapshot, manifest.runs, manifest.version) == (0, None, (), 1)
    unique.append(*ROWS_A)
    assert unique.answers(unique.up_to_date(), IDS) == latest(ROWS_A)


def test_missing_index_is_built_from_all_rows(unique: Unique) -> None:
    unique.append(*ROWS_A)
    unique.append(*ROWS_B)
    manifest = unique.up_to_date()
    assert unique.answers(manifest, IDS) == latest([*ROWS_A, *ROWS_B])
    assert (manifest.covers, manifest.version, manifest.keys) == (2, 1, 40)
    assert manifest == load_manifest(unique.files, INDEX, unique.identity).manifest
    assert unique.up_to_date() == manifest
    assert unique.tasks == [], "it is up to date"


def test_index_with_a_small_budget_is_built_in_runs_of_separate_times(unique: Unique) -> None:
    """A single run would leave the index at once, and the effective window would shrink by all of it."""
    unique.buckets, unique.budget_bytes = 1, 3 << 18
    unique.append(*(Row(A, n, f"id-{n}", n * DAY_MS // 500) for n in range(10_000)))
    runs = unique.up_to_date(rows=100_000).runs
    assert sum(run.keys for run in runs) == 10_000
    assert len(runs) > 2
    spans = sorted((run.min_arrived_ms, run.max_arrived_ms) for run in runs)
    assert all(before[1] < after[0] for before, after in pairwise(spans))


def test_index_that_is_behind_reads_only_the_missing_files(unique: Unique) -> None:
    unique.append(*ROWS_A)
    first = unique.up_to_date()
    unique.append(*ROWS_B)
    unique.append(*ROWS_C)
    manifest = unique.up_to_date()
    assert [(len(task.files), task.first_sequence, task.last_sequence) for task in unique.tasks] == [(2, 2, 3)]
    assert manifest.runs[: len(first.runs)] == first.runs
    assert unique.answers(manifest, IDS) == latest([*ROWS_A, *ROWS_B, *ROWS_C])


def test_compaction_is_not_read_and_rows_before_it_are_read_from_their_own_file(unique: Unique) -> None:
    unique.append(*ROWS_A)
    unique.up_to_date()
    unique.compact()
    manifest = unique.up_to_date()
    assert unique.tasks == []
    assert manifest.covers == 2
    unique.append(*ROWS_B)
    unique.compact()
    manifest = unique.up_to_date()
    assert len(unique.tasks) == 1
    assert (manifest.covers, manifest.keys) == (4, 40)
    assert unique.answers(manifest, IDS) == latest([*ROWS_A, *ROWS_B])


def test_expired_history_needs_a_rebuild(unique: Unique, caplog: pytest.LogCaptureFixture) -> None:
    unique.append(*ROWS_A)
    unique.up_to_date()
    unique.append(*ROWS_B)
    unique.append(*ROWS_C)
    unique.compact()
    unique.table.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
    manifest = unique.up_to_date()
    assert "does not lead back to snapshot" in caplog.text
    assert (manifest.covers, manifest.keys, manifest.version) == (4, 60, 2)
    assert unique.answers(manifest, IDS) == latest([*ROWS_A, *ROWS_B, *ROWS_C])


def test_index_of_a_rolled_back_table_has_no_removed_rows(unique: Unique) -> None:
    unique.append(*ROWS_A)
    before = unique.table.metadata.current_snapshot_id
    unique.append(*ROWS_B)
    unique.up_to_date()
    assert before is not None
    unique.table.manage_snapshots().rollback_to_snapshot(before).commit()
    manifest = unique.up_to_date()
    assert unique.answers(manifest, IDS) == latest(ROWS_A)
    unique.append(*ROWS_C)
    assert unique.answers(unique.up_to_date(), IDS) == latest([*ROWS_A, *ROWS_C])


def test_file_removed_during_the_catch_up_needs_a_rebuild(unique: Unique) -> None:
    unique.append(*ROWS_A)
    unique.up_to_date()
    unique.append(*ROWS_B)
    (added,) = (
        {t.file.file_path for t in unique.table.scan().plan_files()}
        - {f for t in unique.tasks for f in t.files}
        - {t.file.file_path for t in unique.table.scan(snapshot_id=unique.table.history()[0].snapshot_id).plan_files()}
    )
    unique.compact()
    Path(added.removeprefix("file://")).unlink()
    manifest = unique.up_to_date()
    assert len(unique.tasks) == 2
    assert unique.answers(manifest, IDS) == latest([*ROWS_A, *ROWS_B])


def test_missing_or_damaged_file_of_the_table_raises(unique: Unique) -> None:
    unique.append(*ROWS_A)
    (task,) = unique.table.scan().plan_files()
    path = Path(task.file.file_path.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:-8] + b"\0" * 8)
    with pytest.raises(DamagedFile, match=f"file .*{path.name} is damaged"):
        unique.up_to_date()
    path.unlink()
    with pytest.raises(PlanUnusable, match=rf"{path.name} does not exist.*Roll the table back"):
        unique.up_to_date()
    assert unique.files.contents == {}


def test_files_and_rows_below_the_horizon_are_not_indexed(unique: Unique) -> None:
    for rows in (ROWS_A, ROWS_B, ROWS_C):
        unique.append(*rows)
    manifest = unique.up_to_date(horizon_ms=2030)
    assert [len(task.files) for task in unique.tasks] == [2]
    assert (manifest.horizon_ms, manifest.keys) == (2030, 30)
    assert unique.answers(manifest, IDS) == latest([*ROWS_B, *ROWS_C], 2030)
    assert unique.up_to_date(horizon_ms=3000) == manifest, "a higher horizon needs no work"


def test_index_with_a_horizon_above_the_tables_is_rebuilt(unique: Unique) -> None:
    unique.append(*ROWS_A)
    unique.up_to_date(horizon_ms=1010)
    manifest = unique.up_to_date(horizon_ms=1005)
    assert manifest.horizon_ms == 1005
    assert unique.answers(manifest, IDS) == latest(ROWS_A, 1005)


def test_horizon_raised_by_a_rivals_sweep_needs_no_rebuild(unique: Unique) -> None:
    unique.append(*ROWS_A)
    commit_snapshot(unique.table, {SWEEP_HORIZON_PROPERTY: "1010"})
    manifest = unique.up_to_date(horizon_ms=1010)
    assert unique.up_to_date(horizon_ms=1005) == manifest
    assert unique.tasks == []


def test_index_is_rebuilt_for_another_number_of_buckets(unique: Unique) -> None:
    unique.append(*ROWS_A)
    unique.up_to_date()
    for unique.buckets in (1, 64):
        manifest = unique.up_to_date()
        assert unique.answers(manifest, IDS) == latest(ROWS_A)
        assert {run.bucket for run in manifest.runs} <= set(range(unique.buckets))


def test_rows_without_a_key_are_not_indexed(unique: Unique) -> None:
    rows = [Row(A, 1, None, 1), Row(A, 2, "flights/0@2", 2), Row(A, 3, "flights/0@2", 3), Row(A, 4, "", 4)]
    unique.append(*rows)
    manifest = unique.up_to_date()
    assert manifest.keys == 2
    assert unique.answers(manifest, ["flights/0@2", ""]) == {"flights/0@2": rows[2], "": rows[3]}


def test_rows_of_files_without_a_key_column_are_not_indexed(unique: Unique) -> None:
    unique.append(*ROWS_A)
    with unique.table.update_schema() as update:
        update.add_column("origin", StringType())
    job = replace(unique.job(), identity=replace(unique.identity, key=("message_id", "origin")))
    assert bring_up_to_date(unique.files, job, unique.table).keys == 0


def test_tasks_have_as_many_rows_as_fit_into_memory(unique: Unique) -> None:
    everything = [*ROWS_A, *ROWS_B, *ROWS_C]
    unique.buckets = 1
    unique.append(*ROWS_A, *ROWS_B)
    unique.append(*ROWS_C)
    manifest = unique.up_to_date(rows=30)
    assert [len(task.files) for task in unique.tasks] == [1, 1], "a task has whole files only"
    assert unique.answers(manifest, IDS) == latest(everything)
    together = unique.up_to_date()
    assert together == manifest
    rebuilt = rebuild(unique.files, unique.job(rows=60), unique.table)
    assert [run.keys for run in rebuilt.runs] == [60]
    assert rebuilt.version == 2


def test_two_concurrent_builds_save_one_manifest(unique: Unique, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    unique.append(*ROWS_A)
    job = unique.job()

    def work(task: BuildTask) -> list[SortedRun]:
        if not load_manifest(unique.files, INDEX, unique.identity).newest_version:
            rival.append(bring_up_to_date(unique.files, job, unique.table))
        return index_rows(unique.files, unique.table.io, job, task)

    rival: list[Manifest] = []
    assert [bring_up_to_date(unique.files, job, unique.table, work=work)] == rival


def test_rebuild_catches_up_with_concurrent_sweeps(unique: Unique) -> None:
    unique.append(*ROWS_A)
    unique.up_to_date()
    job = unique.job()
    later = [ROWS_B, ROWS_C]

    def work(task: BuildTask) -> list[SortedRun]:
        unique.tasks.append(task)
        if later:
            unique.append(*later.pop(0))
            bring_up_to_date(unique.files, job, unique.table)  # as a sweep does
        return index_rows(unique.files, unique.table.io, job, task)

    unique.tasks = []
    manifest = rebuild(unique.files, job, unique.table, work=work)
    assert [(task.first_sequence, task.last_sequence) for task in unique.tasks] == [(1, 1), (2, 2), (3, 3)]
    assert (manifest.covers, manifest.version, manifest.keys) == (3, 4, 60)
    assert unique.answers(manifest, IDS) == latest([*ROWS_A, *ROWS_B, *ROWS_C])


def test_index_extended_by_a_sweep_is_up_to_date(unique: Unique) -> None:
    unique.append(*ROWS_A)
    manifest = unique.up_to_date()
    (path,) = (task.file.file_path for task in unique.table.scan().plan_files())
    runs = index_rows(unique.files, unique.table.io, unique.job(), BuildTask((path,), 2, 2))
    unique.append(*ROWS_B)
    snapshot = unique.table.metadata.current_snapshot()
    assert snapshot is not None
    moved = manifest.with_sweep(1, snapshot.sequence_number or 0, snapshot.snapshot_id, runs, NO_HORIZON_MS)
    assert moved is not None
    saved = save_manifest(unique.files, INDEX, manifest.version, moved)
    assert unique.up_to_date() == saved
    assert unique.tasks == []


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3), st.integers(0, 1000)), min_size=1, max_size=12),
        min_size=1,
        max_size=5,
    ),
    compact_at=st.integers(0, 5),
    rows=st.sampled_from([1, 5, 1000]),
    horizon=st.one_of(st.just(NO_HORIZON_MS), st.integers(0, 1000)),
)
def test_rebuilt_index_answers_like_the_one_kept_up_to_date(
    catalog: Catalog, batches: list[list[tuple[int, int, int]]], compact_at: int, rows: int, horizon: int
) -> None:
    unique, everything = new_unique(catalog), []
    arrived: set[tuple[int, int]] = set()
    for number, batch in enumerate(batches):
        made = []
        for at, (key, partition, arrived_ms) in enumerate(batch):
            if (key, arrived_ms) not in arrived:  # no two kept rows of a key have the same arrival
                arrived.add((key, arrived_ms))
                made.append(Row(TopicPartition("flights", partition), 100 * number + at, f"id-{key}", arrived_ms))
        if made:
            unique.append(*made)
        everything += made
        if number == compact_at:
            unique.compact()
        unique.up_to_date(rows=rows)
    merge_all(unique.files, INDEX, unique.identity, MergePolicy(1000, 100), horizon)
    kept_up = unique.up_to_date(horizon)
    rebuilt = rebuild(unique.files, unique.job(horizon), unique.table)
    assert unique.answers(kept_up, IDS, horizon) == latest(everything, horizon)
    assert unique.answers(rebuilt, IDS, horizon) == latest(everything, horizon)


# --- on S3 ---


def test_index_on_s3_is_built_once_by_two_processes_and_rebuilt_after_damage(
    make_scene: Callable[..., Scene],
) -> None:
    scene = make_scene(dedup={"buckets": 2})
    tps = [TopicPartition("flights.a", 0), TopicPartition("flights.b", 1)]
    for tp in tps:
        scene.put(tp, [event(offset, DAY_MS * offset, value=_value(tp, offset)) for offset in range(50)])
    scene.run()
    unique = ensure_dedup_tables(scene.catalog, scene.stream, scene.table).unique
    rows = scene.table.scan().to_arrow()
    arrived = rows.column("event_time").cast(pa.timestamp("us", "UTC"))
    rows = rows.append_column("arrived_at", arrived).cast(unique.schema().as_arrow())
    unique.append(rows.slice(0, 60))
    uuid_ = str(unique.metadata.table_uuid)
    of = IndexIdentity(uuid_, ("message_id",), 2)
    index = names.key_index_prefix(scene.store.prefix, "flights", 0, uuid_)
    job = BuildJob.of_table(index, of, unique, NO_HORIZON_MS, Dedup())

    def build() -> Manifest:
        return bring_up_to_date(scene.store, job, scene.catalog.load_table(unique.name()))

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(build), pool.submit(build)
        assert first.result() == second.result()
    assert first.result().keys == 60
    assert [*scene.store.keys(names.key_index_manifests_prefix(index))] == [names.key_index_manifest_key(index, 1)]

    unique.append(rows.slice(60))
    manifest = build()
    assert (manifest.version, manifest.keys) == (2, 100)
    ids = [_id(tp, offset) for tp in tps for offset in range(50)]
    wanted = {_id(tp, offset): Row(tp, offset, _id(tp, offset), DAY_MS * offset) for tp in tps for offset in range(50)}
    assert answers(scene.store, manifest, ids) == wanted

    scene.store.remove(manifest.runs[-1].filter_path)
    with pytest.raises(IndexDamaged, match="it is missing"):
        answers(scene.store, manifest, ids)
    rebuilt = rebuild(scene.store, job, unique)
    assert rebuilt.version == 3
    assert answers(scene.store, rebuilt, ids) == wanted

    merged = merge_all(scene.store, index, of, MergePolicy.of(DAY_MS, 1 << 20), 30 * DAY_MS)
    assert merged is not None
    assert answers(scene.store, merged, ids, 30 * DAY_MS) == {
        name: row for name, row in wanted.items() if row.arrived_ms >= 30 * DAY_MS
    }

    for key in list(scene.store.keys(index)):
        scene.store.remove(key)
    assert answers(scene.store, build(), ids) == wanted


def _id(tp: TopicPartition, offset: int) -> str:
    return f"{tp}:{offset}"


def _value(tp: TopicPartition, offset: int) -> bytes:
    return f'{{"id": "{_id(tp, offset)}", "at": {DAY_MS * offset}}}'.encode()
