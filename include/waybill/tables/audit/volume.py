"""The rows of each hour that a run completes, compared with the same hour of previous days and weeks.

The rows of an hour of event time are known without reading them: the manifests of a table have the partition and the
number of rows of each data file. An hour is complete when the watermark of each topic-partition that has messages in
the run is past its end. For a table that is partitioned by day, days are compared.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import IntegerType

from waybill.tables.audit.given import AuditInput
from waybill.tables.iceberg.progress import parse_watermarks, read_watermarks
from waybill.tables.iceberg.state import WATERMARKS_PROPERTY

_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
_MOST_UNITS = 24
"""If a run with a backlog completes more hours, only the newest are compared."""

_EARLIER_DAYS = (1, 2, 3, 4, 5, 6, 7, 14, 21, 28)


@dataclass(frozen=True, slots=True)
class PartitionVolume:
    """The number of rows of one hour or day, and the usual number."""

    start: datetime
    rows: int
    usual_rows: int
    """The median of the same hour on earlier days."""
    history: int
    """The number of earlier days in the median."""

    @property
    def ratio(self) -> Decimal:
        """Return the ratio of the rows to the usual rows, which must not be 0."""
        return Decimal(self.rows) / self.usual_rows

    def __str__(self) -> str:
        start = self.start.strftime("%Y-%m-%dT%H:%MZ")
        return f"{start}: {self.rows:,} rows, usually {self.usual_rows:,} (median of {self.history} days)"


def volumes_of(given: AuditInput) -> list[PartitionVolume]:
    """Return the volume of each hour (or day) that the run completes, oldest first; none with the sink `files`.

    It reads the manifests that have one of these hours, or the same hour on an earlier day. Raises `OSError`.
    """
    text = given.properties.get(WATERMARKS_PROPERTY)
    if text is None or given.stream.sink.is_files:
        return []
    unit_ms = _HOUR_MS if given.stream.by_hour else _DAY_MS
    name = ".".join(given.table.name())
    units = completed_units(read_watermarks(given.history, name), parse_watermarks(text), unit_ms)
    if not units:
        return []
    days = 1 if unit_ms == _DAY_MS else 24
    wanted = {*units, *(earlier for unit in units for earlier in earlier_units(unit, days))}
    rows, first = _rows_in_table(given.table, given.history.current_snapshot(), wanted)
    rows.update(_rows_by_unit(given.table_files))
    return [_volume(unit, rows, first, days, unit_ms) for unit in units]


def completed_units(before: Mapping[Any, int], run: Mapping[Any, int], unit_ms: int) -> list[int]:
    """Return the numbers of the hours (or days) since 1970 that a run completes: at most the 24 newest, in order.

    `before`: the watermarks of the table in epoch ms, by topic-partition; `run`: those of the run's messages.
    """
    known = {tp: before[tp] for tp in run if tp in before}
    if not known:
        return []  # the table has no rows of these topic-partitions yet, so there is no usual number
    complete_to = min(max(at, before.get(tp, at)) for tp, at in run.items()) // unit_ms
    complete_before = min(known.values()) // unit_ms
    return list(range(max(complete_before, complete_to - _MOST_UNITS), complete_to))


def earlier_units(unit: int, units_a_day: int) -> list[int]:
    """Return the same hour on each day of the week before, and on the same weekday of the three weeks before that."""
    return [unit - days * units_a_day for days in _EARLIER_DAYS]


def _volume(unit: int, rows: Mapping[int, int], first: int, units_a_day: int, unit_ms: int) -> PartitionVolume:
    history = [rows.get(earlier, 0) for earlier in earlier_units(unit, units_a_day) if earlier > first]
    usual = int(statistics.median(history)) if history else 0
    start = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=unit * unit_ms)
    return PartitionVolume(start, rows.get(unit, 0), usual, len(history))


def _rows_in_table(table: Table, snapshot: Snapshot | None, wanted: Collection[int]) -> tuple[Counter[int], int]:
    """Return the rows of the wanted hours in a snapshot of the table, and the first hour that it has."""
    rows: Counter[int] = Counter()
    first: int | None = None
    for manifest in () if snapshot is None else snapshot.manifests(table.io):
        bounds = _bounds(manifest, table)
        if bounds is None:
            continue
        low, high = bounds
        first = low if first is None else min(first, low)
        if any(low <= unit <= high for unit in wanted):
            files = (entry.data_file for entry in manifest.fetch_manifest_entry(table.io))
            rows.update({unit: n for unit, n in _rows_by_unit(files).items() if unit in wanted})
    return rows, max(wanted) if first is None else first


def _bounds(manifest: ManifestFile, table: Table) -> tuple[int, int] | None:
    """Return the first and the last hour in a manifest; None if it has no data files of the current partitioning."""
    if manifest.content is not ManifestContent.DATA or manifest.partition_spec_id != table.spec().spec_id:
        return None
    if not manifest.partitions:
        return None
    low, high = manifest.partitions[0].lower_bound, manifest.partitions[0].upper_bound
    if low is None or high is None:
        return None
    return int(from_bytes(IntegerType(), low)), int(from_bytes(IntegerType(), high))


def _rows_by_unit(files: Iterable[DataFile]) -> Counter[int]:
    rows: Counter[int] = Counter()
    for file in files:
        rows[_unit_number(file.partition[0])] += file.record_count
    return rows


def _unit_number(value: int | date) -> int:
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else value
