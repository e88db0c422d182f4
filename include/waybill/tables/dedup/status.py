"""The state of a stream's dedup: the swept rows, how far back sweeps compare keys, and the duplicates.

It only reads: the catalog, the index manifest, and the duplicates of the last hours. A sweep may run at the same time;
its uncommitted rows are not in the figures.

`check_window` raises an alert if the window is shorter than the config promises. Sweeps continue nevertheless: a
message that is repeated after a longer time counts as new. The length of the window follows from the state that the
last sweep committed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from waybill.base.errors import SweepHistoryLost, WindowShrunk
from waybill.config import names
from waybill.config.models import Config, Dedup, Stream
from waybill.config.models.dedup import ARRIVED_AT
from waybill.config.models.quantities import format_size
from waybill.services.store import Store
from waybill.tables.dedup.index.manifest import IndexIdentity, Manifest, effective_window_ms, load_manifest
from waybill.tables.dedup.rebuild import find_change, find_rebuild
from waybill.tables.iceberg import catalog_of, is_live, load_tables
from waybill.tables.iceberg.dedup import (
    NO_HORIZON_MS,
    DedupTables,
    FirstSweepStart,
    SweepState,
    load_dedup_tables,
    read_sweep_position,
    read_sweep_state,
)
from waybill.tables.iceberg.histories import TableHistory
from waybill.tables.iceberg.state import SWEPT_PROPERTY, ancestry, metadata_as_of
from waybill.tables.staging.services import StagingServices, services_of

logger = logging.getLogger(__name__)

_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000}
_MIB, _GIB = 1 << 20, 1 << 30


# --- window ---


@dataclass(frozen=True, slots=True)
class DedupWindow:
    """How far back in arrival time a message is compared with others, in ms."""

    effective_ms: int
    promised_ms: int
    """`dedup.window`."""
    floor_ms: int
    """`dedup.floor`."""

    @classmethod
    def of(cls, state: SweepState, settings: Dedup) -> DedupWindow:
        """Return the window after the last sweep, for a message that arrives together with the newest one."""
        promised = settings.window_ms
        newest = max(state.watermarks.values(), default=None)
        effective = promised if newest is None else effective_window_ms(promised, state.horizon_ms, newest)
        return cls(effective, promised, settings.floor_ms)

    @property
    def is_whole(self) -> bool:
        """Return whether the window is as long as the config promises."""
        return self.effective_ms >= self.promised_ms

    @property
    def is_below_floor(self) -> bool:
        """Return whether the window is shorter than the config tolerates."""
        return self.effective_ms < self.floor_ms

    def __str__(self) -> str:
        return f"{_span(self.effective_ms)} of {_span(self.promised_ms)} (floor {_span(self.floor_ms)})"


def check_window(config: Config, name: str, services: StagingServices | None = None) -> DedupWindow | None:
    """Log and return the window of stream `name`; None without dedup or before the first sweep. Only reads.

    `services`: the services to use; by default the function opens and closes its own. Raises `WindowShrunk` if there is
    an alert about the window, `ProgressLost`, `CatalogUnavailable`, `StoreUnavailable`.
    """
    stream = config.stream(name)
    settings = stream.dedup
    if settings is None:
        return None
    with services_of(config, services) as opened:
        tables = load_dedup_tables(opened.catalog, stream)
        if tables is None:
            return None
        window, index = _window_and_index(name, stream, settings, tables, opened.store)
    logger.info("%s: sweeps compare keys over %s; the key index has %s", name, window, _index_text(index))
    alert = window_alert(name, settings, window, index)
    if alert is not None:
        raise WindowShrunk(alert)
    return window


def find_window_alert(name: str, stream: Stream, tables: DedupTables, store: Store) -> str | None:
    """Return the text of the alert about the window of stream `name`, whose tables are loaded; None without one.

    Raises `ProgressLost` or `StoreUnavailable`.
    """
    if stream.dedup is None:
        return None
    return window_alert(name, stream.dedup, *_window_and_index(name, stream, stream.dedup, tables, store))


def _window_and_index(
    name: str, stream: Stream, settings: Dedup, tables: DedupTables, store: Store
) -> tuple[DedupWindow, Manifest | None]:
    unique = tables.unique
    window = DedupWindow.of(read_sweep_state(unique.metadata, ".".join(unique.name())), settings)
    return window, _newest_manifest(store, name, stream.generation, settings, unique)


def window_alert(stream: str, settings: Dedup, window: DedupWindow, index: Manifest | None) -> str | None:
    """Return the text of the alert about a window; None if there is no reason for one.

    A window shorter than promised is an alert only if the budget is the reason. If the index is smaller than half of
    its budget, the budget has removed no keys: then `dedup.window` was raised, and the effective window grows while new
    keys arrive. A window below the floor is always an alert.
    """
    lost_to_budget = index is None or 2 * index.size_bytes >= settings.index_budget_bytes
    if window.is_whole or not (window.is_below_floor or lost_to_budget):
        return None
    below = "dedup.floor" if window.is_below_floor else "dedup.window"
    needed = None if index is None else _needed_bytes(window, index)
    remedy = (
        f"Raise dedup.index_budget_bytes{_budget_text(needed)}, and the window grows with time; or lower dedup.window"
        if needed is None or needed > settings.index_budget_bytes
        else "The budget suffices: the window grows with time, and no action is needed"
    )
    return (
        f"{stream}: sweeps compare keys over {_span(window.effective_ms)}, less than {below}: dedup.window is "
        f"{_span(window.promised_ms)}, and dedup.floor is {_span(window.floor_ms)}. A message that is repeated after a "
        f"longer time counts as new. The key index has {_index_text(index)}{_share_text(settings, index)}. {remedy}"
    )


def read_index(store: Store, name: str, stream: Stream, unique: TableHistory) -> Manifest | None:
    """Return the newest usable manifest of the key index of stream `name`, if any. Raises `StoreUnavailable`."""
    return None if stream.dedup is None else _newest_manifest(store, name, stream.generation, stream.dedup, unique)


def _newest_manifest(
    store: Store, stream: str, generation: int, settings: Dedup, unique: TableHistory
) -> Manifest | None:
    """Return the newest usable manifest of the unique table's key index, if any. Raises `StoreUnavailable`."""
    history = names.history_name(str(unique.metadata.table_uuid), unique.history_id)
    index = names.key_index_prefix(store.prefix, stream, generation, history)
    return load_manifest(store, index, IndexIdentity.of_table(unique, settings.key, settings.buckets)).manifest


def _index_text(index: Manifest | None) -> str:
    return "no manifest" if index is None else f"{index.keys:,} keys in {index.size_bytes / 1e6:,.1f} MB"


def _share_text(settings: Dedup, index: Manifest | None) -> str:
    if index is None:
        return ""
    budget = settings.index_budget_bytes
    return f", {index.size_bytes / budget:.1%} of its budget of {format_size(budget)}"


def _needed_bytes(window: DedupWindow, index: Manifest) -> int | None:
    """Estimate the index size for the whole window from the time that each bucket's runs span; None without runs.

    That time can be longer than the effective window, which is that of the bucket that lost most.
    """
    first_ms: dict[int, int] = {}
    for run in index.runs:
        first_ms[run.bucket] = min(run.min_arrived_ms, first_ms.get(run.bucket, run.min_arrived_ms))
    newest_ms = max((run.max_arrived_ms for run in index.runs), default=0)
    spans_ms = sum(newest_ms - first for first in first_ms.values())
    return index.size_bytes * index.identity.buckets * window.promised_ms // spans_ms if spans_ms else None


def _budget_text(needed_bytes: int | None) -> str:
    """Return the budget to configure, in whole units."""
    if needed_bytes is None:
        return ""
    unit = _GIB if needed_bytes > 10 * _GIB else _MIB
    return f" to {format_size(-(-needed_bytes // unit) * unit)} (about the index size of the whole window)"


def _span(duration_ms: int) -> str:
    """Return a duration in its two largest units, rounded down: `6d 23h`, `1h 39m`, `28d`."""
    amounts = []
    for unit, length in _UNITS_MS.items():
        amount, duration_ms = divmod(duration_ms, length)
        amounts.append((amount, unit))
    largest = next((place for place, (amount, _) in enumerate(amounts) if amount), 0)
    return " ".join(f"{amount}{unit}" for amount, unit in amounts[largest : largest + 2] if amount) or "0s"


# --- status ---


@dataclass(frozen=True, slots=True)
class Backlog:
    """The rows that were appended to the stream's table since the last sweep."""

    snapshots: int
    """Number of snapshots that added rows."""
    rows: int

    @classmethod
    def of(cls, main: TableMetadata | None, state: SweepState) -> Backlog:
        """Return the backlog after that state. `main`: the stream's table, if it exists."""
        added = [] if main is None else list(_added_rows(main, 0 if state.swept is None else state.swept.sequence))
        return cls(len(added), sum(added))


@dataclass(frozen=True, slots=True)
class KeyIndexFigures:
    """The figures of the newest index manifest. The field names are those of the JSON document."""

    version: int
    keys: int
    bytes: int
    """Size of run and filter files."""
    budget_bytes: int
    """`dedup.index_budget_bytes`."""
    runs: int
    covers: int
    """Sequence number of the unique table up to which the index has all rows."""
    missing_rows: int
    """Unique rows that were added later; the next sweep adds their keys."""

    @property
    def bytes_per_key(self) -> float | None:
        """Return the bytes per key; None if there are no keys."""
        return self.bytes / self.keys if self.keys else None


@dataclass(frozen=True, slots=True)
class RebuildFigures:
    """A rebuild of the unique table. The field names are those of the JSON document."""

    id: str | None
    """None: the next sweep starts it."""
    reason: str
    """Why the rows of the stream's table were replaced."""
    rows: int
    """Rows of the stream's table that are swept again."""
    of_rows: int
    """Rows of the stream's table."""


@dataclass(frozen=True, slots=True)
class DuplicateCount:
    """The number of duplicates that arrived in one hour. The field names are those of the JSON document."""

    hour: datetime
    topic: str
    source: str | None
    """Value of the column `dedup.source`."""
    duplicates: int


@dataclass(frozen=True, slots=True)
class DedupStatus:
    """The state of one stream's dedup."""

    stream: str
    unique: str
    """Name of the unique table."""
    swept_snapshot: int | None
    """The last swept snapshot of the stream's table; None: there was no sweep yet."""
    swept_at: datetime | None
    """Commit time of that snapshot; None: it has expired."""
    beginning: FirstSweepStart | None
    """The rows that the first sweep left out; None: no rows."""
    behind: Backlog
    rows: int
    """Number of unique rows."""
    duplicates: int
    window: DedupWindow
    horizon: datetime | None
    """Rows that arrived before it are no longer compared; None: all are."""
    newest: datetime | None
    """Arrival of the newest row that was swept."""
    index: KeyIndexFigures | None
    """None: there is no usable manifest; the next sweep builds the index."""
    alert: str | None
    counted: Sequence[DuplicateCount]
    """Duplicates of the last hours, oldest first."""
    rebuild: RebuildFigures | None = None
    """None: the rows of the stream's table that were swept are still its rows."""

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            **{name: getattr(self, name) for name in ("stream", "unique", "swept_snapshot")},
            "swept_at": _iso(self.swept_at),
            "complete_since": None if self.beginning is None else _iso(_as_time(self.beginning.since_ms)),
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
            "rebuild": None if self.rebuild is None else asdict(self.rebuild),
            "counted": [{**asdict(counted), "hour": _iso(counted.hour)} for counted in self.counted],
        }


def read_status(config: Config, name: str, last: timedelta) -> DedupStatus | None:
    """Return the status of a stream; None if it has no dedup. `last`: count duplicates this long before the newest row.

    Raises `ProgressLost`, `CatalogUnavailable`, `StoreUnavailable`.
    """
    stream = config.stream(name)
    if stream.dedup is None:
        return None
    with Store.of(config.storage) as store, catalog_of(config) as catalog:
        # Load the stream's table last: then it has all swept snapshots.
        dedup_tables = load_dedup_tables(catalog, stream)
        tables = load_tables(catalog, stream)
        main = None if tables is None else tables.main.metadata
        rebuild = None
        if tables is not None and dedup_tables is not None and is_live(tables.main.metadata, stream.generation):
            rebuild = _rebuild_figures(tables.main, dedup_tables)
        if dedup_tables is None:
            return _status_before_first_sweep(name, stream, stream.dedup, main)
        manifest = _newest_manifest(store, name, stream.generation, stream.dedup, dedup_tables.unique)
        return replace(_status(name, stream.dedup, main, dedup_tables, manifest, last), rebuild=rebuild)


def _status_before_first_sweep(name: str, stream: Stream, settings: Dedup, main: TableMetadata | None) -> DedupStatus:
    state = SweepState()
    return DedupStatus(
        stream=name,
        unique=names.unique_table_name(stream.table),
        swept_snapshot=None,
        swept_at=None,
        beginning=None,
        behind=Backlog.of(main, state),
        rows=0,
        duplicates=0,
        window=DedupWindow.of(state, settings),
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
    window = DedupWindow.of(state, settings)
    final = final_snapshot(tables.duplicates.metadata, ".".join(tables.duplicates.name()), state)
    newest = max(state.watermarks.values(), default=None)
    swept = None if state.swept is None else state.swept.snapshot
    snapshot = None if swept is None or main is None else main.snapshot_by_id(swept)
    return DedupStatus(
        stream=name,
        unique=unique,
        swept_snapshot=swept,
        swept_at=None if snapshot is None else _as_time(snapshot.timestamp_ms),
        beginning=state.beginning,
        behind=Backlog.of(main, state),
        rows=_total_rows(tables.unique.metadata.current_snapshot()),
        duplicates=_total_rows(final),
        window=window,
        horizon=None if state.horizon_ms == NO_HORIZON_MS else _as_time(state.horizon_ms),
        newest=None if newest is None else _as_time(newest),
        index=None if manifest is None else _index_figures(manifest, settings, tables.unique.metadata),
        alert=None if state.swept is None else window_alert(name, settings, window, manifest),
        counted=()
        if final is None or newest is None
        else _count_duplicates(tables.duplicates, final, _as_time(newest) - last),
    )


def _rebuild_figures(main: Table, tables: DedupTables) -> RebuildFigures | None:
    try:
        reason = find_change(main, tables)
    except SweepHistoryLost:  # the next sweep fails with the reason
        return None
    if reason is None:
        return None
    running = find_rebuild(main, tables)
    swept = () if running is None else (running.unique, running.duplicates)
    return RebuildFigures(
        id=None if running is None else running.unique.history_id,
        reason=reason,
        rows=sum(_total_rows(table.metadata.current_snapshot()) for table in swept),
        of_rows=_total_rows(main.metadata.current_snapshot()),
    )


def final_snapshot(duplicates: TableMetadata, name: str, state: SweepState) -> Snapshot | None:
    """Return the last snapshot of the duplicates whose sweep has committed its unique rows too; None: there is none."""
    through = -1 if state.swept is None else state.swept.sequence
    final = None
    for snapshot in ancestry(duplicates):
        final = final or snapshot
        if SWEPT_PROPERTY not in _properties(snapshot):
            continue
        swept = read_sweep_position(metadata_as_of(duplicates, snapshot), name)
        if swept is not None and swept.sequence <= through:
            return final
        final = None
    return None


def _added_rows(table: TableMetadata, sequence: int) -> Iterator[int]:
    """Yield the number of rows of each snapshot that was appended after that sequence number."""
    for snapshot in ancestry(table):
        if (snapshot.sequence_number or 0) <= sequence:
            return
        rows = _summary_figure(snapshot, "added-records")
        if snapshot.summary and snapshot.summary.operation is Operation.APPEND and rows:
            yield rows


def _index_figures(manifest: Manifest, settings: Dedup, unique: TableMetadata) -> KeyIndexFigures:
    return KeyIndexFigures(
        version=manifest.version,
        keys=manifest.keys,
        bytes=manifest.size_bytes,
        budget_bytes=settings.index_budget_bytes,
        runs=len(manifest.runs),
        covers=manifest.covers,
        missing_rows=sum(_added_rows(unique, manifest.covers)),
    )


def _count_duplicates(duplicates: Table, snapshot: Snapshot, since: datetime) -> list[DuplicateCount]:
    """Count the duplicates by hour, topic and source, from the hour of `since` on."""
    hour = since.replace(minute=0, second=0, microsecond=0)
    scan = duplicates.scan(
        row_filter=f"{ARRIVED_AT} >= '{hour.isoformat()}'",
        selected_fields=(ARRIVED_AT, "topic", "source"),
        snapshot_id=snapshot.snapshot_id,
    )
    return sorted(_count_by_hour(scan.to_arrow()), key=lambda c: (c.hour, c.topic, c.source or ""))


def _count_by_hour(rows: pa.Table) -> Iterator[DuplicateCount]:
    hours = pc.floor_temporal(rows.column(ARRIVED_AT), unit="hour")
    found = pa.table({"hour": hours, "topic": rows.column("topic"), "source": rows.column("source")})
    for group in found.group_by(["hour", "topic", "source"]).aggregate([([], "count_all")]).to_pylist():
        yield DuplicateCount(group["hour"].astimezone(UTC), group["topic"], group["source"], group["count_all"])


def _total_rows(snapshot: Snapshot | None) -> int:
    return 0 if snapshot is None else _summary_figure(snapshot, "total-records")


def _summary_figure(snapshot: Snapshot, name: str) -> int:
    return int(_properties(snapshot).get(name, "0"))


def _properties(snapshot: Snapshot) -> dict[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary else {}


def _as_time(at_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
