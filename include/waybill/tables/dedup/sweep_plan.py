"""The plan of a sweep: the files to read, and the window, watermarks and horizon that decide which rows are duplicates.

The plan is an object in S3, named by the position that the table was swept to before, and created if absent. So a
rival, or a retry after a crash, finds it and gets the same result, even if the table has grown or the config has
changed since then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, ClassVar

from waybill.base.documents import As, Document, Stored
from waybill.config.names import TopicPartition, offsets_of_json, offsets_to_json
from waybill.tables.dedup.appends import AppendedFile, TablePosition
from waybill.tables.iceberg.dedup import NO_HORIZON_MS, FirstSweepStart

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_MILLISECOND = timedelta(milliseconds=1)

Watermarks = Mapping[TopicPartition, int]
"""The latest arrival of each topic-partition's rows, epoch ms."""


_POSITION = As("", lambda values: TablePosition(*values), lambda at: [at.snapshot_id, at.sequence])
_FILES = As(
    "",
    lambda files: tuple(AppendedFile(*each) for each in files),
    lambda files: [[each.path, each.size_bytes, each.records] for each in files],
)
_TOPIC_PARTITIONS = As("", lambda texts: tuple(map(TopicPartition.parse, texts)), lambda tps: list(map(str, tps)))
_HORIZON = As(
    "",
    lambda at_ms: NO_HORIZON_MS if at_ms is None else at_ms,
    lambda at_ms: None if at_ms == NO_HORIZON_MS else at_ms,
)
_BEGINNING = As("", lambda fields: FirstSweepStart.of_fields("", fields), FirstSweepStart.to_part, may_lack=True)


@dataclass(frozen=True, slots=True)
class SweepPlan(Stored):
    """The input of one sweep."""

    DOCUMENT: ClassVar = Document(
        "plan {where} cannot be read ({error}): remove the object, and run again",
        name="plan {where}",
        remedy="Let the Waybill that made the plan execute it, or remove the object, and run again",
    )

    key: Annotated[str, As(is_place=True)]
    """Object key of the plan."""
    stream: str
    generation: int
    created_at: datetime
    """The latest arrival of any row: later arrivals count as this time."""
    main: str
    """UUID of the swept table."""
    start: Annotated[TablePosition, _POSITION]
    end: Annotated[TablePosition, _POSITION]
    files: Annotated[tuple[AppendedFile, ...], _FILES]
    topic_partitions: Annotated[tuple[TopicPartition, ...], _TOPIC_PARTITIONS]
    """Sorted: those in the table's progress and in the watermarks."""
    watermarks: Annotated[Watermarks, As("", offsets_of_json, offsets_to_json)]
    """The watermarks after the previous sweep."""
    window_ms: int
    horizon_ms: Annotated[int, _HORIZON]
    """Kept rows that arrived before it are not compared; `NO_HORIZON_MS`: all rows are compared."""
    key_columns: tuple[str, ...]
    source: str | None
    buckets: int
    beginning: Annotated[FirstSweepStart | None, _BEGINNING] = None
    """The rows that the first sweep leaves out, which may be this sweep."""
    rebuild: Annotated[str | None, As(is_left_out=True)] = None
    """The rebuild whose history the plan extends; None: the history with which the unique table began.

    None is not written, so that such a plan has the same digest as in earlier versions of Waybill."""

    @property
    def id(self) -> str:
        """Return a short name, equal for plans with the same start."""
        return self.key.rsplit("/", 1)[-1].removesuffix(".json")

    @property
    def latest_arrival_ms(self) -> int:
        """Return the latest arrival of a row, except where its topic-partition's watermark is later."""
        return epoch_ms(self.created_at)

    @property
    def records(self) -> int:
        """Return the number of rows in all files."""
        return sum(file.records for file in self.files)

    @property
    def size_bytes(self) -> int:
        """Return the size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def digest(self) -> str:
        """Return a hash of the whole plan, which distinguishes plans with the same name."""
        return hashlib.sha256(self.to_json()).hexdigest()


def epoch_ms(time: datetime) -> int:
    """Return whole milliseconds since 1970, rounded down."""
    return (time - _EPOCH) // _MILLISECOND


def earliest_arrival_ms(watermarks: Watermarks, tp: TopicPartition, window_ms: int) -> int:
    """Return the time before which no row of the topic-partition counts as arrived, epoch ms; `NO_HORIZON_MS`: none.

    This time is its own watermark, or one window before the newest watermark if it had no rows for longer than a
    window. A new topic-partition gets the oldest watermark, so that the index need not reach back further for it.
    """
    if not watermarks:
        return NO_HORIZON_MS
    own = watermarks.get(tp, min(watermarks.values()))
    return max(own, max(watermarks.values()) - window_ms)


def horizon_after(watermarks: Watermarks, window_ms: int) -> int:
    """Return the horizon that watermarks allow, epoch ms: no later row can be a duplicate of a row before it."""
    if not watermarks:
        return NO_HORIZON_MS
    return min(earliest_arrival_ms(watermarks, tp, window_ms) for tp in watermarks) - window_ms
