"""The unique table follows what replaces main's rows: promoted generations, backfills, and their undoing."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import backfill_scenes as backfills
import pyarrow as pa
import pytest
from oracle import Row
from partition_scenes import Scene, mostly_deep
from pyiceberg.io.pyarrow import _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from quarantine_scenes import verified
from sweep_scenes import START_MS, Killed, SweptScene, compact

from waybill.base.errors import CommitConflict
from waybill.config import names
from waybill.config.names import TopicPartition
from waybill.tables.dedup.execute import InThisProcess
from waybill.tables.dedup.rebuild import find_rebuild, histories_of, reads_from
from waybill.tables.dedup.status import read_status
from waybill.tables.dedup.sweep import run_sweep
from waybill.tables.dedup.sweep_report import SweepReport
from waybill.tables.iceberg import commit_snapshot, ensure_tables, load_dedup_tables
from waybill.tables.iceberg.dedup import DedupTables
from waybill.tables.iceberg.generations import make_live
from waybill.tables.iceberg.histories import rebuilds_of, shown_history
from waybill.tables.iceberg.progress import progress_text
from waybill.tables.iceberg.state import BACKFILL_PROPERTY, PROGRESS_PROPERTY
from waybill.tables.maintenance.orphans import find_ended_histories
from waybill.tables.maintenance.table import find_unswept_snapshots
from waybill.tables.partition.generations import promote_generation
from waybill.tables.staging.driver import RunOutcome

pytestmark = [pytest.mark.integration, pytest.mark.matrix]

MakeScene = Callable[..., Scene]
A = TopicPartition("flights", 0)
WINDOW_MS = 1000 * 3_600_000  # all rows are within it
STEPS = (
    "rebuild_started", "planned", "matched", "executed", "staged", "duplicates_committed", "committed", "index_saved",
    "unique_published", "published"
)  # fmt: skip


@dataclass
class Replaced:
    """A stream whose main table shows one of two generations, and of what it must show."""

    scene: Scene
    live: int = 1
    rows: dict[int, dict[int, Row]] = field(default_factory=lambda: {1: {}, 2: {}})
    """The rows of each generation by offset."""
    now_ms: int = START_MS
    bounded: bool = False
    """A sweep takes only one snapshot."""

    def config(self, generation: int) -> None:
        self.scene.config = self.scene.with_stream(generation=generation)

    @property
    def main(self) -> Table:
        return ensure_tables(self.scene.catalog, self.scene.stream).main

    @property
    def tables(self) -> DedupTables:
        found = load_dedup_tables(self.scene.catalog, self.scene.stream)
        assert found is not None
        return found

    @property
    def branches(self) -> list[str]:
        return sorted({*rebuilds_of(self.tables.unique.metadata), *rebuilds_of(self.tables.duplicates.metadata)})

    def _files(self, table: Table, rows: Iterable[Row]) -> list[Any]:
        to_row = SweptScene(self.scene, ("message_id",), WINDOW_MS)._row
        schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
        made = pa.Table.from_pylist(list(map(to_row, rows)), schema=schema)
        return list(_dataframe_to_data_files(table.metadata, made, table.io))

    def append(self, keys: str, generation: int | None = None) -> None:
        """Append a row for each letter, in one snapshot of a generation."""
        generation = generation or self.live
        held = self.rows[generation]
        added = []
        for key in keys:
            self.now_ms += 1000
            added.append(Row(A, len(held), self.now_ms, START_MS, (key,)))
            held[len(held)] = added[-1]
        table = self.main
        if not table.metadata.snapshots:
            commit_snapshot(table, {})
        branch = MAIN_BRANCH if generation == self.live else names.generation_ref(generation)
        progress = {PROGRESS_PROPERTY: progress_text({A: len(held)})}
        assert commit_snapshot(table, progress, added=self._files(table, added), branch=branch)

    def promote(self, generation: int) -> None:
        make_live(self.main, generation)
        self.live = generation
        self.config(generation)

    def backfill(self, keys: dict[int, str], name: str = "20260101_0000") -> None:
        """Replace the rows of some offsets of main, as the promotion of a backfill does."""
        table, held = self.main, self.rows[self.live]
        for offset, key in keys.items():
            held[offset] = Row(A, offset, held[offset].kafka_timestamp_ms, START_MS, (key,))
        old = [task.file for task in table.scan().plan_files()]
        properties = {BACKFILL_PROPERTY: name}
        assert commit_snapshot(table, properties, added=self._files(table, held.values()), removed=old)

    def sweep(self, on_step: Callable[[str], None] = lambda _: None, **options: Any) -> SweepReport:
        at = datetime.fromtimestamp((self.now_ms + 1) / 1000, UTC)
        config = self.scene.config
        if self.bounded:
            stream = self.scene.stream
            assert stream.dedup is not None
            bounded = stream.model_copy(update={"dedup": stream.dedup.model_copy(update={"run_bytes": 1})})
            config = config.model_copy(update={"streams": {"flights": bounded}})
        return run_sweep(config, "flights", InThisProcess(), now=lambda: at, on_step=on_step, **options)

    def sweep_until_current(self) -> list[SweepReport]:
        reports = [self.sweep()]
        while reports[-1].resumed or reports[-1].more:
            reports.append(self.sweep())
        return reports

    def sweep_killed(self, step: str) -> bool:
        def die(done: str) -> None:
            if done == step:
                raise Killed(step)

        try:
            self.sweep(die)
        except Killed:
            return True
        return False

    def expected(self) -> tuple[list[int], list[int]]:
        """Return the offsets that each table has: the first arrival of each key among the rows that main shows."""
        seen: set[Any] = set()
        kept, repeated = [], []
        for offset, row in sorted(self.rows[self.live].items(), key=lambda item: item[1].kafka_timestamp_ms or 0):
            (repeated if row.key_values in seen else kept).append(offset)
            seen.add(row.key_values)
        return sorted(kept), sorted(repeated)

    def found(self) -> tuple[list[int], list[int]]:
        tables = self.tables
        return _offsets(tables.unique), _offsets(tables.duplicates)

    def keys(self) -> list[tuple[int, str]]:
        rows = self.tables.unique.scan(selected_fields=("offset", "message_id")).to_arrow()
        return sorted(zip(rows.column("offset").to_pylist(), rows.column("message_id").to_pylist(), strict=True))

    def check(self) -> None:
        """Check that both tables are those of main's rows, as any reader sees them, and that no rebuild is left."""
        assert self.found() == self.expected()
        held = self.rows[self.live]
        assert self.keys() == [(offset, held[offset].key_values[0]) for offset in self.expected()[0]]
        assert self.branches == []
        shown = [self.scene.catalog.load_table(table.name()) for table in (self.tables.unique, self.tables.duplicates)]
        assert (_offsets(shown[0]), _offsets(shown[1])) == self.expected()
        assert shown_history(shown[0].metadata) == shown_history(shown[1].metadata)


def _offsets(table: Table) -> list[int]:
    return sorted(table.scan(selected_fields=("offset",)).to_arrow().column("offset").to_pylist())


@pytest.fixture
def stream(make_scene: MakeScene) -> Replaced:
    dedup = {"window": f"{WINDOW_MS // 1000}s", "floor": "1s", "buckets": 2}
    return Replaced(make_scene(dedup=dedup, columns={"device": "string"}))


def swept_and_promoted(stream: Replaced) -> Replaced:
    """Generation 1 is swept; generation 2, of other rows in two snapshots, is promoted."""
    stream.append("aabc")
    stream.append("bd")
    stream.sweep_until_current()
    stream.check()
    stream.append("axx", 2)
    stream.append("yx", 2)
    stream.promote(2)
    return stream


# --- what is followed ---


def test_promoted_generation_is_followed_and_promoting_the_earlier_one_again_too(stream: Replaced) -> None:
    swept_and_promoted(stream)
    before = (_offsets(stream.tables.unique), stream.keys())
    reports: list[str] = []

    def look(done: str) -> None:
        if done in {"rebuild_started", "committed", "index_saved"}:
            assert (_offsets(stream.tables.unique), stream.keys()) == before, "consumers see the state from before"
            reports.append(done)

    report = stream.sweep(look)
    assert reports == ["rebuild_started", "committed", "index_saved"]
    assert (report.rebuild is not None, report.published, report.rows, report.duplicates) == (True, True, 3, 2)
    stream.check()
    stream.append("xz")
    report = stream.sweep()
    assert (report.rebuild, report.rows, report.duplicates) == (None, 1, 1)
    stream.check()
    stream.promote(1)
    assert stream.sweep().published
    stream.check()
    stream.append("ae")
    stream.sweep()
    stream.check()
    assert stream.sweep().outcome is RunOutcome.NOTHING_NEW


def test_promoted_backfill_and_its_undo_are_followed(stream: Replaced) -> None:
    stream.append("abcd")
    stream.append("a")
    stream.sweep()
    stream.backfill({1: "a", 3: "c"})
    assert stream.sweep().published
    stream.check()
    assert stream.found() == ([0, 2], [1, 3, 4])
    stream.backfill({1: "b", 3: "d"})
    stream.append("ce")
    assert stream.sweep().published
    stream.check()
    stream.append("f")
    assert stream.sweep().rebuild is None
    stream.check()


def test_first_sweep_takes_what_a_backfill_left(stream: Replaced) -> None:
    stream.append("abcd")
    stream.backfill({1: "a"})
    stream.append("d")
    report = stream.sweep()
    assert (report.rebuild, report.rows, report.duplicates) == (None, 3, 2)
    stream.check()


def test_table_that_was_rolled_back_is_followed(stream: Replaced) -> None:
    stream.append("ab")
    stream.sweep()
    stream.append("ac")
    stream.sweep()
    main = stream.main
    parent = main.metadata.current_snapshot().parent_snapshot_id
    main.manage_snapshots().rollback_to_snapshot(parent).commit()
    for offset in (2, 3):
        del stream.rows[1][offset]
    stream.append("bd")
    assert stream.sweep().published
    stream.check()


def test_promotion_that_is_undone_before_a_sweep_changes_nothing(stream: Replaced) -> None:
    swept_and_promoted(stream)
    stream.promote(1)
    stream.append("e")
    assert stream.sweep().rebuild is None
    stream.check()


@pytest.mark.deep
def test_promotion_that_is_undone_during_a_rebuild_gives_it_up(stream: Replaced) -> None:
    swept_and_promoted(stream)
    assert stream.sweep_killed("committed")
    assert len(stream.branches) == 1
    stream.promote(1)
    assert stream.sweep().outcome is RunOutcome.NOTHING_NEW
    stream.check()
    stream.promote(2)
    assert stream.sweep().published
    stream.check()


def test_second_replacement_during_a_rebuild_restarts_it(stream: Replaced) -> None:
    swept_and_promoted(stream)
    assert stream.sweep_killed("committed")
    [first] = stream.branches
    stream.backfill({0: "y"})
    assert stream.sweep_killed("committed")
    [second] = stream.branches
    assert first != second
    assert stream.sweep().published
    stream.check()


def test_promoted_generation_without_rows_empties_the_unique_table(stream: Replaced) -> None:
    stream.append("aab")
    stream.sweep()
    stream.promote(2)
    assert stream.sweep().published
    stream.check()
    assert stream.found() == ([], [])
    stream.append("cc", 2)
    stream.sweep()
    stream.check()


def test_unique_table_gets_the_partitioning_of_the_promoted_generation(stream: Replaced) -> None:
    stream.append("ab")
    stream.sweep()
    stream.scene.config = stream.scene.with_stream(generation=2, partition_by=["hour", "device"])
    stream.append("bb", 2)
    stream.promote(2)
    assert stream.sweep().published
    stream.check()
    assert [f.name for f in stream.tables.unique.spec().fields] == [f.name for f in stream.main.spec().fields]
    assert [f.name for f in stream.tables.unique.spec().fields] == ["event_time_hour", "device"]


# --- kills, rivals, bounds ---


@pytest.mark.parametrize("step", mostly_deep(STEPS, STEPS[len(STEPS) // 2]))
def test_killed_rebuild_is_continued(stream: Replaced, step: str) -> None:
    swept_and_promoted(stream)
    before = stream.found()
    assert stream.sweep_killed(step)
    assert stream.found() in (before, stream.expected()), "never a mixture"
    stream.append("z")
    stream.sweep_until_current()
    stream.check()


def test_rebuild_is_bounded_by_run_bytes(make_scene: MakeScene) -> None:
    dedup = {"window": f"{WINDOW_MS // 1000}s", "floor": "1s", "buckets": 2}
    stream = swept_and_promoted(Replaced(make_scene(dedup=dedup, columns={"device": "string"}), bounded=True))
    reports = stream.sweep_until_current()
    assert [report.published for report in reports] == [False, True]
    stream.check()


@pytest.mark.deep
@pytest.mark.parametrize("step", STEPS)
def test_rebuild_that_a_rival_finishes_meanwhile_changes_nothing(stream: Replaced, step: str) -> None:
    swept_and_promoted(stream)
    happened: list[str] = []

    def rival(done: str) -> None:
        if done == step and not happened:
            happened.append(done)
            stream.sweep_until_current()
            stream.append("zz")
            stream.sweep_until_current()

    with suppress(CommitConflict):  # retriable: the next sweep continues
        stream.sweep(rival)
    assert happened
    stream.sweep_until_current()
    stream.check()


@pytest.mark.deep
@pytest.mark.parametrize("step", ["planned", "matched", "staged", "duplicates_committed"])
def test_sweep_that_slept_through_a_rebuild_commits_nothing(stream: Replaced, step: str) -> None:
    stream.append("aab")
    stream.sweep()
    stream.append("axx", 2)
    stream.append("cca")
    happened: list[str] = []

    def replace(done: str) -> None:
        if done == step and not happened:
            happened.append(done)
            stream.promote(2)
            assert stream.sweep().published

    with pytest.raises(CommitConflict, match=r"[Rr]un again"):
        stream.sweep(replace)
    stream.check()
    stream.append("xb")
    stream.sweep()
    stream.check()


# --- any history ---


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[pytest.mark.deep] if seed >= 1 else [])
        for seed in range(int(os.environ.get("WAYBILL_SEEDS", "10")))
    ],
)
def test_unique_table_at_rest_is_that_of_the_rows_main_shows(make_scene: MakeScene, seed: int) -> None:
    """Appends, promotions, backfills, compactions, sweeps, killed sweeps, in any order."""
    rng = random.Random(seed)
    dedup = {"window": f"{WINDOW_MS // 1000}s", "floor": "1s", "buckets": 2}
    stream = Replaced(make_scene(dedup=dedup, columns={"device": "string"}), bounded=rng.random() < 0.5)
    stream.append("ab")
    happened: list[str] = []
    for _ in range(16):
        act = rng.randrange(10)
        if act < 3:
            generation = rng.choice([1, 2])
            stream.append("".join(rng.choices("abcdefgh", k=rng.randrange(1, 5))), generation)
            happened.append(f"append to {generation}")
        elif act == 3:
            stream.promote(3 - stream.live)
            happened.append(f"promoted {stream.live}")
        elif act == 4 and stream.rows[stream.live]:
            offsets = rng.sample(sorted(stream.rows[stream.live]), rng.randrange(len(stream.rows[stream.live])))
            stream.backfill({offset: rng.choice("abcdefgh") for offset in offsets})
            happened.append("backfill")
        elif act == 5:
            compact(stream.main)
            happened.append("compaction")
        elif act in (6, 7):
            stream.sweep()
            happened.append("sweep")
        else:
            step = rng.choice(STEPS)
            happened.append(f"killed at {step}: {stream.sweep_killed(step)}")
    stream.sweep_until_current()
    stream.check()
    assert stream.sweep().outcome is RunOutcome.NOTHING_NEW, happened


# --- with real partition runs, generations and backfills ---


def real_scene(make_scene: MakeScene) -> Scene:
    """The first parser has filled the table from both topic-partitions, in two runs; TP1 repeats ids of TP0."""
    scene = make_scene(parser=backfills.FIRST, dedup={"window": "400d", "floor": "1s", "buckets": 2})
    backfills.put(scene, backfills.TP0, 0, 12)
    backfills.put(scene, backfills.TP1, 6, 10)
    scene.run()
    backfills.put(scene, backfills.TP0, 12, 21)
    backfills.put(scene, backfills.TP1, 10, 16)
    scene.run()
    return scene


def check_each_id_once(scene: Scene) -> None:
    """Check that each row that main shows is in exactly one of the two tables, and each id once among the unique."""
    tables = load_dedup_tables(scene.catalog, scene.stream)
    assert tables is not None
    place = ("topic", "partition", "offset", "message_id")
    rows, unique, duplicates = (
        sorted(tuple(row[name] for name in place) for row in table.scan(selected_fields=place).to_arrow().to_pylist())
        for table in (scene.table, tables.unique, tables.duplicates)
    )
    assert sorted([*unique, *duplicates]) == rows
    assert sorted(row[3] for row in unique) == sorted({row[3] for row in rows})
    report = verified(scene)
    assert [str(fault) for fault in report.faults if fault.kind != "committed"] == []
    assert report.unique_checked
    assert report.figures.unswept == 0


def sweep_real(scene: Scene) -> SweepReport:
    return run_sweep(scene.config, "flights", InThisProcess())


def test_real_backfill_and_its_undo_are_followed(make_scene: MakeScene) -> None:
    scene = real_scene(make_scene)
    assert sweep_real(scene).duplicates
    check_each_id_once(scene)
    backfills.use(scene, backfills.SECOND)
    built = backfills.build(scene, "flights/0@5-16", "flights/1@8-")
    assert sweep_real(scene).outcome is RunOutcome.NOTHING_NEW, "the backfill's branch is not main"
    backfills.promote(scene, built)
    report = verified(scene)
    assert not report.unique_checked
    assert any("were not compared: backfill" in note for note in report.notes)
    status = read_status(scene.config, "flights", timedelta(days=1))
    assert status is not None
    assert status.rebuild is not None
    assert (status.rebuild.id, status.rebuild.reason) == (None, f"backfill {built.id} has replaced rows")
    assert sweep_real(scene).published
    check_each_id_once(scene)
    backfills.undo(scene, built)
    assert sweep_real(scene).published
    check_each_id_once(scene)
    backfills.put(scene, backfills.TP0, 21, 30)
    scene.run()
    assert sweep_real(scene).rebuild is None
    check_each_id_once(scene)


@pytest.mark.deep
def test_real_generation_is_followed(make_scene: MakeScene) -> None:
    scene = real_scene(make_scene)
    sweep_real(scene)
    sent, scene.sent = scene.sent, []
    scene.config = scene.with_stream(generation=2, parser=backfills.SECOND)
    backfills.put(scene, backfills.TP0, 0, 21)
    backfills.put(scene, backfills.TP1, 6, 12)
    scene.run()
    assert sweep_real(scene).outcome is RunOutcome.NOTHING_NEW, "the generation is not live"
    assert any("they follow the live generation" in note for note in verified(scene).notes)
    promote_generation(scene.config, "flights", 2, by="ann", reason="a better parser")
    assert sweep_real(scene).published
    check_each_id_once(scene)
    status = read_status(scene.config, "flights", timedelta(days=1))
    assert status is not None
    assert status.rebuild is None
    promote_generation(scene.config, "flights", 1, by="ann", reason="it was not better")
    scene.config, scene.sent = scene.with_stream(generation=1, parser=backfills.FIRST), sent
    assert sweep_real(scene).published
    check_each_id_once(scene)


# --- maintenance ---


@pytest.mark.deep
def test_maintenance_keeps_what_a_rebuild_still_needs(make_scene: MakeScene) -> None:
    """Snapshots of main that it has not swept, and the plans and the index of its history."""
    dedup = {"window": f"{WINDOW_MS // 1000}s", "floor": "1s", "buckets": 2}
    stream = swept_and_promoted(Replaced(make_scene(dedup=dedup, columns={"device": "string"}), bounded=True))
    assert not stream.sweep().published
    main, tables = stream.main, stream.tables
    running = find_rebuild(main, tables)
    assert running is not None
    position = reads_from(main, tables)
    assert position is not None
    unswept = find_unswept_snapshots(main.metadata, position)
    assert unswept is not None
    assert len(unswept.committed_at) == 1
    uuid, store = str(tables.unique.metadata.table_uuid), stream.scene.store
    history = names.history_name(uuid, running.unique.history_id)
    later = datetime.now(UTC) + timedelta(days=100)
    below = (names.key_indexes_prefix(store.prefix, "flights"), names.sweeps_of_stream_prefix(store.prefix, "flights"))
    assert [find_ended_histories(store, each, histories=[uuid, history], before=later) for each in below] == [[], []]
    assert [generation for generation, _ in histories_of(tables, 2)] == [1, 2]
    stream.sweep_until_current()
    for each in below:
        for entry in find_ended_histories(store, each, histories=[history], before=later):
            assert f"/{uuid}/" in entry.key
            store.remove(entry.key)
    stream.append("xw")
    stream.sweep()
    stream.check()
