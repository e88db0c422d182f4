"""Reports of lanes: their totals, and that they can be stored as JSON."""

from __future__ import annotations

from waybill.archive.ingest import (
    ArchivedObject,
    Failure,
    IngestReport,
    LaneReport,
    LaneSummary,
    Outcome,
    StreamReport,
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


def lane_report(number: int, seconds: float, **streams: tuple[TopicPartitionReport, ...]) -> LaneReport:
    reports = tuple(StreamReport(stream=name, partitions=partitions) for name, partitions in streams.items())
    return LaneReport(lane=number, seconds=seconds, streams=reports)


def test_lane_report_adds_up_its_streams() -> None:
    report = lane_report(0, 2.0, s=(GOOD,), t=(BEHIND, BROKEN))
    assert (report.objects, report.messages, report.size_bytes) == (1, 15, 100), "adopted objects are not counted again"
    assert report.failures == [BROKEN]
    assert report.lag == 7
    assert [str(p.tp) for p in report.partitions] == ["b/0", "a/3", "a/1"]
    assert (GOOD.lag, BEHIND.lag, BROKEN.lag) == (0, 7, None)


def test_merge_adds_up_the_lanes_of_each_stream() -> None:
    lanes = [lane_report(0, 2.0, s=(GOOD,), t=(BEHIND,)), lane_report(1, 5.0, t=(BROKEN,))]
    report = merge_reports(lane.summary() for lane in lanes)
    assert (report.lanes, report.seconds) == (2, 5.0)
    s, t = report.streams
    assert (s.stream, s.topic_partitions, s.objects, s.messages, s.lag, s.failures) == ("s", 1, 1, 15, 0, ())
    assert (t.stream, t.topic_partitions, t.objects, t.messages, t.lag, t.failures) == ("t", 2, 0, 0, 7, (BROKEN,))


def test_merge_of_no_lane_is_an_empty_report() -> None:
    assert merge_reports([]) == IngestReport(lanes=0, seconds=0.0, streams=())


def test_summary_can_be_stored_as_json_and_leaves_out_topic_partitions_without_a_failure() -> None:
    summary = lane_report(0, 2.0, s=(GOOD, BROKEN)).summary()
    assert LaneSummary.model_validate_json(summary.model_dump_json()) == summary
    assert summary.streams[0].failures == (BROKEN,)
