"""Dedup sweeps in this process, on real S3 and a real catalog, held to the oracle."""

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
from partition_scenes import Scene
from sweep_scenes import START_MS, RandomRows, SweptScene, compact, harm_index

from waybill.dedup.plan import SweepPlan
from waybill.dedup.status import look
from waybill.errors import ConfigError, PlanUnusable, SweepHistoryLost
from waybill.names import TopicPartition, staged_key, sweeps_prefix
from waybill.partition.report import RunOutcome
from waybill.partition.rows import table_rows
from waybill.tables.progress import read_progress
from waybill.tables.state import PROGRESS_PROPERTY, carry_state_on
from waybill.verify.report import Report
from waybill.verify.unique import check_unique

pytestmark = pytest.mark.integration

MakeScene = Callable[..., Scene]
A, B = TopicPartition("flights", 0), TopicPartition("flights", 1)
WINDOW_MS = 3_600_000
STEPS = (
    "planned", "judged", "carried_out", "staged", "duplicates_committed", "committed", "index_moved"
)  # fmt: skip


def swept_scene(make_scene: MakeScene, key: tuple[str, ...] = ("message_id",), **dedup: Any) -> SweptScene:
    settings = {"key": list(key), "window": f"{WINDOW_MS // 1000}s", "floor": "1s"} | dedup
    return SweptScene(make_scene(dedup=settings, columns={"device": "string"}), key, WINDOW_MS)


@pytest.fixture
def swept(make_scene: MakeScene) -> SweptScene:
    return swept_scene(make_scene)


def row(tp: TopicPartition, offset: int, key: str, at_ms: int = 0) -> Row:
    return Row(tp, offset, START_MS - 600_000 + at_ms, START_MS, (key,))


# --- the property ---


@pytest.mark.parametrize("seed", range(int(os.environ.get("WAYBILL_SEEDS", "4"))))
def test_random_streams_come_out_as_the_oracle_says(make_scene: MakeScene, seed: int) -> None:
    """Random batches, late rows, wrong clocks, kills, an index that is harmed, compactions in between."""
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
            swept.sweep_to_the_end(slots=slots)
            happened.append("sweep")
        elif act in (4, 5, 6):
            step = rng.choice(STEPS)
            happened.append(f"killed at {step}: {swept.sweep_killed(step, slots=slots)}")
        elif act == 7 and "sweep" in happened:
            happened.append(harm_index(swept, rng))
        elif act == 8:
            compact(swept.main)
            happened.append("compaction of main")
        elif act == 9 and "sweep" in happened:
            compact(swept.tables.unique)
            happened.append("compaction of unique")
    swept.sweep_to_the_end(slots=slots)
    swept.check()
    assert swept.duplicates, happened


def _with_topic(rows: list[Row], key: tuple[str, ...]) -> list[Row]:
    if "topic" not in key:
        return rows
    return [Row(r.tp, r.offset, r.kafka_timestamp_ms, r.event_time_ms, (r.tp.topic, *r.key_values)) for r in rows]


@pytest.mark.parametrize("step", STEPS)
def test_a_driver_that_dies_after_a_step_is_made_good_by_the_next(make_scene: MakeScene, step: str) -> None:
    swept = swept_scene(make_scene)
    swept.append([row(A, 0, "a"), row(A, 1, "b")])
    swept.sweep()
    swept.append([row(A, 2, "a"), row(B, 0, "c"), row(B, 1, "c", 5)])
    assert swept.sweep_killed(step)
    swept.append([row(B, 2, "b"), row(B, 3, "d")])
    swept.sweep_to_the_end()
    swept.check()
    assert len(swept.duplicates) == 3
    assert len(swept.tables.unique.metadata.snapshots) == 3, "one for each sweep"


# --- one thing each ---


def test_what_a_sweep_says_and_what_the_tables_hold(make_scene: MakeScene) -> None:
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


def test_a_stream_that_has_no_table_yet(swept: SweptScene) -> None:
    assert swept.sweep().outcome is RunOutcome.NOTHING_NEW


def test_a_stream_without_dedup_is_refused(make_scene: MakeScene) -> None:
    with pytest.raises(ConfigError, match="has no section dedup"):
        SweptScene(make_scene(), ("message_id",), WINDOW_MS).sweep()


def test_a_compaction_alone_is_passed_over_without_a_task(swept: SweptScene) -> None:
    swept.append([row(A, 0, "a"), row(A, 1, "b")])
    swept.sweep()
    compact(swept.main)
    report = swept.sweep()
    assert (report.outcome, report.files_swept, report.rows) == (RunOutcome.COMMITTED, 0, 0)
    assert swept.sweep().outcome is RunOutcome.NOTHING_NEW
    swept.append([row(A, 2, "a")])
    swept.sweep()
    swept.check()


def test_a_plan_is_bounded_and_the_next_goes_on(swept: SweptScene) -> None:
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


def test_only_what_the_table_had_gained_by_a_time(swept: SweptScene) -> None:
    swept.append([row(A, 0, "a")])
    snapshot = swept.main.current_snapshot()
    assert snapshot is not None
    before = datetime.fromtimestamp(snapshot.timestamp_ms / 1000 - 1, UTC)
    assert swept.sweep(until=before).outcome is RunOutcome.NOTHING_NEW
    swept.append([row(A, 1, "a")])
    after = datetime.fromtimestamp(snapshot.timestamp_ms / 1000 + 86_400, UTC)
    assert swept.sweep(until=after).rows == 1
    swept.check()


def committed_at(swept: SweptScene) -> datetime:
    """When the table's current snapshot was."""
    snapshot = swept.main.current_snapshot()
    assert snapshot is not None
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)


def with_an_old_table(swept: SweptScene) -> datetime:
    """A table that was there before dedup was switched on, and rows that came after. Returns when the latter did."""
    swept.append([row(A, 0, "a"), row(A, 1, "b")])
    compact(swept.main)
    swept.waiting.clear()
    swept.append([row(A, 2, "a"), row(A, 3, "c"), row(B, 0, "c", 1)])
    return committed_at(swept)


def verified(swept: SweptScene) -> Report:
    main = swept.main
    ranges = {tp: (0, following) for tp, following in read_progress(main.metadata, "main").items()}
    report = Report("flights", 1)
    check_unique(main, swept.tables, ranges, report, Silent(), window_offsets=1 << 20)
    return report


def refused(swept: SweptScene, since: datetime, why: str) -> None:
    """A sweep that plans nothing."""
    waiting = swept.waiting
    with pytest.raises(ConfigError, match=why):
        swept.sweep(since=since)
    swept.planned, swept.waiting = None, waiting


class Silent:
    def begin(self, what: str, total: int) -> None:
        pass

    def advance(self, steps: int) -> None:
        pass


def test_what_the_table_had_gained_before_a_time_is_left_out_for_good(
    swept: SweptScene, caplog: pytest.LogCaptureFixture
) -> None:
    since = with_an_old_table(swept)
    with caplog.at_level("INFO"):
        report = swept.sweep(since=since)
    assert (report.rows, report.duplicates, report.left_out) == (2, 1, 2)
    assert "2 rows that the table had gained before 2" in caplog.text
    swept.check()
    assert swept.sweep(since=since).outcome is RunOutcome.NOTHING_NEW, "as a retry asks for"
    swept.append([row(A, 4, "b"), row(A, 5, "c", 9)])
    compact(swept.main)
    carry_state_on(swept.tables.unique)
    compact(swept.tables.unique)
    assert swept.sweep().rows == 1, "b is not known"
    swept.check()
    beginning = swept.found_state.beginning
    assert beginning is not None
    assert (beginning.rows, dict(beginning.progress)) == (2, {A: 2})
    found = verified(swept)
    assert (found.faults, found.figures.left_out, found.figures.unswept) == ([], 2, 0)
    status = look(swept.scene.config, "flights", timedelta(days=1))
    assert status is not None
    assert (status.beginning, status.behind.rows) == (beginning, 0)


@pytest.mark.parametrize("step", ["planned", "staged", "duplicates_committed", "committed"])
def test_a_retry_that_is_asked_for_no_time_begins_where_the_one_that_died_did(swept: SweptScene, step: str) -> None:
    since = with_an_old_table(swept)
    assert swept.sweep_killed(step, since=since)
    swept.append([row(A, 4, "b")])
    swept.sweep_to_the_end()
    swept.check()
    assert swept.found_state.beginning is not None
    assert verified(swept).faults == []


def test_a_time_after_which_nothing_came_yet_is_remembered(swept: SweptScene) -> None:
    with_an_old_table(swept)
    swept.waiting.clear()
    report = swept.sweep(since=committed_at(swept) + timedelta(milliseconds=1))
    assert (report.outcome, report.rows, report.left_out) == (RunOutcome.COMMITTED, 0, 5)
    assert swept.sweep().outcome is RunOutcome.NOTHING_NEW
    swept.append([row(A, 4, "b"), row(A, 5, "a")])
    assert swept.sweep().rows == 2
    swept.check()
    assert verified(swept).faults == []


def test_where_a_sweep_has_been_no_more_is_left_out(swept: SweptScene) -> None:
    since = with_an_old_table(swept)
    swept.sweep(since=since)
    swept.append([row(A, 4, "b")])
    after = committed_at(swept) + timedelta(milliseconds=1)
    refused(swept, after, r"dedup has swept the table before, .* 1 snapshots of .* Sweep without since")
    refused(swept, since - timedelta(days=1), r"left out what .* \(2 rows\), for good: .* drop the tables")
    assert swept.sweep(since=committed_at(swept)).rows == 1, "all from before is swept"
    swept.check()


def test_a_plan_that_was_made_before_is_not_taken_back_for_a_time(swept: SweptScene) -> None:
    swept.append([row(A, 0, "a")])
    assert swept.sweep_killed("planned")
    after = committed_at(swept) + timedelta(milliseconds=1)
    with pytest.raises(ConfigError, match=r"an earlier run has planned the first sweep, and only .* drop the tables"):
        swept.sweep(since=after)
    swept.sweep()
    swept.check()
    assert swept.found_state.beginning is None
    for table in (swept.tables.unique, swept.tables.duplicates):  # as the message says
        swept.scene.catalog.drop_table(table.name())
    assert swept.sweep(since=after).left_out == 1


def test_a_table_whose_older_snapshots_have_expired(swept: SweptScene) -> None:
    """All that the oldest one holds is swept, or nothing of it."""
    with_an_old_table(swept)
    main = swept.main
    carry_state_on(main)
    oldest = committed_at(swept)
    main.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in main.metadata.snapshots[:-1]]).commit()
    refused(swept, oldest - timedelta(days=1), "holds rows of older ones, which have expired")
    swept.waiting.clear()
    assert swept.sweep(since=oldest + timedelta(milliseconds=1)).left_out == 5
    swept.append([row(A, 4, "a")])
    assert swept.sweep().rows == 1
    swept.check()
    assert verified(swept).faults == []


def test_rows_of_a_topic_partition_that_the_progress_does_not_know(swept: SweptScene) -> None:
    """Somebody else has written them: they are rows all the same."""
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


def test_a_column_that_the_table_got_later(make_scene: MakeScene) -> None:
    swept = swept_scene(make_scene)
    swept.append([row(A, 0, "a")])
    swept.scene.config = swept.scene.with_stream(columns={"device": "string", "height": "long"})
    swept.append([row(A, 1, "b"), row(A, 2, "a")])
    swept.sweep()
    swept.check()
    assert "height" in swept.tables.unique.schema().column_names


def test_an_index_over_its_budget_forgets_the_oldest_and_says_so(make_scene: MakeScene) -> None:
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
    assert (report.rows, report.duplicates) == (1, 1), "the oldest key is not known any more, the newest is"


def _append_many(swept: SweptScene, first_offset: int, keys: list[str], at_ms: int) -> None:
    """Rows of one topic-partition, an offset each, that all came at one time."""
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


def test_a_table_that_was_rolled_back_is_named(swept: SweptScene) -> None:
    swept.append([row(A, 0, "a")])
    first = swept.main.current_snapshot()
    assert first is not None
    swept.append([row(A, 1, "b")])
    swept.sweep()
    swept.main.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    with pytest.raises(SweepHistoryLost, match="rolled back"):
        swept.sweep()


def test_a_plan_of_a_history_that_was_rolled_back_is_named(swept: SweptScene) -> None:
    swept.append([row(A, 0, "a")])
    first = swept.main.current_snapshot()
    assert first is not None
    swept.append([row(A, 1, "b")])
    assert swept.sweep_killed("planned")
    swept.main.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    with pytest.raises(PlanUnusable, match=r"rolled back since\. Remove the object"):
        swept.sweep()


def test_a_rival_that_carries_out_the_same_plan_finds_it_committed(swept: SweptScene) -> None:
    """The slower of the two throws its files away, and commits nothing."""
    swept.append([row(A, 0, "a"), row(A, 1, "a", 1)])
    outcomes = []

    def meanwhile(step: str) -> None:
        if step == "carried_out" and not outcomes:
            outcomes.append(None)
            outcomes[0] = swept.sweep().outcome

    outer = swept.sweep(done=meanwhile)
    assert outcomes == [RunOutcome.COMMITTED]
    assert outer.outcome is RunOutcome.ADOPTED
    swept.check()
    assert swept.found()[0] == swept.expected()[0]
    unique = swept.tables.unique
    assert len(unique.metadata.snapshots) == 1


def test_the_plan_and_what_was_staged_are_where_their_names_say(swept: SweptScene) -> None:
    swept.append([row(A, 0, "a")])
    swept.sweep_killed("staged")
    unique = str(swept.tables.unique.metadata.table_uuid)
    below = sweeps_prefix(swept.scene.store.prefix, "flights", swept.scene.stream.generation, unique)
    key = f"{below}{0:020d}.json"
    assert sorted(swept.scene.store.keys(below)) == [key, staged_key(key)]
    plan = SweepPlan.from_json(key, swept.scene.store.read(key))
    assert (plan.high_ms, plan.records, plan.topic_partitions) == (START_MS, 1, (A,))
