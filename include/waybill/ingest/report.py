"""What a lane did, as documents that travel as JSON: from a task to the report, to the log, to the CLI."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from waybill.names import TopicPartition

__all__ = ["ArchivedObject", "Failure", "IngestReport", "LaneReport", "Outcome", "PartitionReport", "merge_reports"]


class Outcome(StrEnum):
    """How a topic-partition fared in a lane."""

    UP_TO_DATE = "up_to_date"
    """Archived up to the end that was seen at the start."""
    WAITING = "waiting"
    """What is left is neither large nor old enough for an object."""
    OUT_OF_TIME = "out_of_time"
    """The lane's budget ended first."""
    LOCKED = "locked"
    """Another lane worked on it."""
    STOPPED = "stopped"
    """A named stop: it stands still until somebody decides."""
    FAILED = "failed"
    """An error that may be gone at the next run, or a mistake in the config."""


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True)


class ArchivedObject(_Document):
    """One backup object that was created, or found and adopted."""

    key: str
    first_offset: int
    next_offset: int
    messages: int
    size_bytes: int
    seconds: float
    adopted: bool = False
    """It was there already: from a task that died before it could commit, or from a rival."""


class Failure(_Document):
    """Why a topic-partition was not archived to its end."""

    error: str
    """The name of the error's class."""
    message: str
    retriable: bool


class PartitionReport(_Document):
    """What was done for one topic-partition."""

    topic: str
    partition: int
    outcome: Outcome
    objects: tuple[ArchivedObject, ...] = ()
    committed_offset: int | None = None
    end_offset: int | None = None
    """The end that was seen at the start: the last stable offset or the high watermark."""
    seconds: float = 0.0
    failure: Failure | None = None

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def followed_by(self, later: PartitionReport) -> PartitionReport:
        """This turn and a later one of the same lane as one report: it ended as the later one did."""
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
        """Offsets left to archive; None if that is not known."""
        if self.committed_offset is None or self.end_offset is None:
            return None
        return max(0, self.end_offset - self.committed_offset)

    @property
    def messages(self) -> int:
        return sum(o.messages for o in self.objects if not o.adopted)

    @property
    def size_bytes(self) -> int:
        return sum(o.size_bytes for o in self.objects if not o.adopted)


class _Totals(_Document):
    partitions: tuple[PartitionReport, ...]

    @property
    def failures(self) -> list[PartitionReport]:
        """The topic-partitions that did not go well, stopped or failed."""
        return [p for p in self.partitions if p.failure is not None]

    @property
    def objects(self) -> int:
        """How many objects were created."""
        return sum(not o.adopted for p in self.partitions for o in p.objects)

    @property
    def messages(self) -> int:
        return sum(p.messages for p in self.partitions)

    @property
    def size_bytes(self) -> int:
        return sum(p.size_bytes for p in self.partitions)

    @property
    def lag(self) -> int:
        """Offsets left to archive, where that is known."""
        return sum(p.lag or 0 for p in self.partitions)


class LaneReport(_Totals):
    """What one lane did."""

    stream: str
    lane: int
    seconds: float


class IngestReport(_Totals):
    """What all lanes of one run did."""

    stream: str
    lanes: int
    seconds: float
    """Of the longest lane."""


def merge_reports(stream: str, reports: Iterable[LaneReport]) -> IngestReport:
    """The reports of a run's lanes as one."""
    reports = list(reports)
    partitions = sorted((p for r in reports for p in r.partitions), key=lambda p: p.tp)
    seconds = max((r.seconds for r in reports), default=0.0)
    return IngestReport(stream=stream, lanes=len(reports), seconds=seconds, partitions=tuple(partitions))
