"""The task `report` of `ingest__<stream>`."""

from __future__ import annotations

import logging

import pytest

from waybill.errors import IngestIncomplete
from waybill.ingest import LaneReport
from waybill.ingest.report import ArchivedObject, Failure, Outcome, TopicPartitionReport
from waybill.orchestration.tasks import report_ingest


def archived(partition: int, messages: int) -> TopicPartitionReport:
    archived_object = ArchivedObject(
        key=f"backup/flights/1_{partition}_{0:020d}.kafka",
        first_offset=0,
        next_offset=messages,
        messages=messages,
        size_bytes=messages * 100,
        seconds=1.0,
    )
    return TopicPartitionReport(
        topic="flights",
        partition=partition,
        outcome=Outcome.UP_TO_DATE,
        objects=(archived_object,),
        committed_offset=messages,
        end_offset=messages + 5,
    )


STOPPED = TopicPartitionReport(
    topic="flights",
    partition=9,
    outcome=Outcome.STOPPED,
    failure=Failure(error="RetentionGap", message="flights/9: offsets 10–19 are gone", retriable=False),
)


def lane(*partitions: TopicPartitionReport) -> LaneReport:
    return LaneReport(stream="flights", lane=0, seconds=2.0, partitions=partitions)


def test_report_logs_the_figures_of_the_run(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        run = report_ingest("flights", 2, [lane(archived(0, 1500)), lane(archived(1, 500))])
    assert run.messages == 2000
    assert "2,000 messages in 2 new objects, 0.2 MB, from 2 topic-partitions in 2 lanes, 2.0 s, lag 10" in caplog.text


def test_stopped_topic_partition_fails_the_report_after_figures_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(IngestIncomplete, match=r"- RetentionGap: flights/9: offsets 10–19 are gone"),
    ):
        report_ingest("flights", 1, [lane(archived(0, 1500), STOPPED)])
    assert "1,500 messages" in caplog.text


def test_lane_without_a_report_fails_the_report() -> None:
    with pytest.raises(IngestIncomplete, match="1 of 2 lanes ended without a report"):
        report_ingest("flights", 2, [lane(archived(0, 10))])


def test_failed_plan_fails_the_report() -> None:
    with pytest.raises(IngestIncomplete, match="did not begin"):
        report_ingest("flights", None, [])


def test_run_with_nothing_to_do_succeeds() -> None:
    assert report_ingest("flights", 0, []).messages == 0
