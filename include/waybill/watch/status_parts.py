"""What the status document shows beyond a watch's own figures: quarantine, audits, backfills, windows, gaps, replays.

Each part is read on its own. One that cannot be read is named in `StreamDetails.errors`, with the reason, and the
others are shown. PyIceberg and Arrow are imported only here, and only when the parts are due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from waybill.config import Config
from waybill.errors import WaybillError
from waybill.store import Store
from waybill.watch.status import (
    AuditStatus,
    BackfillStatus,
    ChainRange,
    CheckStatus,
    QuarantineStatus,
    ReplayStatus,
    StreamDetails,
    WindowStatus,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from waybill.config import Stream
    from waybill.staging.services import Services
    from waybill.tables import StreamTables

__all__ = ["read_details", "read_replays"]

_T = TypeVar("_T")

_THREADS = 8
_AUDITS_SINCE = timedelta(days=1)
_MOST_AUDITS = 24
_MOST_BACKFILLS = 20
_MOST_REPLAYS = 100
_MOST_DIFF_LINES = 40
_MOST_QUARANTINED = 500_000
"""A quarantine with more rows is not counted by reason: the watch would read it all."""


def read_details(
    config: Config, names: Sequence[str], before: Mapping[str, StreamDetails], now_ms: int
) -> dict[str, StreamDetails]:
    """Return the details of streams. `before`: those of the last time, of which what has not changed is taken over.

    Raises the retriable `StoreUnavailable` or `CatalogUnavailable` if a service does not answer at all.
    """
    from waybill.staging.services import services_of

    with services_of(config, None) as services, ThreadPoolExecutor(_THREADS) as pool:
        shared = _Shared.read(config, names, services, now_ms)

        def read(name: str) -> StreamDetails:
            return _Reader(name, config.stream(name), services, shared, before.get(name), now_ms).read()

        return dict(zip(names, pool.map(read, names), strict=True))


@dataclass(frozen=True, slots=True)
class _Shared:
    """What is read once for all streams."""

    audits: Mapping[str, tuple[AuditStatus, ...]]
    gaps: Mapping[int, Mapping[str, tuple[ChainRange, ...]]]
    """By generation and topic-partition."""
    with_backfills: frozenset[str]
    """The streams that have a backfill."""
    errors: tuple[str, ...] = field(default=())

    @classmethod
    def read(cls, config: Config, names: Sequence[str], services: Services, now_ms: int) -> _Shared:
        errors: list[str] = []
        since = datetime.fromtimestamp(now_ms / 1000, UTC) - _AUDITS_SINCE
        generations = sorted({config.stream(name).generation for name in names})
        no_audits: dict[str, tuple[AuditStatus, ...]] = {}
        no_gaps: dict[str, tuple[ChainRange, ...]] = {}
        return cls(
            _try(errors, "audits", lambda: _audits(services.catalog, since), no_audits),
            {
                generation: _try(errors, "gaps", partial(_gaps, services.store, generation), no_gaps)
                for generation in generations
            },
            _try(errors, "backfills", lambda: _with_backfills(services.store), frozenset[str]()),
            tuple(errors),
        )


def _try(errors: list[str], what: str, read: Callable[[], _T], default: _T) -> _T:
    """Return what `read` returns. An error is noted, and the default returned."""
    try:
        return read()
    except (WaybillError, OSError) as error:
        errors.append(f"{what}: {error}")
        return default


@dataclass(frozen=True, slots=True)
class _Reader:
    name: str
    stream: Stream
    services: Services
    shared: _Shared
    before: StreamDetails | None
    now_ms: int

    def read(self) -> StreamDetails:
        from waybill.tables import load_tables

        errors = list(self.shared.errors)
        no_backfills: tuple[BackfillStatus, ...] = ()
        no_sweep: tuple[dict[str, int], WindowStatus | None] = ({}, None)
        no_groups: tuple[int | None, tuple[QuarantineStatus, ...]] = (None, ())
        backfills = _try(errors, "backfills", self._backfills, no_backfills)
        gaps = {
            tp: gaps
            for tp, gaps in self.shared.gaps[self.stream.generation].items()
            if self.stream.matches(tp.rpartition("/")[0])
        }
        details = StreamDetails(
            self.now_ms, audits=self.shared.audits.get(self.name, ()), backfills=backfills, gaps=gaps
        )
        tables = _try(errors, "tables", lambda: load_tables(self.services.catalog, self.stream), None)
        if tables is None:
            return replace(details, errors=tuple(errors))
        swept, window = _try(errors, "dedup", lambda: self._dedup(tables), no_sweep)
        snapshot, groups = _try(errors, "quarantine", lambda: self._quarantine(tables), no_groups)
        from waybill.tables.generations import live_generation

        return replace(
            details,
            swept=swept,
            window=window,
            quarantine=groups,
            quarantine_snapshot=snapshot,
            live_generation=_try(errors, "generation", lambda: live_generation(tables.main), None),
            errors=tuple(errors),
        )

    def _backfills(self) -> tuple[BackfillStatus, ...]:
        if self.name not in self.shared.with_backfills:
            return ()
        from waybill.backfill import report_backfills

        reports = report_backfills(self.services.store, self.name)[-_MOST_BACKFILLS:]
        return tuple(_backfill(report) for report in reversed(reports))

    def _dedup(self, tables: StreamTables) -> tuple[dict[str, int], WindowStatus | None]:
        from waybill.dedup.status import Window, read_index
        from waybill.tables import load_dedup_tables, read_progress, read_sweep_state
        from waybill.tables.state import metadata_as_of

        if self.stream.dedup is None:
            return {}, None
        dedup = load_dedup_tables(self.services.catalog, self.stream)
        if dedup is None:
            return {}, None
        unique = dedup.unique
        state = read_sweep_state(unique.metadata, ".".join(unique.name()))
        window = Window.of(state, self.stream.dedup)
        index = read_index(self.services.store, self.name, self.stream, unique)
        metadata = tables.main.metadata
        snapshot = None if state.swept is None else metadata.snapshot_by_id(state.swept.snapshot)
        swept = {}
        if snapshot is not None:  # else it has expired
            progress = read_progress(metadata_as_of(metadata, snapshot), ".".join(tables.main.name()))
            swept = {str(tp): offset for tp, offset in progress.items()}
        status = WindowStatus(
            window.effective_ms,
            window.promised_ms,
            window.floor_ms,
            None if index is None else index.keys,
            None if index is None else index.size_bytes,
            self.stream.dedup.index_budget_bytes,
        )
        return swept, status

    def _quarantine(self, tables: StreamTables) -> tuple[int | None, tuple[QuarantineStatus, ...]]:
        from waybill.quarantine.row_filter import RowFilter
        from waybill.quarantine.view import View, summarize

        current = tables.quarantine.metadata.current_snapshot()
        if current is None:
            return None, ()
        before = self.before
        if before is not None and before.quarantine_snapshot == current.snapshot_id:
            return current.snapshot_id, before.quarantine
        properties = {} if current.summary is None else current.summary.additional_properties
        total = int(properties.get("total-records", "0"))
        if total > _MOST_QUARANTINED:
            raise OSError(f"{total:,} rows are too many to count here; run `waybill quarantine ls {self.name}`")
        view = View.of(self.services.store, self.name, self.stream, tables)
        return current.snapshot_id, tuple(
            QuarantineStatus(
                group.reason,
                group.parser,
                group.topic,
                group.rows,
                group.last.partition,
                group.last.offset,
                _epoch_ms(group.first_quarantined_at),
                _epoch_ms(group.last_quarantined_at),
            )
            for group in summarize(view, RowFilter.parse())
        )


# --- parts of all streams ---------------------------------------------------------------------------------------------


def _audits(catalog: Catalog, since: datetime) -> dict[str, tuple[AuditStatus, ...]]:
    """Return the audits of all streams since then, the newest first."""
    from waybill.audit.results_table import read_results

    checks: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in read_results(catalog, since=since):
        checks.setdefault((row["stream"], row["plan"], row["run"]), []).append(row)
    found: dict[str, list[AuditStatus]] = {}
    for (stream, plan, _), rows in checks.items():
        failed = tuple(_check(row) for row in rows if not row["success"])
        found.setdefault(stream, []).append(AuditStatus(plan, _epoch_ms(rows[0]["checked_at"]), len(rows), failed))
    return {
        stream: tuple(sorted(audits, key=lambda audit: -audit.at_ms)[:_MOST_AUDITS]) for stream, audits in found.items()
    }


def _check(row: Mapping[str, Any]) -> CheckStatus:
    check = f"{row['expectation']}({row['arguments']})"
    return CheckStatus(check, row["severity"], row["observed_value"] or "", tuple(row["examples"]))


def _gaps(store: Store, generation: int) -> dict[str, tuple[ChainRange, ...]]:
    """Return the accepted gaps of a generation, by topic-partition."""
    from waybill.archive.gaps import list_gaps_of_topics

    found: dict[str, tuple[ChainRange, ...]] = {}
    for gap in list_gaps_of_topics(store, generation, lambda _: True):
        each = ChainRange(gap.first_offset, gap.next_offset, gap.kind, gap.accepted_by, gap.reason)
        found[str(gap.tp)] = (*found.get(str(gap.tp), ()), each)
    return found


def _with_backfills(store: Store) -> frozenset[str]:
    from waybill.names import all_backfills_prefix, stream_of_backfill

    return frozenset(stream_of_backfill(store.prefix, key) for key in store.keys(all_backfills_prefix(store.prefix)))


def _backfill(report: Any) -> BackfillStatus:
    from waybill.backfill import Request

    request = report.request
    is_range = isinstance(request, Request)
    return BackfillStatus(
        request.id,
        str(report.state),
        "range" if is_range else "generation",
        report.tasks_text,
        request.ranges.offsets,
        request.by,
        request.reason,
        _epoch_ms(request.at),
        () if report.diff is None else tuple(report.diff.lines()[:_MOST_DIFF_LINES]),
        None if is_range else request.generation,
    )


def read_replays(config: Config) -> tuple[ReplayStatus, ...]:
    """Return the newest replay requests, the newest first; none if replay is off.

    Raises `ConfigError` or `ReplayUnavailable`.
    """
    if config.replay is None:
        return ()
    from waybill.replay.database import Database
    from waybill.replay.queue import Queue

    with Database.of(config) as database:
        found = Queue(database, config.replay.quotas).page(limit=_MOST_REPLAYS)
    return tuple(_replays(found))


def _replays(found: Iterable[Any]) -> Iterable[ReplayStatus]:
    for each in found:
        yield ReplayStatus(
            each.request.id,
            each.request.requested.stream,
            f"{each.request.requested.target}",
            each.request.requester,
            str(each.state),
            each.reason or each.problem,
            each.progress.share,
            each.progress.found,
            each.progress.delivered,
            each.rejected,
            each.request.created_at_ms,
            each.finished_at_ms,
        )


def _epoch_ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)
