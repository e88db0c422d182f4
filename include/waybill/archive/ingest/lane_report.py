"""Reports of lanes: JSON documents that go from a lane's Airflow task to the report task, the logger and the CLI."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from waybill.config.names import TopicPartition


class Outcome(StrEnum):
    """How a lane ended with a topic-partition."""

    UP_TO_DATE = "up_to_date"
    """The topic-partition is archived up to the log end that Kafka reported at the start."""
    WAITING = "waiting"
    """The remaining messages are neither large nor old enough for an object."""
    OUT_OF_TIME = "out_of_time"
    """The lane's budget ended before the end of the log."""
    LOCKED = "locked"
    """Another lane held the lock."""
    STOPPED = "stopped"
    """A named stop: it stays stopped until a person decides."""
    FAILED = "failed"
    """An error that may be gone in the next run, or a mistake in the config."""


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True)


class ArchivedObject(_Document):
    """One backup object that was created or adopted."""

    key: str
    first_offset: int
    next_offset: int
    messages: int
    size_bytes: int
    seconds: float
    """The time from the first fetch to the cut; 0 for an adopted object."""
    adopted: bool = False
    """Whether another task created the object: one that died before it could commit, or a rival."""


class Failure(_Document):
    """Why a topic-partition was not archived to its end."""

    error: str
    """The name of the error's class."""
    message: str
    retriable: bool


class TopicPartitionReport(_Document):
    """The results of a lane for one topic-partition."""

    topic: str
    partition: int
    outcome: Outcome
    objects: tuple[ArchivedObject, ...] = ()
    committed_offset: int | None = None
    end_offset: int | None = None
    """The end of the log at the start: the last stable offset or the high watermark."""
    seconds: float = 0.0
    failure: Failure | None = None

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def merged_with(self, later: TopicPartitionReport) -> TopicPartitionReport:
        """Merge the reports of two time slices of the same lane; the later outcome is kept."""
        return later.model_copy(
            update={
                "objects": self.objects + later.objects,
                "committed_offset": self.committed_offset if later.committed_offset is None else later.committed_offset,
                "end_offset": self.end_offset if later.end_offset is None else later.end_offset,
                "seconds": self.seconds + later.seconds,
            }
        )

    @property
    def lag(self) -> int | None:
        """The number of offsets left to archive; None if it is unknown."""
        if self.committed_offset is None or self.end_offset is None:
            return None
        return max(0, self.end_offset - self.committed_offset)

    @property
    def messages(self) -> int:
        """The number of messages in the objects that this lane created."""
        return sum(o.messages for o in self.objects if not o.adopted)

    @property
    def size_bytes(self) -> int:
        """The size of the objects that this lane created."""
        return sum(o.size_bytes for o in self.objects if not o.adopted)


@dataclass(slots=True)
class ReportDraft:
    """The figures of a report, filled in step by step, so that the report of a failure has all known figures."""

    objects: list[ArchivedObject] = field(default_factory=list)
    committed_offset: int | None = None
    end_offset: int | None = None

    def to_report(
        self, tp: TopicPartition, outcome: Outcome, seconds: float, failure: Failure | None
    ) -> TopicPartitionReport:
        return TopicPartitionReport(
            topic=tp.topic,
            partition=tp.partition,
            outcome=outcome,
            objects=tuple(self.objects),
            committed_offset=self.committed_offset,
            end_offset=self.end_offset,
            seconds=seconds,
            failure=failure,
        )


class _Totals(_Document, ABC):
    """Totals over the reports of topic-partitions."""

    @abstractmethod
    def _reports(self) -> tuple[TopicPartitionReport, ...]: ...

    @property
    def failures(self) -> list[TopicPartitionReport]:
        """The topic-partitions that are stopped or failed."""
        return [p for p in self._reports() if p.failure is not None]

    @property
    def objects(self) -> int:
        """The number of created objects."""
        return sum(not o.adopted for p in self._reports() for o in p.objects)

    @property
    def messages(self) -> int:
        return sum(p.messages for p in self._reports())

    @property
    def size_bytes(self) -> int:
        return sum(p.size_bytes for p in self._reports())

    @property
    def lag(self) -> int:
        """The number of offsets left to archive, without the topic-partitions where it is unknown."""
        return sum(p.lag or 0 for p in self._reports())


class StreamReport(_Totals):
    """The results of one lane for one stream."""

    stream: str
    partitions: tuple[TopicPartitionReport, ...]
    chores: tuple[Failure, ...] = ()
    """Unexpected failures of chores: uploads to abort, offsets for a consumer group."""

    def _reports(self) -> tuple[TopicPartitionReport, ...]:
        return self.partitions

    def summary(self) -> StreamSummary:
        """Return the totals, and the reports of the topic-partitions that are stopped or failed."""
        return StreamSummary(
            stream=self.stream,
            topic_partitions=len(self.partitions),
            objects=self.objects,
            messages=self.messages,
            size_bytes=self.size_bytes,
            lag=self.lag,
            failures=tuple(self.failures),
            chores=self.chores,
        )


class LaneReport(_Totals):
    """The results of one lane, by stream."""

    lane: int
    seconds: float
    streams: tuple[StreamReport, ...]

    @property
    def partitions(self) -> tuple[TopicPartitionReport, ...]:
        """The reports of all topic-partitions."""
        return tuple(report for stream in self.streams for report in stream.partitions)

    def _reports(self) -> tuple[TopicPartitionReport, ...]:
        return self.partitions

    def summary(self) -> LaneSummary:
        """Return the figures for the report task.

        Airflow stores them in its database at every run, so they are short.
        """
        return LaneSummary(
            lane=self.lane, seconds=self.seconds, streams=tuple(stream.summary() for stream in self.streams)
        )


class StreamSummary(_Document):
    """The results of one lane, or of all lanes of a run, for one stream."""

    stream: str
    topic_partitions: int
    objects: int
    messages: int
    size_bytes: int
    lag: int
    """The number of offsets left to archive, without the topic-partitions where it is unknown."""
    failures: tuple[TopicPartitionReport, ...] = ()
    """The topic-partitions that are stopped or failed."""
    chores: tuple[Failure, ...] = ()
    """Unexpected failures of chores."""

    def __add__(self, other: StreamSummary) -> StreamSummary:
        """Return the sum for two lanes of one run."""
        return StreamSummary(
            stream=self.stream,
            topic_partitions=self.topic_partitions + other.topic_partitions,
            objects=self.objects + other.objects,
            messages=self.messages + other.messages,
            size_bytes=self.size_bytes + other.size_bytes,
            lag=self.lag + other.lag,
            failures=self.failures + other.failures,
            chores=self.chores + other.chores,
        )


class LaneSummary(_Document):
    """The totals of one lane, by stream."""

    lane: int
    seconds: float
    streams: tuple[StreamSummary, ...]


class IngestReport(_Document):
    """The results of all lanes of one run, by stream."""

    lanes: int
    seconds: float
    """The time of the longest lane."""
    streams: tuple[StreamSummary, ...]


def merge_reports(lanes: Iterable[LaneSummary]) -> IngestReport:
    """Return one report of all lanes of a run, with the streams by name."""
    lanes = list(lanes)
    by_stream: dict[str, StreamSummary] = {}
    for lane in lanes:
        for each in lane.streams:
            before = by_stream.get(each.stream)
            by_stream[each.stream] = each if before is None else before + each
    seconds = max((lane.seconds for lane in lanes), default=0.0)
    return IngestReport(lanes=len(lanes), seconds=seconds, streams=tuple(by_stream[name] for name in sorted(by_stream)))
