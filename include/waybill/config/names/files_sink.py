"""The keys of the `files` sink: directories of hours and days, files, and `_SUCCESS`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum

from waybill.config.names.segments import MAX_OFFSET, NUMBER, OFFSET_PATTERN, join_segments, padded_offset
from waybill.config.names.topics import check_topic, is_topic


class FileExtension(StrEnum):
    """The extension of a file of the `files` sink, which implies the format."""

    PARQUET = "parquet"
    SEQUENCEFILE = "seq"
    TEXT = "txt"
    TEXT_GZIP = "txt.gz"


_PERIOD_OBJECT = re.compile(r"([a-zA-Z0-9._-]{1,249})/dt=([0-9]{4}-[0-9]{2}-[0-9]{2})/(?:hr=([0-9]{2})/)?([^/]+)")
_FILE_EXTENSIONS = "|".join(re.escape(extension) for extension in FileExtension)
_FILE = re.compile(rf"({NUMBER.pattern})_({NUMBER.pattern})_({OFFSET_PATTERN})\.({_FILE_EXTENSIONS})")
_SUCCESS = "_SUCCESS"


@dataclass(frozen=True, slots=True, order=True)
class SinkPeriod:
    """An hour or a day of a topic's event time, which is one directory of the `files` sink."""

    topic: str
    start: datetime
    """In UTC, a whole hour or day."""
    by_hour: bool

    @property
    def end(self) -> datetime:
        """The start of the next period. The last period that a `datetime` can hold ends at its own start."""
        length = timedelta(hours=1) if self.by_hour else timedelta(days=1)
        return min(self.start, datetime.max.replace(tzinfo=UTC) - length) + length

    @property
    def path(self) -> str:
        """The directory `<topic>/dt=YYYY-MM-DD/hr=HH/`, as Hive names partitions; without `hr` for a day."""
        hour = f"hr={self.start:%H}/" if self.by_hour else ""
        return f"{check_topic(self.topic)}/dt={self.start.date().isoformat()}/{hour}"

    def prefix(self, root: str) -> str:
        """Return the prefix of all objects of the period below the sink's `root`."""
        return join_segments(root, self.path)

    def __str__(self) -> str:
        return self.path.rstrip("/")


@dataclass(frozen=True, slots=True, order=True)
class FileName:
    """The name of a file of the `files` sink: its topic-partition, its period, and the first offset of its range.

    The range is what one task reads of the topic-partition, so the plan determines the name.
    """

    period: SinkPeriod
    generation: int
    partition: int
    first_offset: int
    extension: FileExtension

    def key(self, root: str) -> str:
        """Return the key `<root>/<topic>/dt=…/hr=…/<generation>_<partition>_<first_offset>.<extension>`."""
        offset = padded_offset(self.first_offset)
        return f"{self.period.prefix(root)}{self.generation}_{self.partition}_{offset}.{self.extension}"

    @classmethod
    def parse(cls, root: str, key: str) -> FileName:
        """Return the name that the key holds. Raises `ValueError` if it is not the key of such a file."""
        period = period_of_key(root, key)
        match = _FILE.fullmatch(key.rsplit("/", 1)[-1])
        if period is None or match is None or int(match[3]) > MAX_OFFSET:
            raise ValueError(f"{key!r} is not the name of a file below {root!r}")
        return cls(period, int(match[1]), int(match[2]), int(match[3]), FileExtension(match[4]))


def sink_root(prefix: str, sink_prefix: str) -> str:
    """Return the prefix of all files of a sink, below the archive's `prefix`."""
    return join_segments(prefix, *(p for p in sink_prefix.split("/") if p))


def period_of_key(root: str, key: str) -> SinkPeriod | None:
    """Return the period whose directory holds an object of the sink; None if no period's directory holds it."""
    prefix = join_segments(root, "")
    match = _PERIOD_OBJECT.fullmatch(key.removeprefix(prefix)) if key.startswith(prefix) else None
    if match is None or not is_topic(match[1]):
        return None
    try:
        start = datetime.combine(date.fromisoformat(match[2]), time(int(match[3] or 0)), UTC)
    except ValueError:
        return None
    return SinkPeriod(match[1], start, match[3] is not None)


def success_key(root: str, period: SinkPeriod) -> str:
    """Return the key of the `_SUCCESS` object that marks a period as final."""
    return period.prefix(root) + _SUCCESS
