"""Read the state of a stream's tables, and of the documents of its next run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from waybill.config.models import Stream
from waybill.tables.audit import find_audit, find_decision
from waybill.tables.audit.counts import COUNTS_PROPERTY, AuditCounts
from waybill.tables.dedup.status import find_window_alert
from waybill.tables.iceberg import (
    DedupTables,
    StreamTables,
    load_dedup_tables,
    load_tables,
    read_progress,
    read_watermarks,
)
from waybill.tables.iceberg.state import ancestry
from waybill.tables.partition.lateness import LATENESS_PROPERTY, Lateness
from waybill.tables.partition.next_plan import NextPlan
from waybill.tables.partition.partition_plan import Plan
from waybill.tables.partition.statistics import QUARANTINED_PROPERTY, ROWS_PROPERTY
from waybill.tables.staging.services import StagingServices
from waybill.watch.ledger import LedgerResult
from waybill.watch.promises.table_figures import RECENT_MS, Published, TableState


def read_table_state(name: str, stream: Stream, services: StagingServices, now_ms: int) -> TableState:
    """Return the state of the tables of a stream; an empty one before its first run.

    Raises `ProgressLost`, `DocumentDamaged`, `DocumentTooNew`, or one of the retriable `StoreUnavailable` and
    `CatalogUnavailable`.
    """
    tables = load_tables(services.catalog, stream)
    if tables is None:
        return TableState(now_ms, {}, {})
    text = ".".join(tables.main.name())
    since_ms = now_ms - RECENT_MS
    published = [
        Published(
            at,
            int(each.get(ROWS_PROPERTY) or each.get("added-records", "0")),
            int(each[QUARANTINED_PROPERTY]),
            late=_late_rows(each, stream, text),
            parser_failed=_parser_failed(each),
        )
        for at, each in _appends(tables.main.metadata, since_ms)
        if QUARANTINED_PROPERTY in each
    ]
    dedup = load_dedup_tables(services.catalog, stream) if stream.dedup is not None else None
    window_alert = None
    if dedup is not None:
        published += [Published(at, unique=_added(each)) for at, each in _appends(dedup.unique.metadata, since_ms)]
        published += [
            Published(at, duplicates=_added(each)) for at, each in _appends(dedup.duplicates.metadata, since_ms)
        ]
        window_alert = find_window_alert(name, stream, dedup, services.store)
    planned_ms, held, held_plan = _next_run(name, stream, services, tables)
    ledger = LedgerResult.read(services.store, name)
    if ledger is not None and ledger.generation != stream.generation:
        ledger = None
    return TableState(
        now_ms,
        read_progress(tables.main.metadata, text),
        read_watermarks(tables.main.metadata, text),
        tuple(published),
        planned_ms,
        held,
        held_plan,
        window_alert or "",
        None if ledger is None else ledger.made_at_ms,
        () if ledger is None else ledger.imbalances,
        _row_counts(tables, dedup),
        {} if ledger is None else ledger.counts,
    )


def _parser_failed(properties: Mapping[str, str]) -> int:
    """Return at how many messages of a run the parser raised; 0 if the snapshot does not state it."""
    text = properties.get(COUNTS_PROPERTY)
    counts = None if text is None else AuditCounts.from_text(text)
    return 0 if counts is None else counts.parser_failed


def _late_rows(properties: Mapping[str, str], stream: Stream, table: str) -> int:
    lateness = properties.get(LATENESS_PROPERTY)
    if lateness is None:
        return 0
    late_after = int(stream.promises.late_share.late_after.total_seconds())
    return Lateness.from_text(lateness, f"a snapshot of table {table}").later_than(late_after)


def _row_counts(tables: StreamTables, dedup: DedupTables | None) -> dict[str, int]:
    found = {"main": tables.main, "quarantine": tables.quarantine}
    if dedup is not None:
        found |= {"unique": dedup.unique, "duplicates": dedup.duplicates}
    return {name: _total_rows(table.metadata) for name, table in found.items()}


def _total_rows(metadata: TableMetadata) -> int:
    snapshot = metadata.current_snapshot()
    summary = None if snapshot is None else snapshot.summary
    return 0 if summary is None else int(summary.additional_properties.get("total-records", "0"))


def _next_run(
    name: str, stream: Stream, services: StagingServices, tables: StreamTables
) -> tuple[int | None, tuple[str, ...], str]:
    """Return when the unfinished run was planned, and if it is held, the failed checks and the id of its plan."""
    upcoming = NextPlan.of(services.store, name, stream, tables)
    content = services.store.read_if_exists(upcoming.key)
    if content is None:
        return None, (), ""
    plan = Plan.from_json(upcoming.key, content)
    planned_ms = int(plan.created_at.timestamp() * 1000)
    audit = find_audit(services.store, upcoming.key)
    if audit is None or not audit.failed_critical or find_decision(services.store, upcoming.key) is not None:
        return planned_ms, (), ""
    return planned_ms, tuple(str(result) for result in audit.failed_critical), plan.id


def _appends(metadata: TableMetadata, since_ms: int) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield time and properties of the snapshots after that time that appended rows, the newest first."""
    for snapshot in ancestry(metadata):
        if snapshot.timestamp_ms < since_ms:
            return
        if snapshot.summary is not None and snapshot.summary.operation is Operation.APPEND:
            yield snapshot.timestamp_ms, snapshot.summary.additional_properties


def _added(properties: Mapping[str, str]) -> int:
    return int(properties.get("added-records", "0"))
