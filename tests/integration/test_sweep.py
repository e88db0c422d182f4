"""Dedup sweeps in this process, on real S3 and a real catalog, compared with the oracle."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from oracle import Row
from partition_scenes import Scene, mostly_deep
from sweep_scenes import START_MS, RandomRows, SweptScene, compact, damage_index

from waybill.base.errors import ConfigError, PlanUnusable
from waybill.config.names import TopicPartition, staged_key, sweeps_prefix
from waybill.tables.dedup.execute import InThisProcess
from waybill.tables.dedup.status import read_status
from waybill.tables.dedup.sweep import run_sweep
from waybill.tables.dedup.sweep_plan import SweepPlan
from waybill.tables.iceberg.commit import copy_state_to_new_snapshot
from waybill.tables.iceberg.progress import read_progress
from waybill.tables.iceberg.state import PROGRESS_PROPERTY
from waybill.tables.partition.rows import table_rows
from waybill.tables.staging.driver import RunOutcome
from waybill.watch.verify.unique import check_unique
from waybill.watch.verify.verify_report import VerifyReport

pytestmark = [pytest.mark.integration, pytest.mark.matrix]

MakeScene = Callable[..., Scene]
A, B = TopicPartition("flights", 0), TopicPartition("flights", 1)
WINDOW_MS = 3_600_000
STEPS = (
    "planned", "matched", "executed", "staged", "duplicates_committed", "committed", "index_saved"
)  # fmt: skip


def swept_scene(make_scene: MakeScene, key: tuple[str, ...] = ("message_id",), **dedup: Any) -> SweptScene:
    settings = {"key": list(key), "window": f"{WINDOW_MS // 1000}s", "floor": "1s"} | dedup
    return SweptScene(make_scene(dedup=settings, columns={"device": "string"}), key, WINDOW_MS)


@pytest.fixture
def swept(make_scene: MakeScene) -> SweptScene:
    return swept_scene(make_scene)


def row(tp: TopicPartition, offset: int, key: str, at_ms: int = 0) -> Row:
    return Row(tp, offset, START_MS - 600_000 + at_ms, START_MS, (key,))


# --- random streams ---


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[pytest.mark.deep] if seed >= 2 else [])
        for seed in range(int(os.environ.get("WAYBILL_SEEDS", "8")))
    ],
)
def test_random_stream_matches_the_oracle(make_scene: MakeScene, seed: int) -> None:
    """Random batches, late rows, wrong clocks, killed drivers, a damaged index, and compactions in between."""
    rng = random.Random(seed)
    key = rng.choice([("message_id",), ("message_id",), ("device",), ("topic", "device")])
    swept = swept_scene(make_scene, key, buckets=rng.choice([1, 2, 8]))
    rows = RandomRows(rng, tuple(name for name in key if name != "topic"), WINDOW_MS)
    swept.key = key
    slots = rng.choice([1, 2, 16])
    happened = []
    for _ in range(14):
        swept.now_ms += rng.randrange(1, 2 * WINDOW_MS // 3)
        act = rng.randrange(10)
        if act < 5 or not happened:
            swept.append(_with_topic(rows.batch(swept.now_ms), key), files=rng.randrange(1, 4))
            happened.append("append")
        if act in (1, 2, 3):
            swept.sweep_until_current(slots=slots)
            happened.append("sweep")
        elif act in (4, 5, 6):
            step = rng.choice(STEPS)
            happened.append(f"killed at {step}: {swept.sweep_killed(step, slots=slots)}")
        elif act == 7 and "sweep" in happened:
            happened.append(damage_index(swept, rng))
        elif act == 8:
            compact(swept.main)
            happened.append("compaction of main")
        elif act == 9 and "sweep" in happened:
            compact(swept.tables.unique)
            happened.append("compaction of unique")
    swept.sweep_until_current(slots=slots)
    swept.check()
    assert swept.duplicates, happened


def _with_topic(rows: list[Row], key: tuple[str, ...]) -> list[Row]:
    if "topic" not in key:
        return rows
    return [Row(r.tp, r.offset, r.kafka_timestamp_ms, r.event_time_ms, (r.tp.topic, *r.key_values)) for r in rows]


@pytest.mark.parametrize("step", mostly_deep(STEPS, "staged", "duplicates_committed"))
def test_sweep_after_a_killed_driver_matches_the_oracle(make_scene: MakeScene, step: str) -> None:
    swept = swept_scene(make_scene)
    swept.append([row(A, 0, "a"), row(A, 1, "b")])
    swept.sweep()
    swept.append([row(A, 2, "a"), row(B, 0, "c"), row(B, 1, "c", 5)])
    assert swept.sweep_killed(step)
    swept.append([row(B, 2, "b"), row(B, 3, "d")])
    swept.sweep_until_current()
    swept.check()
    assert len(swept.duplicates) == 3
    assert len(swept.tables.unique.metadata.snapshots) == 3, "one snapshot for each sweep"


# --- single behaviours ---


def test_report_and_tables_state_rows_and_duplicates(make_scene: MakeScene) -> None:
    swept = swept_scene(make_scene, source="device")
    swept.append([row(A, 0, "a"), row(A, 1, f"{A}@1"), row(A, 2, 'b"ä')])
    report = swept.sweep()
    assert (report.outcome, report.rows, report.duplicates, report.keyless) == (RunOutcome.COMMITTED, 3, 0, 1)
    swept.append([row(B, 0, 'b"ä', 3), row(B, 1, "c")])
    report = swept.sweep()
    assert (report.rows, report.duplicates, report.files, report.duplicate_files) == (1, 1, 1, 1)
    assert (report.index_keys, report.more, report.resumed) == (3, False, False)
    assert report.horizon_ms == swept.state.horizon_ms
    assert "1 rows kept, 1 duplicates (50.00%)" in str(report)
    json.dumps(report.document())
    swept.check()
    [duplicate] = swept.tables.duplicates.scan().to_arrow().to_pylist()
    assert json.loads(duplicate["key"]) == ['b"ä']
    assert (duplicate["message_id"], duplicate["source"], duplicate["generation"]) == ('b"ä', None, 1)
    assert (duplicate["first_topic"], duplicate["first_partition"], duplicate["first_offset"]) == ("flights", 0, 2)
    again = swept.sweep()
    assert again.outcome is RunOutcome.NOTHING_NEW
    assert str(again).startswith("swept flights: nothing new, in ")


def test_sweep_of_a_stream_without_a_table_finds_nothing(swept: SweptScene) -> None:
    assert swept.sweep().outcome is RunOutcome.NOTHING_NEW


def test_sweep_of_a_stream_without_dedup_is_refused(make_scene: MakeScene) -> None:
    with pytest.raises(ConfigError, match="has no dedup: add a section"):
        SweptScene(make_scene(), ("message_id",), WINDOW_MS).sweep()


@pytest.mark.deep
def test_sweep_of_a_compaction_alone_runs_no_task(swept: SweptScene) -> None:
    swept.append([row(A, 0, "a"), row(A, 1, "b")])
    swept.sweep()
    compact(swept.main)
    report = swept.sweep()
    assert (report.outcome, report.files_swept, report.rows) == (RunOutcome.COMMITTED, 0, 0)
    assert swept.sweep().outcome is RunOutcome.NOTHING_NEW
    swept.append([row(A, 2, "a")])
    swept.sweep()
    swept.check()


@pytest.mark.deep
def test_bounded_plan_leaves_later_snapshots_to_the_next_sweep(swept: SweptScene) -> None:
    stream = swept.scene.stream
    assert stream.dedup is not None
    bounded = stream.model_copy(update={"dedup": stream.dedup.model_copy(update={"run_bytes": 1})})
    swept.scene.config = swept.scene.config.model_copy(update={"streams": {"flights": bounded}})
    batches = [[row(A, 0, "a")], [row(A, 1, "a"), row(A, 2, "b")], [row(A, 3, "b")]]
    for batch in batches:
        swept.append(batch)
    more = []
    for batch in batches:
        swept.waiting = batch
        more.append(swept.sweep().more)
    assert more == [True, True, False]
    swept.check()


def test_until_excludes_later_commits(swept: SweptScene) -> None:
    swept.append([row(A, 0, "a")])
    snapshot = swept.main.current_snapshot()
    assert snapshot is not None
    before = datetime.fromtimestamp(snapshot.timestamp_ms / 1000 - 1, UTC)
    assert swept.sweep(until=before).outcome is RunOutcome.NOTHING_NEW
    swept.append([row(A, 1, "a")])
    after = datetime.fromtimestamp(snapshot.timestamp_ms / 1000 + 86_400, UTC)
    assert swept.sweep(until=after).rows == 1
    swept.check()


def commit_time_of(swept: SweptScene) -> datetime:
    """Return the commit time of the table's current snapshot."""
    snapshot = swept.main.current_snapshot()
    assert snapshot is not None
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)


def fill_table_before_dedup(swept: SweptScene) -> datetime:
    """Fill a table before dedup is configured, then append rows. Return the commit time of the latter."""
    swept.append([row(A, 0, "a"), row(A, 1, "b")])
    compact(swept.main)
    swept.waiting.clear()
    swept.append([row(A, 2, "a"), row(A, 3, "c"), row(B, 0, "c", 1)])
    return commit_time_of(swept)


def verify_unique(swept: SweptScene) -> VerifyReport:
    main = swept.main
    ranges = {tp: (0, following) for tp, following in read_progress(main.metadata, "main").items()}
    report = VerifyReport("flights", 1)
    check_unique(main, swept.tables, ranges, report, Silent(), window_offsets=1 << 20)
    return report


def check_since_is_refused(swept: SweptScene, since: datetime, match: str) -> None:
    """Check that a sweep raises and makes no plan."""
    waiting = swept.waiting
    with pytest.raises(ConfigError, match=match):
        swept.sweep(since=since)
    swept.planned, swept.waiting = None, waiting


class Silent:
    def begin(self, what: str, total: int) -> None:
        pass

    def advance(self, steps: int) -> None:
        pass


@pytest.mark.deep
def test_since_leaves_out_earlier_rows_for_good(swept: SweptScene, caplog: pytest.LogCaptureFixture) -> None:
    since = fill_table_before_dedup(swept)
    with caplog.at_level("INFO"):
        report = swept.sweep(since=since)
    assert (report.rows, report.duplicates, report.left_out) == (2, 1, 2)
    assert "2 rows that were appended to the table before 2" in caplog.text
    swept.check()
    assert swept.sweep(since=since).outcome is RunOutcome.NOTHING_NEW, "a retry has the same since"
    swept.append([row(A, 4, "b"), row(A, 5, "c", 9)])
    compact(swept.main)
    copy_state_to_new_snapshot(swept.tables.unique)
    compact(swept.tables.unique)
    assert swept.sweep().rows == 1, "b was left out, so it is new"
    swept.check()
    beginning = swept.found_state.beginning
    assert beginning is not None
    assert (beginning.rows, dict(beginning.progress)) == (2, {A: 2})
    found = verify_unique(swept)
    assert (found.faults, found.figures.left_out, found.figures.unswept) == ([], 2, 0)
    status = read_status(swept.scene.config, "flights", timedelta(days=1))
    assert status is not None
    assert (status.beginning, status.behind.rows) == (beginning, 0)


@pytest.mark.deep
@pytest.mark.parametrize("step", mostly_deep(("planned", "staged", "duplicates_committed", "committed"), "staged"))
def test_retry_without_since_keeps_the_since_of_the_killed_sweep(swept: SweptScene, step: str) -> None:
    since = fill_table_before_dedup(swept)
    assert swept.sweep_killed(step, since=since)
    swept.append([row(A, 4, "b")])
    swept.sweep_until_current()
    swept.check()
    assert swept.found_state.beginning is not None
    assert verify_unique(swept).faults == []


def test_since_after_all_rows_is_recorded(swept: SweptScene) -> None:
    fill_table_before_dedup(swept)
    swept.waiting.clear()
    report = swept.sweep(since=commit_time_of(swept) + timedelta(milliseconds=1))
    assert (report.outcome, report.rows, report.left_out) == (RunOutcome.COMMITTED, 0, 5)
    assert swept.sweep().outcome is RunOutcome.NOTHING_NEW
    swept.append([row(A, 4, "b"), row(A, 5, "a")])
    assert swept.sweep().rows == 2
    swept.check()
    assert verify_unique(swept).faults == []


def test_since_is_refused_after_the_first_sweep(swept: SweptScene) -> None:
    since = fill_table_before_dedup(swept)
    swept.sweep(since=since)
    swept.append([row(A, 4, "b")])
    after = commit_time_of(swept) + timedelta(milliseconds=1)
    check_since_is_refused(swept, after, r"dedup has swept the table before, .* 1 snapshots of .* Sweep without since")
    check_since_is_refused(
        swept,
        since - timedelta(days=1),
        r"left out the rows appended .* \(2 rows\), for good: .* drop the unique table",
    )
    assert swept.sweep(since=commit_time_of(swept)).rows == 1, "all rows from before it are swept"
    swept.check()


def test_since_does_not_replace_an_existing_plan(swept: SweptScene) -> None:
    swept.append([row(A, 0, "a")])
    assert swept.sweep_killed("planned")
    after = commit_time_of(swept) + timedelta(milliseconds=1)
    with pytest.raises(
        ConfigError, match=r"an earlier run has planned the first sweep, and only .* drop the unique table"
    ):
        swept.sweep(since=after)
    swept.sweep()
    swept.check()
    assert swept.found_state.beginning is None
    for table in (swept.tables.unique, swept.tables.duplicates):  # the remedy of the message
        swept.scene.catalog.drop_table(table.name())
    assert swept.sweep(since=after).left_out == 1


def test_since_with_expired_snapshots_takes_all_or_nothing_of_the_oldest(swept: SweptScene) -> None:
    """All rows of the oldest remaining snapshot are swept, or none of them."""
    fill_table_before_dedup(swept)
    main = swept.main
    copy_state_to_new_snapshot(main)
    oldest = commit_time_of(swept)
    main.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in main.metadata.snapshots[:-1]]).commit()
    check_since_is_refused(swept, oldest - timedelta(days=1), "holds rows of older ones, which have expired")
    swept.waiting.clear()
    assert swept.sweep(since=oldest + timedelta(milliseconds=1)).left_out == 5
    swept.append([row(A, 4, "a")])
    assert swept.sweep().rows == 1
    swept.check()
    assert verify_unique(swept).faults == []


def test_rows_of_unplanned_topic_partitions_are_swept(swept: SweptScene) -> None:
    """Another program has written them."""
    swept.append([row(A, 0, "a"), row(TopicPartition("strange", 7), 5, "a", 1)])
    main = swept.main
    with (
        main.transaction() as transaction,
        transaction.update_snapshot({PROGRESS_PROPERTY: '{"v":1,"offsets":{"flights/0":1}}'}).fast_append(),
    ):
        pass
    swept.sweep()
    swept.check()
    assert len(swept.duplicates) == 1


def test_column_added_to_the_table_is_added_to_the_unique_table(make_scene: MakeScene) -> None:
    swept = swept_scene(make_scene)
    swept.append([row(A, 0, "a")])
    swept.scene.config = swept.scene.with_stream(columns={"device": "string", "height": "long"})
    swept.append([row(A, 1, "b"), row(A, 2, "a")])
    swept.sweep()
    swept.check()
    assert "height" in swept.tables.unique.schema().column_names


@pytest.mark.deep
def test_index_over_its_budget_drops_the_oldest_keys_and_reports_the_horizon(make_scene: MakeScene) -> None:
    swept = swept_scene(make_scene, index_budget_bytes="1MiB", buckets=1)
    for batch in range(4):
        swept.now_ms = START_MS + 100_000 + batch
        _append_many(swept, batch * 20_000, [f"{batch}-{n}" for n in range(20_000)], START_MS + batch * 1000)
        report = swept.sweep()
    assert report.index_bytes is not None
    assert 1 << 19 < report.index_bytes <= 1 << 20
    assert START_MS < swept.found_state.horizon_ms <= START_MS + 3000
    assert report.horizon_ms == swept.found_state.horizon_ms
    _append_many(swept, 100_000, ["0-0", "3-0"], START_MS + 9000)
    report = swept.sweep()
    assert (report.rows, report.duplicates) == (1, 1), "the oldest key was dropped, the newest is known"


def _append_many(swept: SweptScene, first_offset: int, keys: list[str], at_ms: int) -> None:
    """Append rows of one topic-partition with consecutive offsets and the same arrival."""
    n = len(keys)
    time = pa.array([at_ms * 1000] * n).cast(pa.timestamp("us", "UTC"))
    columns = {
        "topic": pa.array(["flights"] * n),
        "partition": pa.array([0] * n, pa.int32()),
        "offset": pa.array(range(first_offset, first_offset + n), pa.int64()),
        "kafka_timestamp": time,
        "event_time": time,
        "message_id": pa.array(keys),
        "generation": pa.array([1] * n, pa.int32()),
        "headers": pa.array([[]] * n, pa.list_(pa.struct([]))),
    }
    schema = table_rows(swept.scene.stream.columns)
    made = [columns.get(f.name, pa.nulls(n)) for f in schema]
    made = [
        column if column.type == f.type else pa.array(column.to_pylist(), f.type)
        for column, f in zip(made, schema, strict=True)
    ]
    swept.append_tables([pa.Table.from_arrays(made, schema=schema)], {A: first_offset + n})


def test_sweep_of_a_rolled_back_table_starts_again(swept: SweptScene) -> None:
    swept.append([row(A, 0, "a")])
    first = swept.main.current_snapshot()
    assert first is not None
    swept.append([row(A, 1, "b")])
    swept.sweep()
    swept.main.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    assert run_sweep(swept.scene.config, "flights", InThisProcess()).published
    assert [offset for _, offset, _ in swept.found()[0]] == [0]


def test_plan_of_a_rolled_back_history_is_refused(swept: SweptScene) -> None:
    swept.append([row(A, 0, "a")])
    first = swept.main.current_snapshot()
    assert first is not None
    swept.append([row(A, 1, "b")])
    assert swept.sweep_killed("planned")
    swept.main.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    with pytest.raises(PlanUnusable, match=r"rolled back since\. Remove the object"):
        swept.sweep()


def test_slower_of_two_rivals_adopts_the_commit(swept: SweptScene) -> None:
    """The slower one deletes its files and commits nothing."""
    swept.append([row(A, 0, "a"), row(A, 1, "a", 1)])
    outcomes = []

    def meanwhile(step: str) -> None:
        if step == "executed" and not outcomes:
            outcomes.append(None)
            outcomes[0] = swept.sweep().outcome

    outer = swept.sweep(on_step=meanwhile)
    assert outcomes == [RunOutcome.COMMITTED]
    assert outer.outcome is RunOutcome.ADOPTED
    swept.check()
    assert swept.found()[0] == swept.expected()[0]
    unique = swept.tables.unique
    assert len(unique.metadata.snapshots) == 1


def test_plan_and_staged_record_have_the_documented_keys(swept: SweptScene) -> None:
    swept.append([row(A, 0, "a")])
    swept.sweep_killed("staged")
    unique = str(swept.tables.unique.metadata.table_uuid)
    below = sweeps_prefix(swept.scene.store.prefix, "flights", swept.scene.stream.generation, unique)
    key = f"{below}{0:020d}.json"
    assert sorted(swept.scene.store.keys(below)) == [key, staged_key(key)]
    plan = SweepPlan.from_json(key, swept.scene.store.read(key))
    assert (plan.latest_arrival_ms, plan.records, plan.topic_partitions) == (START_MS, 1, (A,))
