"""Reports of lanes: their totals, and that they can be stored as JSON."""

from __future__ import annotations

from waybill.ingest import (
    ArchivedObject,
    Failure,
    IngestReport,
    LaneReport,
    Outcome,
    TopicPartitionReport,
    merge_reports,
)


def archived(first: int, following: int, *, adopted: bool = False) -> ArchivedObject:
    return ArchivedObject(
        key=f"k{first}",
        first_offset=first,
        next_offset=following,
        messages=following - first,
        size_bytes=100,
        seconds=0.5,
        adopted=adopted,
    )


GOOD = TopicPartitionReport(
    topic="b",
    partition=0,
    outcome=Outcome.UP_TO_DATE,
    objects=(archived(0, 10, adopted=True), archived(10, 25)),
    committed_offset=25,
    end_offset=25,
)
BEHIND = TopicPartitionReport(topic="a", partition=3, outcome=Outcome.WAITING, committed_offset=5, end_offset=12)
BROKEN = TopicPartitionReport(
    topic="a",
    partition=1,
    outcome=Outcome.STOPPED,
    failure=Failure(error="RetentionGap", message="gone", retriable=False),
)


def test_merge_adds_up_the_reports_of_lanes() -> None:
    lanes = [
        LaneReport(stream="s", lane=0, seconds=2.0, partitions=(GOOD,)),
        LaneReport(stream="s", lane=1, seconds=5.0, partitions=(BEHIND, BROKEN)),
    ]
    report = merge_reports("s", lanes)
    assert (report.lanes, report.seconds, report.lag) == (2, 5.0, 7)
    assert (report.objects, report.messages, report.size_bytes) == (1, 15, 100), "adopted objects are not counted again"
    assert report.failures == [BROKEN]
    assert [str(p.tp) for p in report.partitions] == ["a/1", "a/3", "b/0"]
    assert (GOOD.lag, BEHIND.lag, BROKEN.lag) == (0, 7, None)


def test_merge_of_no_lane_is_an_empty_report() -> None:
    assert merge_reports("s", []) == IngestReport(stream="s", lanes=0, seconds=0.0, partitions=())


def test_report_can_be_stored_as_json() -> None:
    report = merge_reports("s", [LaneReport(stream="s", lane=0, seconds=2.0, partitions=(GOOD, BROKEN))])
    assert IngestReport.model_validate_json(report.model_dump_json()) == report
