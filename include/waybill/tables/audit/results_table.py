"""The table `waybill.quality_results`: a row for each result of each audit of any stream, appended once.

The snapshot that appends the rows of audits names them in a property, so an audit that is appended again after a crash
is found. The table needs no separate job: `append_results` compacts its files and expires its snapshots when there are
many. A failure of this does not fail the audit: maintenance does it later, and reports a failure. PyIceberg copies the
metadata of all snapshots several times in each commit (0.8 ms of CPU for each snapshot), so few are kept.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, GreaterThanOrEqual, In
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import BooleanType, IntegerType, ListType, LongType, NestedField, StringType, TimestamptzType
from sqlalchemy.exc import IntegrityError

from waybill.tables.audit.results import Audit
from waybill.tables.iceberg import commit_snapshot, commit_with_retry, remove_files
from waybill.tables.iceberg.catalog import NO_ANSWER, translate_catalog_errors
from waybill.tables.iceberg.state import ancestry, live_files
from waybill.tables.staging.file_writer import write_data_files

logger = logging.getLogger(__name__)

RESULTS_TABLE = "waybill.quality_results"

_AUDITS_PROPERTY = "waybill.audits"
_MOST_FILES = 256
"""When the table has more data files, they are compacted into one."""
_KEPT_SNAPSHOTS = 50
_MOST_SNAPSHOTS = 100
"""When the table has more snapshots, all but the newest `_KEPT_SNAPSHOTS` expire."""
_CLOCK_SKEW = timedelta(seconds=30)
"""The clocks of the drivers that audit and append may differ by this much. It is short, because the code searches for
the rows of any audit that may be older than the kept snapshots, and PyIceberg opens every manifest for that."""
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
        """Return a name that no other audit has."""
        return f"{self.stream}/{self.audit.generation}/{self.audit.plan}/{self.audit.run_id}"


def append_results(catalog: Catalog, records: Sequence[AuditRecord]) -> None:
    """Append the results of audits to the table in one snapshot, except those that the table has already.

    The table is created if it does not exist. An application that audits many streams appends all of them at once,
    since each commit takes time.

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
        # A rival, or an attempt with an unknown outcome, has appended some of them.
        _try("the removal of files without rows", lambda: _remove_unless_referenced(table, files))
        append_results(catalog, [given[name] for name in missing])
        return
    _try("the compaction", lambda: _compact_if_needed(table))
    _try("the expiry of snapshots", lambda: _expire_if_needed(table))


def _try(what: str, upkeep: Callable[[], None]) -> None:
    """Run a part of the upkeep. Its failure is only logged: the results are stored, and the rows are published.

    Maintenance repeats it (`keep_results_small`), and reports a failure.
    """
    try:
        upkeep()
    except Exception as error:
        logger.exception(
            "%s: the results are stored, but %s failed: %s. The next audit and the DAG maintenance try again",
            RESULTS_TABLE,
            what,
            error,
        )


def _missing(table: Table, given: Mapping[str, AuditRecord]) -> list[str]:
    """Return the names of the audits that the table does not have."""
    recent = _appended_recently(table)
    missing = [name for name in given if name not in recent]
    # The snapshots of older audits may have expired, and the audits of held runs are passed again and again.
    expired_until = _expired_until(table)
    old = [given[name] for name in missing if given[name].audit.at < expired_until + _CLOCK_SKEW]
    if not old:
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
    """Return the names of the audits that unexpired snapshots appended."""
    texts = (_properties(snapshot).get(_AUDITS_PROPERTY) for snapshot in ancestry(table.metadata))
    return {name for text in texts if text is not None for name in json.loads(text)}


def _expired_until(table: Table) -> datetime:
    """Return the time of the oldest snapshot if earlier ones have expired; else a time before all audits."""
    kept = list(ancestry(table.metadata))
    # Not the parent's id: PyIceberg removes it when the parent expires.
    if not kept or kept[-1].sequence_number == 1:
        return datetime.min.replace(tzinfo=UTC)
    return datetime.fromtimestamp(kept[-1].timestamp_ms / 1000, UTC)


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
    catalog: Catalog, stream_name: str | None = None, *, since: datetime | None = None, plan: str | None = None
) -> list[dict[str, Any]]:
    """Return the results of a stream, or of all, as rows of `RESULTS_SCHEMA`, oldest first; none without a table.

    `since`: only of audits from then on. `plan`: only of this plan.

    Raises `CatalogUnavailable`, or `OSError` when a file cannot be read.
    """
    with translate_catalog_errors(f"load {RESULTS_TABLE}"):
        try:
            table = catalog.load_table(RESULTS_TABLE)
        except NoSuchTableError:
            return []
    chosen: BooleanExpression = AlwaysTrue() if stream_name is None else EqualTo(term="stream", value=stream_name)
    if since is not None:
        chosen = And(chosen, GreaterThanOrEqual(term="checked_at", value=since.astimezone(UTC).isoformat()))
    if plan is not None:
        chosen = And(chosen, EqualTo(term="plan", value=plan))
    rows: list[dict[str, Any]] = table.scan(row_filter=chosen).to_arrow().sort_by("checked_at").to_pylist()
    return rows


# --- upkeep -----------------------------------------------------------------------------------------------------------


def keep_results_small(catalog: Catalog) -> None:
    """Compact the table's files and expire its snapshots, if there are many.

    Maintenance calls it, and reports a failure.

    Raises `CatalogUnavailable`, or `OSError` when a file cannot be read or written.
    """
    with translate_catalog_errors(f"load {RESULTS_TABLE}"):
        try:
            table = catalog.load_table(RESULTS_TABLE)
        except NoSuchTableError:
            return
    with translate_catalog_errors(f"change {RESULTS_TABLE}"):
        _compact_if_needed(table)
        _expire_if_needed(table)


def _compact_if_needed(table: Table) -> None:
    if int(_summary(table).get("total-data-files", "0")) > _MOST_FILES:
        compact_results(table)


def _expire_if_needed(table: Table) -> None:
    if len(table.metadata.snapshots) > _MOST_SNAPSHOTS:
        expire_results(table)


def compact_results(table: Table) -> None:
    """Write all rows to one data file.

    If another process appends at the same time, nothing changes, and a later append tries again. A process that is
    killed in between leaves a file that no snapshot references.
    """
    before = table.metadata.current_snapshot_id
    old = list(live_files(table, table.metadata.current_snapshot()))
    rows = table.scan().to_arrow().select(_ROWS.names).cast(_ROWS)
    new = write_data_files(table, _ROWS, rows.to_batches(), memory_bytes=_MEMORY_BYTES, name="compacted")
    compacted = commit_snapshot(table, {}, added=new, removed=old)
    table.refresh()
    # While the table is unchanged, a commit with an unknown outcome may still arrive, and it needs the file.
    if not compacted and table.metadata.current_snapshot_id != before:
        _remove_unless_referenced(table, new)


def expire_results(table: Table) -> None:
    """Expire all snapshots but the newest `_KEPT_SNAPSHOTS`, and remove the files that only they reference.

    If another process commits at the same time, nothing changes, and a later append tries again.
    """
    snapshots = sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    expired, kept = snapshots[:-_KEPT_SNAPSHOTS], snapshots[-_KEPT_SNAPSHOTS:]
    if not expired:
        return
    try:
        unneeded = _files_of_only(table, expired, kept)
        table.maintenance.expire_snapshots().by_ids([snapshot.snapshot_id for snapshot in expired]).commit()
    except CommitFailedException as refused:
        logger.info("%s: another commit came first, its snapshots expire later: %s", RESULTS_TABLE, refused)
        return
    except NO_ANSWER as error:
        table.refresh()
        if not _are_gone(table, expired):
            raise
        logger.info("%s: the catalog has expired its snapshots, although it answered: %s", RESULTS_TABLE, error)
    except (ValueError, FileNotFoundError) as error:
        # PyIceberg does not check that the snapshots still exist: another process may have expired them, and removed
        # their files.
        table.refresh()
        if not _are_gone(table, expired, some=True):
            raise
        logger.info("%s: another process has expired its snapshots: %s", RESULTS_TABLE, error)
        return
    remove_files(table.io, unneeded)


def _are_gone(table: Table, expired: Sequence[Snapshot], *, some: bool = False) -> bool:
    """Return whether the loaded table has none of the snapshots; with `some`, whether it lacks one of them."""
    left = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    gone = [snapshot.snapshot_id not in left for snapshot in expired]
    return any(gone) if some else all(gone)


def _files_of_only(table: Table, expired: Sequence[Snapshot], kept: Sequence[Snapshot]) -> set[str]:
    """Return the manifest lists, manifests and data files of `expired` that no snapshot of `kept` references.

    Manifests are read only after a compaction: an append keeps those of all earlier snapshots.
    """
    lists = {snapshot.manifest_list for snapshot in expired}
    needed = _manifests(table, kept)
    unneeded = {path: each for path, each in _manifests(table, expired).items() if path not in needed}
    if not unneeded:
        return lists
    data_files = _data_files(table, unneeded.values()) - _data_files(table, needed.values())
    return lists | unneeded.keys() | data_files


def _manifests(table: Table, snapshots: Sequence[Snapshot]) -> dict[str, ManifestFile]:
    return {manifest.manifest_path: manifest for each in snapshots for manifest in each.manifests(table.io)}


def _data_files(table: Table, manifests: Iterable[ManifestFile]) -> set[str]:
    return {path for each in manifests for path in _paths(e.data_file for e in each.fetch_manifest_entry(table.io))}


def _paths(files: Iterator[DataFile]) -> set[str]:
    return {file.file_path for file in files}
