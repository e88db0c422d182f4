"""Iceberg tables: the catalog, the tables of a stream, their state, and commits of rows together with progress."""

from waybill.tables.iceberg.catalog import catalog_of, file_io, open_catalog, task_io
from waybill.tables.iceberg.columns import evolve_columns
from waybill.tables.iceberg.commit import CommitOutcome, commit_snapshot, commit_with_retry
from waybill.tables.iceberg.dedup import (
    DedupTables,
    FirstSweepStart,
    SweepPosition,
    SweepState,
    ensure_dedup_tables,
    load_dedup_tables,
    read_sweep_position,
    read_sweep_state,
    sweep_position_text,
    sweep_properties,
)
from waybill.tables.iceberg.files import io_properties, remove_files, translate_damage_errors, translate_storage_errors
from waybill.tables.iceberg.progress import (
    BlockedPartitions,
    Progress,
    Watermarks,
    blocked_partitions_text,
    read_blocked_partitions,
    read_progress,
    read_watermarks,
)
from waybill.tables.iceberg.publish import Commit, drop_branch, head_of, is_live, publish, stage_on_branch, target_of
from waybill.tables.iceberg.schemas import StreamTables, ensure_tables, load_tables
from waybill.tables.iceberg.state import (
    BLOCKED_PARTITIONS_PROPERTY,
    RETRIES_PROPERTY,
    metadata_at,
    read_retries,
    state_of,
)

__all__ = [
    "BLOCKED_PARTITIONS_PROPERTY",
    "RETRIES_PROPERTY",
    "BlockedPartitions",
    "Commit",
    "CommitOutcome",
    "DedupTables",
    "FirstSweepStart",
    "Progress",
    "StreamTables",
    "SweepPosition",
    "SweepState",
    "Watermarks",
    "blocked_partitions_text",
    "catalog_of",
    "commit_snapshot",
    "commit_with_retry",
    "drop_branch",
    "ensure_dedup_tables",
    "ensure_tables",
    "evolve_columns",
    "file_io",
    "head_of",
    "io_properties",
    "is_live",
    "load_dedup_tables",
    "load_tables",
    "metadata_at",
    "open_catalog",
    "publish",
    "read_blocked_partitions",
    "read_progress",
    "read_retries",
    "read_sweep_position",
    "read_sweep_state",
    "read_watermarks",
    "remove_files",
    "stage_on_branch",
    "state_of",
    "sweep_position_text",
    "sweep_properties",
    "target_of",
    "task_io",
    "translate_damage_errors",
    "translate_storage_errors",
]
