"""The table `waybill.quality_results`: a row for each result of each audit of any stream, appended once.

The snapshot that appends the rows of audits names them in a property, so an audit that is appended again after a crash
is found. The table looks after itself: `append_results` compacts its files and expires its snapshots when there are
many, since the maintenance DAGs work on the tables of streams.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, In
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import BooleanType, IntegerType, ListType, LongType, NestedField, StringType, TimestamptzType
from sqlalchemy.exc import IntegrityError

from waybill.audit.results import Audit
from waybill.staging.file_writer import write_data_files
from waybill.tables import commit_snapshot, commit_with_retry, remove_files
from waybill.tables.catalog import translate_catalog_errors
from waybill.tables.state import ancestry, live_files

__all__ = ["RESULTS_SCHEMA", "RESULTS_TABLE", "AuditRecord", "append_results", "compact_results", "read_results"]

logger = logging.getLogger(__name__)

RESULTS_TABLE = "waybill.quality_results"

_AUDITS_PROPERTY = "waybill.audits"
_MOST_FILES = 256
"""When the table has more data files, they are compacted into one."""
_KEPT = timedelta(days=2)
"""How long a snapshot is kept once there are many: a retry after a crash has to find its audit."""
_MEMORY_BYTES = 64 << 20

RESULTS_SCHEMA = Schema(
    NestedField(1, "stream", StringType(), required=True),
    NestedField(2, "generation", IntegerType(), required=True),
    NestedField(3, "run", StringType(), required=True, doc="The run that staged the rows."),
    NestedField(4, "plan", StringType(), required=True, doc="The plan of the run."),
    NestedField(5, "snapshot", LongType(), required=False, doc="The snapshot with the run's rows; null: none yet."),
    NestedField(6, "checked_at", TimestamptzType(), required=True),
    NestedField(7, "expectation", StringType(), required=True, doc="An expectation, or a built-in check."),
    NestedField(8, "arguments", StringType(), required=True, doc="Its arguments, as JSON."),
    NestedField(9, "severity", StringType(), required=True, doc="critical, warning or info."),
    NestedField(10, "success", BooleanType(), required=True),
    NestedField(11, "observed_value", StringType(), required=False),
    NestedField(12, "unexpected_count", LongType(), required=False),
    NestedField(
        13,
        "examples",
        ListType(element_id=14, element_type=StringType(), element_required=True),
        required=True,
        doc="topic/partition@offset: value",
    ),
    NestedField(15, "data_docs", StringType(), required=False, doc="The key of the page of Data Docs."),
)

_ROWS = pa.schema(
    [
        pa.field("stream", pa.string(), nullable=False),
        pa.field("generation", pa.int32(), nullable=False),
        pa.field("run", pa.string(), nullable=False),
        pa.field("plan", pa.string(), nullable=False),
        pa.field("snapshot", pa.int64()),
        pa.field("checked_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("expectation", pa.string(), nullable=False),
        pa.field("arguments", pa.string(), nullable=False),
        pa.field("severity", pa.string(), nullable=False),
        pa.field("success", pa.bool_(), nullable=False),
        pa.field("observed_value", pa.string()),
        pa.field("unexpected_count", pa.int64()),
        pa.field("examples", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
        pa.field("data_docs", pa.string()),
    ]
)

_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


# --- appending --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An audit whose results belong into the table."""

    stream: str
    audit: Audit
    snapshot_id: int | None = None
    """The snapshot with the rows that were audited; None if they are on no branch yet."""

    @property
    def name(self) -> str:
        """Return what tells this audit from all others."""
        return f"{self.stream}/{self.audit.generation}/{self.audit.plan}/{self.audit.run_id}"


def append_results(catalog: Catalog, records: Sequence[AuditRecord]) -> None:
    """Append the results of audits to the table in one snapshot, but for those that it has already.

    The table is created if it does not exist. An application that audits many streams appends all of them at once: each
    snapshot stays in the table's metadata for two days.

    Raises `CommitConflict` or `CatalogUnavailable`.
    """
    given = {record.name: record for record in records if record.audit.results}
    if not given:
        return
    table = _ensure_table(catalog)
    missing = _missing(table, given)
    if not missing:
        return
    rows = [row for name in missing for row in _rows(given[name])]
    batch = pa.RecordBatch.from_pylist(rows, _ROWS)
    files = write_data_files(table, _ROWS, [batch], memory_bytes=_MEMORY_BYTES, name="audit")
    appended = False

    def attempt() -> bool | None:
        nonlocal appended
        if _appended_recently(table) & set(missing):
            return True
        appended = commit_snapshot(table, {_AUDITS_PROPERTY: json.dumps(missing)}, added=files)
        return True if appended else None

    commit_with_retry(table, attempt)
    if not appended:
        # A rival appended some of them, or an attempt whose outcome was unknown.
        _remove_unless_referenced(table, files)
        append_results(catalog, [given[name] for name in missing])
        return
    if int(_summary(table).get("total-data-files", "0")) > _MOST_FILES:
        compact_results(table)


def _missing(table: Table, given: Mapping[str, AuditRecord]) -> list[str]:
    """Return the names of the audits that the table does not have."""
    recent = _appended_recently(table)
    missing = [name for name in given if name not in recent]
    # The snapshots of older audits may have expired; those of held runs are offered again and again.
    old = [given[name] for name in missing if given[name].audit.at < datetime.now(UTC) - _KEPT / 2]
    if not old or table.metadata.current_snapshot() is None:
        return missing
    since = min(record.audit.at for record in old).astimezone(UTC).isoformat()
    chosen = And(
        GreaterThanOrEqual(term="checked_at", value=since),
        In(term="plan", literals={record.audit.plan for record in old}),
    )
    found = (
        table.scan(row_filter=chosen, selected_fields=("stream", "generation", "plan", "run")).to_arrow().to_pylist()
    )
    known = {f"{row['stream']}/{row['generation']}/{row['plan']}/{row['run']}" for row in found}
    return [name for name in missing if name not in known]


def _appended_recently(table: Table) -> set[str]:
    """Return the names of the audits that the snapshots which have not expired appended."""
    texts = (_properties(snapshot).get(_AUDITS_PROPERTY) for snapshot in ancestry(table.metadata))
    return {name for text in texts if text is not None for name in json.loads(text)}


def _ensure_table(catalog: Catalog) -> Table:
    with translate_catalog_errors(f"load {RESULTS_TABLE}"):
        try:
            return catalog.load_table(RESULTS_TABLE)
        except NoSuchTableError:
            pass
        try:
            catalog.create_namespace_if_not_exists(RESULTS_TABLE.split(".")[0])
        except (NamespaceAlreadyExistsError, IntegrityError):
            logger.debug("another process has created the namespace of %s at the same time", RESULTS_TABLE)
        try:
            return catalog.create_table(RESULTS_TABLE, RESULTS_SCHEMA, properties=_PROPERTIES)
        except (TableAlreadyExistsError, IntegrityError):
            return catalog.load_table(RESULTS_TABLE)


def _rows(record: AuditRecord) -> Iterator[dict[str, Any]]:
    audit = record.audit
    for result in audit.results:
        yield {
            "stream": record.stream,
            "generation": audit.generation,
            "run": audit.run_id,
            "plan": audit.plan,
            "snapshot": record.snapshot_id,
            "checked_at": audit.at,
            "expectation": result.check,
            "arguments": json.dumps(result.arguments, ensure_ascii=False, default=str),
            "severity": str(result.severity),
            "success": result.success,
            "observed_value": result.observed,
            "unexpected_count": result.unexpected_count,
            "examples": list(result.examples),
            "data_docs": audit.data_docs,
        }


def _properties(snapshot: Snapshot) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary else {}


def _summary(table: Table) -> Mapping[str, str]:
    snapshot = table.metadata.current_snapshot()
    return {} if snapshot is None else _properties(snapshot)


def _remove_unless_referenced(table: Table, files: Sequence[DataFile]) -> None:
    referenced = _paths(live_files(table, table.metadata.current_snapshot()))
    remove_files(table.io, [file.file_path for file in files if file.file_path not in referenced])


# --- reading ----------------------------------------------------------------------------------------------------------


def read_results(
    catalog: Catalog, stream_name: str, *, since: datetime | None = None, plan: str | None = None
) -> list[dict[str, Any]]:
    """Return the results of a stream as rows of `RESULTS_SCHEMA`, oldest first; none if there is no table yet.

    `since`: only of audits from then on. `plan`: only of this plan.

    Raises `CatalogUnavailable`, or `OSError` when a file cannot be read.
    """
    with translate_catalog_errors(f"load {RESULTS_TABLE}"):
        try:
            table = catalog.load_table(RESULTS_TABLE)
        except NoSuchTableError:
            return []
    chosen: BooleanExpression = EqualTo(term="stream", value=stream_name)
    if since is not None:
        chosen = And(chosen, GreaterThanOrEqual(term="checked_at", value=since.astimezone(UTC).isoformat()))
    if plan is not None:
        chosen = And(chosen, EqualTo(term="plan", value=plan))
    rows: list[dict[str, Any]] = table.scan(row_filter=chosen).to_arrow().sort_by("checked_at").to_pylist()
    return rows


# --- upkeep -----------------------------------------------------------------------------------------------------------


def compact_results(table: Table, *, now: datetime | None = None) -> None:
    """Write all rows to one data file, and expire snapshots of more than two days ago with the files of only these.

    Another process may append at the same time: then nothing happens, and a later append tries again. A process that
    is killed in between leaves files that no snapshot references.
    """
    old = list(live_files(table, table.metadata.current_snapshot()))
    rows = table.scan().to_arrow().select(_ROWS.names).cast(_ROWS)
    new = write_data_files(table, _ROWS, rows.to_batches(), memory_bytes=_MEMORY_BYTES, name="compacted")
    if not commit_snapshot(table, {}, added=new, removed=old):
        table.refresh()
        _remove_unless_referenced(table, new)
        return
    table.refresh()
    _expire(table, (now or datetime.now(UTC)) - _KEPT)


def _expire(table: Table, before: datetime) -> None:
    current = table.metadata.current_snapshot()
    before_ms = int(before.timestamp() * 1000)
    expired = [s for s in table.metadata.snapshots if s.timestamp_ms < before_ms and s != current]
    if not expired:
        return
    kept = [s for s in table.metadata.snapshots if s not in expired]
    unneeded = _all_paths(table, expired) - _all_paths(table, kept)
    try:
        table.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in expired]).commit()
    except CommitFailedException as refused:
        logger.info("%s: another commit came first, its snapshots expire later: %s", RESULTS_TABLE, refused)
        return
    remove_files(table.io, unneeded)


def _all_paths(table: Table, snapshots: Sequence[Snapshot]) -> set[str]:
    """Return the manifest lists, manifests and data files of snapshots."""
    paths = {snapshot.manifest_list for snapshot in snapshots}
    manifests = {m.manifest_path: m for snapshot in snapshots for m in snapshot.manifests(table.io)}
    for manifest in manifests.values():
        paths |= _paths(entry.data_file for entry in manifest.fetch_manifest_entry(table.io))
    return paths | manifests.keys()


def _paths(files: Iterator[DataFile]) -> set[str]:
    return {file.file_path for file in files}
