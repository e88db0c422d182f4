"""The report of an ingest run: its figures, and which problems fail it."""

from __future__ import annotations

import logging

import pytest

from waybill.archive.ingest.groups import report_run
from waybill.archive.ingest.lane_plan import IngestPlan, Lane, StreamProblem
from waybill.archive.ingest.lane_report import (
    ArchivedObject,
    Failure,
    LaneReport,
    LaneSummary,
    Outcome,
    StreamReport,
    TopicPartitionReport,
)
from waybill.base.errors import IngestIncomplete
from waybill.config.models import Config
from waybill.interfaces.airflow.tasks import report_ingest

CONFIG = Config.model_validate(
    {
        "version": 1,
        "storage": {"bucket": "abc"},
        "streams": {
            "flights": {"topics": ["flights"], "parser": {"event_time": {"field": "time"}}, "table": "a.flights"}
        },
    }
)


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


def lane(*partitions: TopicPartitionReport) -> LaneSummary:
    return LaneReport(lane=0, seconds=2.0, streams=(StreamReport(stream="flights", partitions=partitions),)).summary()


def plan(lanes: int, *problems: StreamProblem) -> IngestPlan:
    planned = tuple(Lane(number=number, shares=()) for number in range(lanes))
    return IngestPlan(streams=("flights",), lanes=planned, problems=problems)


def report(planned: IngestPlan, *lanes: LaneSummary) -> None:
    """Report a run of the stream's own DAG, which records no problems."""
    report_run(CONFIG, None, planned, lanes)


def test_report_logs_the_figures_of_each_stream(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        report(plan(2), lane(archived(0, 1500)), lane(archived(1, 500)))
    assert "flights: 2,000 messages in 2 new objects, 0.2 MB, from 2 topic-partitions, lag 10" in caplog.text


def test_stopped_topic_partition_fails_the_report_after_figures_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(IngestIncomplete, match=r"- flights: RetentionGap: flights/9: offsets 10–19 are gone"),
    ):
        report(plan(1), lane(archived(0, 1500), STOPPED))
    assert "1,500 messages" in caplog.text


def test_problem_that_planning_found_fails_the_report_of_an_own_dag() -> None:
    with pytest.raises(IngestIncomplete, match="- flights: TopicMissing: topic 'x' does not exist"):
        report(plan(0, StreamProblem(stream="flights", error="TopicMissing", message="topic 'x' does not exist")))


def test_lane_without_a_report_fails_the_report() -> None:
    with pytest.raises(IngestIncomplete, match="1 of 2 lanes ended without a report"):
        report(plan(2), lane(archived(0, 10)))


def test_failed_plan_fails_the_report() -> None:
    with pytest.raises(IngestIncomplete, match="did not begin"):
        report_ingest(None, None, [])


def test_run_with_nothing_to_do_succeeds() -> None:
    report(plan(0))
