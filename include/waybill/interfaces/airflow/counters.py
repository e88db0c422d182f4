"""Counters of tasks, sent through Airflow's own metrics (StatsD or OpenTelemetry): `waybill.…`, tagged by stream.

All names are in this module. If Airflow's metrics are off, which is the default, no counter is sent; Airflow imports
the metrics module in each task anyway. Tags are streams, so the config bounds the series. Plain StatsD has no tags, so
Airflow leaves them out.

A count that a killed task had not sent is lost, so use the figures of the watch for exact totals (`waybill metrics`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from waybill.config.names import Stage

if TYPE_CHECKING:
    from waybill.archive.ingest.lane_report import LaneReport


class Counter(StrEnum):
    """The counters."""

    MESSAGES = "waybill.ingest.messages"
    """Archived messages."""
    BYTES = "waybill.ingest.bytes"
    """Bytes of the backup objects that were created."""
    OBJECTS = "waybill.ingest.objects"
    """Backup objects that were created."""
    COMMITS = "waybill.ingest.commits"
    """Moves of a committed offset."""
    ADOPTIONS = "waybill.ingest.adoptions"
    """Backup objects of other tasks that were adopted."""
    REFUSALS = "waybill.ingest.refusals"
    """Topic-partitions that a lane left because of a named stop or an error."""
    ROWS = "waybill.partition.rows"
    """Rows that partition runs committed."""
    QUARANTINED = "waybill.partition.quarantined"
    """Messages that partition runs sent to quarantine."""
    SWEPT_ROWS = "waybill.dedup.rows"
    """Rows that sweeps compared."""
    DUPLICATES = "waybill.dedup.duplicates"
    """Compared rows that were duplicates."""


def count_lane(report: LaneReport) -> None:
    """Count the results of a lane."""
    for stream in report.streams:
        objects = [each for partition in stream.partitions for each in partition.objects]
        adopted = sum(each.adopted for each in objects)
        count(
            stream.stream,
            {
                Counter.MESSAGES: stream.messages,
                Counter.BYTES: stream.size_bytes,
                Counter.OBJECTS: stream.objects,
                Counter.COMMITS: len(objects),
                Counter.ADOPTIONS: adopted,
                Counter.REFUSALS: len(stream.failures),
            },
        )


def count_result(job: Stage, stream: str, counts: Mapping[str, int]) -> None:
    """Count the results of a Spark application for a stream. `counts`: by the last part of the counters' names."""
    count(stream, {f"waybill.{job}.{name}": number for name, number in counts.items()})


def count(stream: str, counts: Mapping[str, int]) -> None:
    """Add to the counters of a stream. Zeros, and names that are not in `Counter`, are left out."""
    from airflow.sdk.observability import stats

    for counter, number in _known(counts):
        stats.incr(counter, number, tags={"stream": stream})


def _known(counts: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    known = {str(each) for each in Counter}
    return ((str(name), number) for name, number in counts.items() if str(name) in known and number > 0)
