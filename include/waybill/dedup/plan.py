"""The plan of a sweep: which files of the stream's table, judged by which window, watermarks and horizon.

The plan is an object in S3, named by how far the table was swept before and created if absent. So a rival, or a retry
after a crash, finds it and does the same, even if the table has grown or the config has changed in between.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from waybill.dedup.appends import GainedFile, Point
from waybill.dedup.candidates import UNBOUNDED_MS
from waybill.documents import read_document
from waybill.errors import PlanUnusable
from waybill.names import TopicPartition
from waybill.tables.dedup import Beginning

__all__ = ["SweepPlan", "epoch_ms", "horizon_after", "low_ms"]

_VERSION = 1
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_MILLISECOND = timedelta(milliseconds=1)

Watermarks = Mapping[TopicPartition, int]
"""Up to where the arrival of each topic-partition's rows has come, epoch ms."""


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What one sweep does."""

    key: str
    """The name of the plan's object."""
    stream: str
    generation: int
    created_at: datetime
    """No row counts as arrived after it."""
    main: str
    """The uuid of the table that is swept."""
    start: Point
    end: Point
    files: tuple[GainedFile, ...]
    topic_partitions: tuple[TopicPartition, ...]
    """Sorted: those that the table's progress and the watermarks know."""
    watermarks: Watermarks
    """As the sweep before left them."""
    window_ms: int
    horizon_ms: int
    """Kept rows that arrived before it do not count; `UNBOUNDED_MS`: all count."""
    key_columns: tuple[str, ...]
    source: str | None
    buckets: int
    beginning: Beginning | None = None
    """What the first sweep has left out for good, or, if this is the first, leaves out."""

    @property
    def id(self) -> str:
        """Short, and the same for the same start."""
        return self.key.rsplit("/", 1)[-1].removesuffix(".json")

    @property
    def high_ms(self) -> int:
        """The latest arrival that a row can have, unless its topic-partition was there before."""
        return epoch_ms(self.created_at)

    @property
    def records(self) -> int:
        """Rows of all files."""
        return sum(file.records for file in self.files)

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def digest(self) -> str:
        """What tells it from any other plan, of the same name or not."""
        return hashlib.sha256(self.to_json()).hexdigest()

    def to_json(self) -> bytes:
        """The document of `"v": 1`."""
        document = {
            "v": _VERSION,
            "stream": self.stream,
            "generation": self.generation,
            "created_at": self.created_at.isoformat(),
            "main": self.main,
            "start": [self.start.snapshot_id, self.start.sequence],
            "end": [self.end.snapshot_id, self.end.sequence],
            "files": [[file.path, file.size_bytes, file.records] for file in self.files],
            "topic_partitions": [str(tp) for tp in self.topic_partitions],
            "watermarks": {str(tp): at for tp, at in sorted(self.watermarks.items())},
            "window_ms": self.window_ms,
            "horizon_ms": None if self.horizon_ms == UNBOUNDED_MS else self.horizon_ms,
            "key_columns": self.key_columns,
            "source": self.source,
            "buckets": self.buckets,
            "beginning": None if self.beginning is None else self.beginning.document(),
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, key: str, text: bytes) -> SweepPlan:
        """The inverse of `to_json`.

        Raises `GenerationConflict` for a plan of a newer Waybill, `PlanUnusable` for what is no plan.
        """
        remedy = "Let the Waybill that made the plan carry it out, or remove the object, and run again"
        try:
            document = read_document(text, _VERSION, f"plan {key}", remedy=remedy)
            return cls._of(key, document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PlanUnusable(f"plan {key} cannot be read ({error}): remove the object, and run again") from error

    @classmethod
    def _of(cls, key: str, document: Mapping[str, Any]) -> SweepPlan:
        horizon_ms, beginning = document["horizon_ms"], document.get("beginning")
        return cls(
            key=key,
            stream=document["stream"],
            generation=document["generation"],
            created_at=datetime.fromisoformat(document["created_at"]),
            main=document["main"],
            start=Point(*document["start"]),
            end=Point(*document["end"]),
            files=tuple(GainedFile(*fields) for fields in document["files"]),
            topic_partitions=tuple(TopicPartition.parse(tp) for tp in document["topic_partitions"]),
            watermarks={TopicPartition.parse(tp): int(at) for tp, at in document["watermarks"].items()},
            window_ms=document["window_ms"],
            horizon_ms=UNBOUNDED_MS if horizon_ms is None else horizon_ms,
            key_columns=tuple(document["key_columns"]),
            source=document["source"],
            buckets=document["buckets"],
            beginning=None if beginning is None else Beginning.from_document(beginning),
        )


def epoch_ms(time: datetime) -> int:
    """Whole milliseconds since 1970."""
    return (time - _EPOCH) // _MILLISECOND


def low_ms(watermarks: Watermarks, tp: TopicPartition, window_ms: int) -> int:
    """Before what no row of the topic-partition counts as arrived, epoch ms.

    That is its own watermark; of one that was quiet for longer than a window, a window before the newest of all. One
    that is new counts as the furthest behind of those that are known: the index need not reach back further for it.
    """
    if not watermarks:
        return UNBOUNDED_MS
    own = watermarks.get(tp, min(watermarks.values()))
    return max(own, max(watermarks.values()) - window_ms)


def horizon_after(watermarks: Watermarks, window_ms: int) -> int:
    """The horizon that watermarks allow: no row can still arrive that would repeat one from before it."""
    if not watermarks:
        return UNBOUNDED_MS
    return min(low_ms(watermarks, tp, window_ms) for tp in watermarks) - window_ms
