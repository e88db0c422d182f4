"""An exception that nothing expects stops the element in which it is raised, and no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from waybill.archive.ingest import Clock, Outcome, TopicPartitionReport, protocol
from waybill.archive.ingest import lane as lane_module
from waybill.archive.ingest.groups import _failures
from waybill.archive.ingest.kinesis.slot_source import SlotSource
from waybill.archive.ingest.lane_plan import Lane, LaneShare
from waybill.archive.ingest.lane_report import ReportDraft, merge_reports
from waybill.archive.ingest.services import Sources
from waybill.base.errors import CoordinationUnavailable, IngestStopped, StoreUnavailable, UnexpectedFailure
from waybill.config.models import Config
from waybill.config.names import TopicPartition
from waybill.services.kinesis.client import StreamDescription

TP = TopicPartition("flights", 3)
OTHER = TopicPartition("flights", 4)


class Journal:
    """The journal of stops, which may fail itself."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault = fault
        self.stops: dict[TopicPartition, IngestStopped | UnexpectedFailure] = {}

    def record_stop(self, tp: TopicPartition, error: IngestStopped | UnexpectedFailure) -> None:
        if self.fault is not None:
            raise self.fault
        self.stops[tp] = error


def target(journal: Journal) -> Any:
    services = SimpleNamespace(coordinator=journal)
    return SimpleNamespace(tp=TP, clock=Clock(), draft=ReportDraft(), services=services)


def archive_with(monkeypatch: pytest.MonkeyPatch, error: BaseException, journal: Journal) -> TopicPartitionReport:
    def fail(_: Any) -> Outcome:
        raise error

    monkeypatch.setattr(protocol, "_run_rounds", fail)
    return protocol.archive_topic_partition(target(journal))


@pytest.mark.parametrize(
    "error", [AttributeError("'bytes' object has no attribute 'encode'"), RecursionError(), KeyError(7)]
)
def test_unexpected_exception_is_a_failure_of_the_topic_partition_and_journaled(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    journal = Journal()
    report = archive_with(monkeypatch, error, journal)
    assert report.outcome is Outcome.FAILED
    assert report.failure is not None
    assert report.failure.error == "UnexpectedFailure"
    assert report.failure.message.startswith(f"flights/3: unexpected {type(error).__name__} at ")
    assert isinstance(journal.stops[TP], UnexpectedFailure)


@pytest.mark.parametrize("fault", [CoordinationUnavailable("away"), TypeError("a bug of the journal")])
def test_journal_that_fails_does_not_hide_the_failure(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    report = archive_with(monkeypatch, ValueError("x"), Journal(fault))
    assert report.failure is not None
    assert "ValueError" in report.failure.message


def test_kill_still_ends_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    class AirflowTaskTimeout(BaseException):
        """As in Airflow, where it is no `Exception`."""

    with pytest.raises(AirflowTaskTimeout):
        archive_with(monkeypatch, AirflowTaskTimeout(), Journal())


def config(**more: Any) -> Config:
    stream = {"topics": ["flights"], "parser": {"name": "raw"}, "table": "a.s", **more}
    streams = {"s": stream, "t": {**stream, "topics": ["u"], "table": "a.t"}}
    return Config.model_validate({"version": 1, "storage": {"bucket": "bucket"}, "streams": streams})


class BrokenKafka:
    connection = "kafka"

    def commit_to_group(self, *_: object) -> None:
        raise AttributeError("a bug of the library")


@pytest.mark.parametrize("expected", [True, False])
def test_chore_that_fails_is_reported_and_the_reports_of_the_lane_stay(
    monkeypatch: pytest.MonkeyPatch, expected: bool
) -> None:
    settings = config(ingest={"consumer_group": "g"})

    def archive(target: Any) -> TopicPartitionReport:
        return TopicPartitionReport(topic=target.tp.topic, partition=target.tp.partition, outcome=Outcome.UP_TO_DATE)

    def abort(*_: object) -> None:
        raise StoreUnavailable("away") if expected else KeyError("Uploads")

    monkeypatch.setattr(lane_module, "archive_topic_partition", archive)
    monkeypatch.setattr(lane_module, "abort_orphaned_uploads", abort)
    services: Any = {
        name: SimpleNamespace(kafka=BrokenKafka(), source=BrokenKafka(), coordinator=None, store=None)
        for name in ("s", "t")
    }
    topics = {"s": "flights", "t": "u"}
    shares = tuple(LaneShare(stream=s, topic=t, partition=0, estimated_bytes=1) for s, t in topics.items())
    lane = Lane(number=0, shares=shares, chores=("s",))
    report = lane_module.drain_lane(services, settings, lane)
    assert [each.outcome for each in report.partitions] == [Outcome.UP_TO_DATE] * 2
    problems = _failures(merge_reports([report.summary()]).streams)
    assert {(each.stream, each.error) for each in problems} == {("s", "UnexpectedFailure"), ("t", "UnexpectedFailure")}
    assert any("committing to the consumer group" in each.message for each in problems)


def test_kinesis_stream_whose_answer_is_unexpected_is_refused_alone() -> None:
    class Broken:
        def find(self, _: str) -> StreamDescription:
            raise KeyError("StreamDescriptionSummary")

    class Sound:
        def find(self, _: str) -> None:
            return None

    stream: Any = SimpleNamespace(topics=("s",), listed_topics=("s",), generation=1)
    clients: dict[str, Any] = {"broken": Broken(), "sound": Sound()}
    by_stream: Any = {name: SlotSource(client, stream, *[None] * 2) for name, client in clients.items()}  # type: ignore[arg-type]
    sources = Sources(None, None, by_stream, {})  # type: ignore[arg-type]
    found = sources.describe_streams(dict.fromkeys(clients, stream))
    assert [type(error) for error in found["broken"].refused.values()] == [UnexpectedFailure]
    assert not found["sound"].refused
