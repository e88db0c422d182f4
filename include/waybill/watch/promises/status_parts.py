"""Further parts of the status document: quarantine, audits, backfills, windows, gaps, replays.

Each part is read separately. A part that cannot be read keeps its last state, and `StreamDetails.unread` names it with
the reason. PyIceberg and Arrow are imported only here, and only when the parts are due.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from waybill.base.errors import WaybillError
from waybill.config.connections.masking import without_urls
from waybill.config.models import Config
from waybill.services.store import Store
from waybill.watch.promises.status import (
    AuditStatus,
    BackfillStatus,
    ChainRange,
    CheckStatus,
    ExampleStatus,
    QuarantineStatus,
    ReplayStatus,
    StreamDetails,
    UnreadPart,
    WindowStatus,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from waybill.config.models import Stream
    from waybill.tables.iceberg import StreamTables
    from waybill.tables.staging.services import StagingServices

_THREADS = 8
_AUDITS_SINCE = timedelta(days=1)
_MOST_AUDITS = 24
_MOST_BACKFILLS = 20
_MOST_REPLAYS = 100
_MOST_DIFF_LINES = 40
_MOST_REASON_CHARACTERS = 300
_MOST_QUARANTINED = 500_000
"""A quarantine with more rows is not counted by reason, since the watch would have to read all of it."""


def read_details(
    config: Config, names: Sequence[str], before: Mapping[str, StreamDetails], now_ms: int
) -> dict[str, StreamDetails]:
    """Return the details of streams. `before`: the previous details; parts that have not changed are copied from them.

    Raises the retriable `StoreUnavailable` or `CatalogUnavailable` if a service does not answer at all.
    """
    from waybill.tables.staging.services import services_of

    with services_of(config, None) as services, ThreadPoolExecutor(_THREADS) as pool:
        shared = _Shared.read(config, names, services, now_ms)

        def read(name: str) -> StreamDetails:
            return _PartsReader(name, config.stream(name), services, shared, before.get(name), now_ms).read()

        return dict(zip(names, pool.map(read, names), strict=True))


_FIELDS = {
    "audits": ("audits",),
    "backfills": ("backfills",),
    "gaps": ("gaps",),
    "dedup": ("swept", "window"),
    "quarantine": ("quarantine", "quarantine_snapshot"),
    "generation": ("live_generation",),
}
"""The fields of `StreamDetails` that each part fills."""


def kept_details(
    read_ms: int, found: Mapping[str, Any], errors: Mapping[str, str], before: StreamDetails | None
) -> StreamDetails:
    """Return details with these fields. The parts in `errors` keep their previous state."""
    fields = dict(found)
    unread = {}
    for part, error in errors.items():
        last_ms = None
        if before is not None:
            last_ms = before.unread[part].read_ms if part in before.unread else before.read_ms
            fields |= {name: getattr(before, name) for name in _FIELDS[part]}
        unread[part] = UnreadPart(error, last_ms)
    return StreamDetails(read_ms, **fields, unread=unread)


@dataclass(frozen=True, slots=True)
class _Shared:
    """The parts that are read once for all streams.

    `errors` holds the parts that could not be read, with the reason.
    """

    audits: Mapping[str, tuple[AuditStatus, ...]]
    gaps: Mapping[int, Mapping[str, tuple[ChainRange, ...]]]
    """The accepted gaps by generation and topic-partition."""
    with_backfills: frozenset[str]
    """The streams that have a backfill."""
    errors: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, config: Config, names: Sequence[str], services: StagingServices, now_ms: int) -> _Shared:
        errors: dict[str, str] = {}
        since = datetime.fromtimestamp(now_ms / 1000, UTC) - _AUDITS_SINCE
        generations = sorted({config.stream(name).generation for name in names})
        audits: Mapping[str, tuple[AuditStatus, ...]] = {}
        gaps: dict[int, Mapping[str, tuple[ChainRange, ...]]] = {}
        with_backfills = frozenset[str]()
        with _Part(errors, "audits"):
            audits = _audits(services.catalog, since)
        with _Part(errors, "gaps"):
            gaps = {generation: _gaps(services.store, generation) for generation in generations}
        with _Part(errors, "backfills"):
            with_backfills = _with_backfills(services.store)
        return cls(audits, gaps, with_backfills, errors)


@dataclass(frozen=True, slots=True)
class _Part:
    """A context manager for reading parts. If it fails, the reason is added to `errors` for each part."""

    errors: dict[str, str]
    names: str

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, WaybillError | OSError):
            return False
        for name in self.names.split():
            self.errors.setdefault(name, str(error))
        return True


@dataclass(frozen=True, slots=True)
class _PartsReader:
    name: str
    stream: Stream
    services: StagingServices
    shared: _Shared
    before: StreamDetails | None
    now_ms: int

    def read(self) -> StreamDetails:
        errors = dict(self.shared.errors)
        found: dict[str, Any] = {}
        if "audits" not in errors:
            found["audits"] = self.shared.audits.get(self.name, ())
        if "gaps" not in errors:
            found["gaps"] = {
                tp: gaps
                for tp, gaps in self.shared.gaps[self.stream.generation].items()
                if self.stream.matches(tp.rpartition("/")[0])
            }
        if "backfills" not in errors:
            with _Part(errors, "backfills"):
                found["backfills"] = self._backfills()
        self._read_tables(errors, found)
        return kept_details(self.now_ms, found, errors, self.before)

    def _read_tables(self, errors: dict[str, str], found: dict[str, Any]) -> None:
        from waybill.tables.iceberg import load_tables
        from waybill.tables.iceberg.generations import live_generation

        with _Part(errors, "dedup quarantine generation"):
            tables = load_tables(self.services.catalog, self.stream)
            if tables is None:  # before the first partition run
                found |= {"swept": {}, "window": None, "quarantine": (), "quarantine_snapshot": None}
                found["live_generation"] = None
                return
            with _Part(errors, "dedup"):
                found["swept"], found["window"] = self._dedup(tables)
            with _Part(errors, "quarantine"):
                found["quarantine_snapshot"], found["quarantine"] = self._quarantine(tables)
            with _Part(errors, "generation"):
                found["live_generation"] = live_generation(tables.main)

    def _backfills(self) -> tuple[BackfillStatus, ...]:
        if self.name not in self.shared.with_backfills:
            return ()
        from waybill.tables.backfill.kinds import report_backfills

        reports = report_backfills(self.services.store, self.name)[-_MOST_BACKFILLS:]
        return tuple(_backfill(report) for report in reversed(reports))

    def _dedup(self, tables: StreamTables) -> tuple[dict[str, int], WindowStatus | None]:
        from waybill.tables.dedup.status import DedupWindow, read_index
        from waybill.tables.iceberg import load_dedup_tables, read_progress, read_sweep_state
        from waybill.tables.iceberg.state import metadata_as_of

        if self.stream.dedup is None:
            return {}, None
        dedup = load_dedup_tables(self.services.catalog, self.stream)
        if dedup is None:
            return {}, None
        unique = dedup.unique
        state = read_sweep_state(unique.metadata, ".".join(unique.name()))
        window = DedupWindow.of(state, self.stream.dedup)
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
        from waybill.tables.quarantine.row_filter import RowFilter
        from waybill.tables.quarantine.view import View, summarize

        current = tables.quarantine.metadata.current_snapshot()
        if current is None:
            return None, ()
        before = self.before
        if (
            before is not None
            and before.quarantine_snapshot == current.snapshot_id
            and "quarantine" not in before.unread
        ):
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
                tuple(
                    ExampleStatus(each.place.partition, each.place.offset, each.reason[:_MOST_REASON_CHARACTERS])
                    for each in group.examples
                ),
            )
            for group in summarize(view, RowFilter.parse())
        )


# --- parts of all streams ---------------------------------------------------------------------------------------------


def _audits(catalog: Catalog, since: datetime) -> dict[str, tuple[AuditStatus, ...]]:
    """Return the audits of all streams from that time on, the newest first."""
    from waybill.tables.audit.results_table import read_results

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
    from waybill.archive.chain.gaps import list_gaps_of_topics

    found: dict[str, tuple[ChainRange, ...]] = {}
    for gap in list_gaps_of_topics(store, generation, lambda _: True):
        each = ChainRange(gap.first_offset, gap.next_offset, gap.kind, gap.accepted_by, gap.reason)
        found[str(gap.tp)] = (*found.get(str(gap.tp), ()), each)
    return found


def _with_backfills(store: Store) -> frozenset[str]:
    from waybill.config.names import all_backfills_prefix, stream_of_backfill

    return frozenset(stream_of_backfill(store.prefix, key) for key in store.keys(all_backfills_prefix(store.prefix)))


def _backfill(report: Any) -> BackfillStatus:
    from waybill.tables.backfill.request import BackfillRequest

    request = report.request
    is_range = isinstance(request, BackfillRequest)
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
    """Return the newest replay requests, the newest first; none if replay is not configured.

    Raises `ConfigError` or `ReplayUnavailable`.
    """
    if config.replay is None:
        return ()
    from waybill.replay.requests.database import Database
    from waybill.replay.requests.queue import Queue

    with Database.of(config) as database:
        found = Queue(database, config.replay.quotas).page(limit=_MOST_REPLAYS)
    rows = [*_replays(found), *(_unreadable_replay(each) for each in found.unreadable)]
    return tuple(sorted(rows, key=lambda each: each.id, reverse=True))


def _unreadable_replay(found: Any) -> ReplayStatus:
    reason = without_urls(str(found.error))
    return ReplayStatus(
        found.id, found.stream, "", found.requester, found.state, reason, 0.0, 0, 0, 0, found.created_at_ms, None
    )


def _replays(found: Iterable[Any]) -> Iterable[ReplayStatus]:
    for each in found:
        yield ReplayStatus(
            each.request.id,
            each.request.requested.stream,
            f"{each.request.requested.target}",
            each.request.requester,
            str(each.state),
            without_urls(each.reason or each.problem),
            each.progress.share,
            each.progress.found,
            each.progress.delivered,
            each.rejected,
            each.request.created_at_ms,
            each.finished_at_ms,
        )


def _epoch_ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)
