"""The plan of a sweep: the files it reads, and the window, watermarks and horizon that decide what is a duplicate.

The plan is an object in S3, named by the position that the table was swept to before, and created if absent. So a
rival, or a retry after a crash, finds it and gets the same result, even if the table has grown or the config has
changed meanwhile.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from waybill.base.documents import read_document
from waybill.base.errors import DocumentDamaged
from waybill.config.names import TopicPartition
from waybill.tables.dedup.appends import AppendedFile, TablePosition
from waybill.tables.iceberg.dedup import NO_HORIZON_MS, FirstSweepStart

_VERSION = 1
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_MILLISECOND = timedelta(milliseconds=1)

Watermarks = Mapping[TopicPartition, int]
"""The latest arrival of each topic-partition's rows, epoch ms."""


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The input of one sweep."""

    key: str
    """Object key of the plan."""
    stream: str
    generation: int
    created_at: datetime
    """No row counts as arrived later."""
    main: str
    """UUID of the swept table."""
    start: TablePosition
    end: TablePosition
    files: tuple[AppendedFile, ...]
    topic_partitions: tuple[TopicPartition, ...]
    """Sorted: those in the table's progress and in the watermarks."""
    watermarks: Watermarks
    """The state after the sweep before."""
    window_ms: int
    horizon_ms: int
    """Kept rows that arrived before it are not compared; `NO_HORIZON_MS`: all are."""
    key_columns: tuple[str, ...]
    source: str | None
    buckets: int
    beginning: FirstSweepStart | None = None
    """What the first sweep left out, or leaves out if this is the first."""
    rebuild: str | None = None
    """The rebuild whose history the plan extends; None: the history with which the unique table began."""

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
        """Return a hash of the whole plan, which differs for another plan with the same name."""
        return hashlib.sha256(self.to_json()).hexdigest()

    def to_json(self) -> bytes:
        """Return the document of `"v": 1`."""
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
            "horizon_ms": None if self.horizon_ms == NO_HORIZON_MS else self.horizon_ms,
            "key_columns": self.key_columns,
            "source": self.source,
            "buckets": self.buckets,
            "beginning": None if self.beginning is None else self.beginning.document(),
        }
        if self.rebuild is not None:  # the digest of other plans is that of an earlier Waybill
            document["rebuild"] = self.rebuild
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, key: str, text: bytes) -> SweepPlan:
        """Parse what `to_json` returns.

        Raises `DocumentTooNew` for a plan of a newer Waybill, `DocumentDamaged` for one that cannot be parsed.
        """
        remedy = "Let the Waybill that made the plan execute it, or remove the object, and run again"
        try:
            document = read_document(text, _VERSION, f"plan {key}", remedy=remedy)
            return cls._of(key, document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DocumentDamaged(f"plan {key} cannot be read ({error}): remove the object, and run again") from error

    @classmethod
    def _of(cls, key: str, document: Mapping[str, Any]) -> SweepPlan:
        horizon_ms, beginning = document["horizon_ms"], document.get("beginning")
        return cls(
            key=key,
            stream=document["stream"],
            generation=document["generation"],
            created_at=datetime.fromisoformat(document["created_at"]),
            main=document["main"],
            start=TablePosition(*document["start"]),
            end=TablePosition(*document["end"]),
            files=tuple(AppendedFile(*fields) for fields in document["files"]),
            topic_partitions=tuple(TopicPartition.parse(tp) for tp in document["topic_partitions"]),
            watermarks={TopicPartition.parse(tp): int(at) for tp, at in document["watermarks"].items()},
            window_ms=document["window_ms"],
            horizon_ms=NO_HORIZON_MS if horizon_ms is None else horizon_ms,
            key_columns=tuple(document["key_columns"]),
            source=document["source"],
            buckets=document["buckets"],
            beginning=None if beginning is None else FirstSweepStart.from_document(beginning),
            rebuild=document.get("rebuild"),
        )


def epoch_ms(time: datetime) -> int:
    """Return whole milliseconds since 1970, rounded down."""
    return (time - _EPOCH) // _MILLISECOND


def earliest_arrival_ms(watermarks: Watermarks, tp: TopicPartition, window_ms: int) -> int:
    """Return the time before which no row of the topic-partition counts as arrived, epoch ms; `NO_HORIZON_MS`: none.

    That is its own watermark; if it had no rows for longer than a window, a window before the newest watermark. A new
    topic-partition gets the oldest watermark, so that the index need not reach back further for it.
    """
    if not watermarks:
        return NO_HORIZON_MS
    own = watermarks.get(tp, min(watermarks.values()))
    return max(own, max(watermarks.values()) - window_ms)


def horizon_after(watermarks: Watermarks, window_ms: int) -> int:
    """Return the horizon that watermarks allow, epoch ms: no row that still arrives can repeat one from before it."""
    if not watermarks:
        return NO_HORIZON_MS
    return min(earliest_arrival_ms(watermarks, tp, window_ms) for tp in watermarks) - window_ms
