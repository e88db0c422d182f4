"""How far a stream's dedup has come, how far back it sees, and what it has found.

It only reads: the catalog, the index's manifest, and of the duplicates those of the last hours. A sweep may run
meanwhile; what it has not committed yet is not in the figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from waybill import names
from waybill.config import Config, Dedup, Stream
from waybill.config.dedup import ARRIVED_AT
from waybill.dedup.alert import Window, alert_of, newest_manifest
from waybill.dedup.index.manifest import Manifest
from waybill.store import Store
from waybill.tables import catalog_of, load_tables
from waybill.tables.dedup import (
    NO_HORIZON_MS,
    Beginning,
    DedupTables,
    SweepState,
    load_dedup_tables,
    read_sweep_state,
    read_swept,
)
from waybill.tables.state import SWEPT_PROPERTY, ancestry, as_of

__all__ = ["Behind", "Counted", "DedupStatus", "IndexFigures", "final_snapshot", "look"]


@dataclass(frozen=True, slots=True)
class Behind:
    """What the stream's table gained since the last sweep."""

    snapshots: int
    """Of those that added rows."""
    rows: int

    @classmethod
    def of(cls, main: TableMetadata | None, state: SweepState) -> Behind:
        """Since that state; `main`: the stream's table, if it is there."""
        later = [] if main is None else list(_added(main, 0 if state.swept is None else state.swept.sequence))
        return cls(len(later), sum(later))


@dataclass(frozen=True, slots=True)
class IndexFigures:
    """What the newest manifest of the key index says."""

    version: int
    keys: int
    bytes: int
    """Of runs and filters."""
    budget_bytes: int
    """What it may have: `dedup.index_budget_bytes`."""
    runs: int
    covers: int
    """The unique table's sequence number up to which its rows are in the index."""
    missing_rows: int
    """Unique rows that came after it: the next sweep catches up."""

    @property
    def bytes_per_key(self) -> float | None:
        """None without keys."""
        return self.bytes / self.keys if self.keys else None


@dataclass(frozen=True, slots=True)
class Counted:
    """Duplicates of an hour of arrival."""

    hour: datetime
    topic: str
    source: str | None
    """The value of the column `dedup.source`."""
    duplicates: int


@dataclass(frozen=True, slots=True)
class DedupStatus:
    """All there is to say about one stream."""

    stream: str
    unique: str
    """The table of unique rows."""
    swept_snapshot: int | None
    """The last snapshot of the stream's table whose rows were swept; None: there was no sweep yet."""
    swept_at: datetime | None
    """When that was committed; None: it has expired."""
    beginning: Beginning | None
    """From when on all that the stream's table gained is swept, and what was left out; None: from its beginning."""
    behind: Behind
    rows: int
    """Unique rows."""
    duplicates: int
    window: Window
    horizon: datetime | None
    """Rows that came before it are not known again; None: all are."""
    newest: datetime | None
    """When the newest row that was swept has arrived."""
    index: IndexFigures | None
    """None: there is no manifest of use; the next sweep makes one."""
    alert: str | None
    counted: Sequence[Counted]
    """Of the last hours, oldest first."""

    def document(self) -> dict[str, Any]:
        """For a JSON document."""
        return {
            **{name: getattr(self, name) for name in ("stream", "unique", "swept_snapshot")},
            "swept_at": _iso(self.swept_at),
            "complete_since": None if self.beginning is None else _iso(_time(self.beginning.since_ms)),
            "left_out": 0 if self.beginning is None else self.beginning.rows,
            "behind": asdict(self.behind),
            "rows": self.rows,
            "duplicates": self.duplicates,
            "window": {
                "effective_seconds": self.window.effective_ms / 1000,
                "promised_seconds": self.window.promised_ms / 1000,
                "floor_seconds": self.window.floor_ms / 1000,
            },
            "horizon": _iso(self.horizon),
            "newest": _iso(self.newest),
            "index": None if self.index is None else {**asdict(self.index), "bytes_per_key": self.index.bytes_per_key},
            "alert": self.alert,
            "counted": [{**asdict(counted), "hour": _iso(counted.hour)} for counted in self.counted],
        }


def look(config: Config, name: str, last: timedelta) -> DedupStatus | None:
    """The status of a stream; None: it has no dedup. `last`: of which hours before the newest row to count duplicates.

    Raises `ProgressLost`, `CatalogUnavailable`, `StoreUnavailable`.
    """
    stream = config.stream(name)
    if stream.dedup is None:
        return None
    with Store.of(config.storage) as store, catalog_of(config) as catalog:
        # In this order: what was swept of the stream's table is in what is loaded of it.
        found = load_dedup_tables(catalog, stream)
        tables = load_tables(catalog, stream)
        main = None if tables is None else tables.main.metadata
        if found is None:
            return _before_the_first(name, stream, stream.dedup, main)
        manifest = newest_manifest(store, name, stream.generation, stream.dedup, found.unique)
        return _status(name, stream.dedup, main, found, manifest, last)


def _before_the_first(name: str, stream: Stream, settings: Dedup, main: TableMetadata | None) -> DedupStatus:
    state = SweepState()
    return DedupStatus(
        stream=name,
        unique=names.unique_table_name(stream.table, stream.generation),
        swept_snapshot=None,
        swept_at=None,
        beginning=None,
        behind=Behind.of(main, state),
        rows=0,
        duplicates=0,
        window=Window.of(state, settings),
        horizon=None,
        newest=None,
        index=None,
        alert=None,
        counted=(),
    )


def _status(
    name: str,
    settings: Dedup,
    main: TableMetadata | None,
    tables: DedupTables,
    manifest: Manifest | None,
    last: timedelta,
) -> DedupStatus:
    unique = ".".join(tables.unique.name())
    state = read_sweep_state(tables.unique.metadata, unique)
    window = Window.of(state, settings)
    final = final_snapshot(tables.duplicates.metadata, ".".join(tables.duplicates.name()), state)
    newest = max(state.watermarks.values(), default=None)
    swept = None if state.swept is None else state.swept.snapshot
    snapshot = None if swept is None or main is None else main.snapshot_by_id(swept)
    return DedupStatus(
        stream=name,
        unique=unique,
        swept_snapshot=swept,
        swept_at=None if snapshot is None else _time(snapshot.timestamp_ms),
        beginning=state.beginning,
        behind=Behind.of(main, state),
        rows=_total(tables.unique.metadata.current_snapshot()),
        duplicates=_total(final),
        window=window,
        horizon=None if state.horizon_ms == NO_HORIZON_MS else _time(state.horizon_ms),
        newest=None if newest is None else _time(newest),
        index=None if manifest is None else _figures(manifest, settings, tables.unique.metadata),
        alert=None if state.swept is None else alert_of(name, settings, window, manifest),
        counted=() if final is None or newest is None else _counted(tables.duplicates, final, _time(newest) - last),
    )


def _added(table: TableMetadata, sequence: int) -> Iterator[int]:
    """How many rows each snapshot added that was appended after that sequence number."""
    for snapshot in ancestry(table):
        if (snapshot.sequence_number or 0) <= sequence:
            return
        rows = _figure(snapshot, "added-records")
        if snapshot.summary and snapshot.summary.operation is Operation.APPEND and rows:
            yield rows


def final_snapshot(duplicates: TableMetadata, name: str, state: SweepState) -> Snapshot | None:
    """The last snapshot of the duplicates of which the unique rows are committed as well; None: there is none."""
    through = -1 if state.swept is None else state.swept.sequence
    final = None
    for snapshot in ancestry(duplicates):
        final = final or snapshot
        if SWEPT_PROPERTY not in _properties(snapshot):
            continue
        swept = read_swept(as_of(duplicates, snapshot), name)
        if swept is not None and swept.sequence <= through:
            return final
        final = None
    return None


def _figures(manifest: Manifest, settings: Dedup, unique: TableMetadata) -> IndexFigures:
    return IndexFigures(
        version=manifest.version,
        keys=manifest.keys,
        bytes=manifest.size_bytes,
        budget_bytes=settings.index_budget_bytes,
        runs=len(manifest.runs),
        covers=manifest.covers,
        missing_rows=sum(_added(unique, manifest.covers)),
    )


def _counted(duplicates: Table, snapshot: Snapshot, since: datetime) -> list[Counted]:
    hour = since.replace(minute=0, second=0, microsecond=0)
    scan = duplicates.scan(
        row_filter=f"{ARRIVED_AT} >= '{hour.isoformat()}'",
        selected_fields=(ARRIVED_AT, "topic", "source"),
        snapshot_id=snapshot.snapshot_id,
    )
    return sorted(_by_hour(scan.to_arrow()), key=lambda c: (c.hour, c.topic, c.source or ""))


def _by_hour(rows: pa.Table) -> Iterator[Counted]:
    hours = pc.floor_temporal(rows.column(ARRIVED_AT), unit="hour")
    found = pa.table({"hour": hours, "topic": rows.column("topic"), "source": rows.column("source")})
    for group in found.group_by(["hour", "topic", "source"]).aggregate([([], "count_all")]).to_pylist():
        yield Counted(group["hour"].astimezone(UTC), group["topic"], group["source"], group["count_all"])


def _total(snapshot: Snapshot | None) -> int:
    return 0 if snapshot is None else _figure(snapshot, "total-records")


def _figure(snapshot: Snapshot, name: str) -> int:
    return int(_properties(snapshot).get(name, "0"))


def _properties(snapshot: Snapshot) -> dict[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary else {}


def _time(at_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
