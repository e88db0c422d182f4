"""What maintenance may remove and what it must keep, decided without Spark and without a store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from waybill.base.errors import CompactionUnsound, ConfigError
from waybill.config.names import TopicPartition
from waybill.services.store import ListedObject
from waybill.tables.iceberg import Progress
from waybill.tables.maintenance.orphans import Location, select_orphan_candidates
from waybill.tables.maintenance.plans import StagedPlan, classify_plans
from waybill.tables.maintenance.procedures import MaintenanceReport, MaintenanceStep, TableReport, TableSize
from waybill.tables.maintenance.table import check_compaction

NOW = datetime(2026, 3, 1, tzinfo=UTC)
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def plan(start: Progress | None, *files: str, plan_id: str = "p1") -> StagedPlan:
    return StagedPlan(plan_id, start, frozenset(files), (ListedObject(f"plans/{plan_id}.json", 1, NOW),))


@pytest.mark.parametrize(
    ("start", "progress", "is_open"),
    [
        ({A: 5}, {A: 5}, True),  # the next to be committed
        ({A: 5}, {A: 6}, False),
        ({}, {}, True),
        ({}, {A: 1}, False),
        ({A: 5}, {A: 5, B: 1}, False),  # a new topic-partition has moved
        ({A: 5, B: 2}, {A: 9}, True),  # a table that was rolled back may reach the start again
        ({A: 7}, {A: 5}, True),
        (None, {A: 5}, True),  # the plan cannot be read
    ],
)
def test_plan_is_open_until_the_progress_is_beyond_its_start(
    start: Progress | None, progress: Progress, is_open: bool
) -> None:
    plans = classify_plans([plan(start)], progress)
    assert (len(plans.open), len(plans.passed)) == ((1, 0) if is_open else (0, 1))


def test_open_plan_protects_staged_files_and_files_named_after_it() -> None:
    plans = classify_plans(
        [plan({A: 5}, "s3://b/t/data/x.parquet"), plan({A: 1}, "s3://b/t/data/y.parquet", plan_id="p0")], {A: 5}
    )
    assert plans.protects("s3://b/t/data/x.parquet")
    assert plans.protects("s3://b/t/data/event_time_hour=1/p1-0123.parquet")
    assert not plans.protects("s3://b/t/data/y.parquet")
    assert not plans.protects("s3://b/t/data/p0-0123.parquet")
    assert not plans.protects("s3://b/t/data/p11-0123.parquet")


def test_orphan_candidates_are_old_and_not_protected() -> None:
    location = Location.parse("s3://lake/ns.db/t/")
    ages = {"ns.db/t/data/old": 3, "ns.db/t/data/young": 1, "ns.db/t/data/needed": 9, "ns.db/t/data/folder/": 9}
    listed = [ListedObject(key, 10, NOW - timedelta(days=days)) for key, days in ages.items()]
    found = select_orphan_candidates(
        location, listed, before=NOW - timedelta(days=2), protected=lambda path: path.endswith("/needed")
    )
    assert [(path, entry.key) for path, entry in found] == [("s3://lake/ns.db/t/data/old", "ns.db/t/data/old")]


@pytest.mark.parametrize("text", ["hdfs://n/warehouse/t", "s3://bucket", "/tmp/warehouse/t"])
def test_table_location_that_is_not_on_s3_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot be searched for orphan files: only tables on S3 can"):
        Location.parse(text)


def test_location_of_an_object_has_the_scheme_of_the_table() -> None:
    location = Location.parse("s3a://lake/t")
    assert location.of(ListedObject("t/data/x", 1, NOW)) == "s3a://lake/t/data/x"


def snapshot(operation: Operation, **figures: str) -> Snapshot:
    summary = Summary(operation, **{key.replace("_", "-"): value for key, value in figures.items()})
    return Snapshot(snapshot_id=7, timestamp_ms=0, manifest_list="s3://x", summary=summary)


def test_compaction_that_changes_the_number_of_rows_is_an_error() -> None:
    check_compaction(
        "a.t",
        [
            snapshot(Operation.REPLACE, deleted_records="10", added_records="10"),
            snapshot(Operation.REPLACE),  # manifests
            snapshot(Operation.APPEND, added_records="5"),  # a partition run that committed in between
        ],
    )
    with pytest.raises(CompactionUnsound, match=r"snapshot 7 made 9 rows of 10\. Nothing was expired"):
        check_compaction("a.t", [snapshot(Operation.REPLACE, deleted_records="10", added_records="9")])


def test_report_has_sizes_steps_and_figures_as_text_and_json() -> None:
    before, after = TableSize(100, 2_000_000, 50, 9, 12), TableSize(3, 1_500_000, 50, 1, 2)
    steps = (
        MaintenanceStep("compact", 2.0, {"files_before": 100, "files_after": 3}),
        MaintenanceStep("rewrite_manifests", 0.1, {}),
    )
    report = MaintenanceReport("flights", (TableReport("a.flights", before, after, steps),), (), 2.5)
    assert str(report) == (
        "maintained flights in 2.5 s: a.flights: 100 files of 2.0 MB in 9 manifests, 12 snapshots → "
        "3 files of 1.5 MB in 1 manifests, 2 snapshots"
    )
    assert [str(step) for step in steps] == [
        "compact: files before 100, files after 3 (2.0 s)",
        "rewrite manifests: nothing to do (0.1 s)",
    ]
    document = report.document()
    assert document["v"] == 1
    assert document["tables"][0]["after"]["data_files"] == 3
    assert document["tables"][0]["steps"][0]["figures"] == {"files_before": 100, "files_after": 3}
