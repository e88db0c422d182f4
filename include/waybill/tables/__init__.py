"""Iceberg: the catalog, the two tables of a stream, progress, and the commit that moves rows and progress together."""

from waybill.tables.catalog import catalog_of, file_io, open_catalog, task_io
from waybill.tables.columns import fit_columns
from waybill.tables.commit import Commit, Outcome, commit_files, commit_snapshot, until_committed
from waybill.tables.dedup import (
    Beginning,
    DedupTables,
    SweepState,
    Swept,
    ensure_dedup_tables,
    load_dedup_tables,
    read_sweep_state,
    read_swept,
    sweep_properties,
    swept_text,
)
from waybill.tables.files import damage_named, files_reachable, io_properties, remove_files
from waybill.tables.progress import (
    LeftOut,
    Progress,
    Watermarks,
    left_out_text,
    read_left_out,
    read_progress,
    read_watermarks,
)
from waybill.tables.schemas import StreamTables, ensure_tables, load_tables
from waybill.tables.state import LEFT_OUT_PROPERTY, RETRIES_PROPERTY, read_retries, state_of

__all__ = [
    "LEFT_OUT_PROPERTY",
    "RETRIES_PROPERTY",
    "Beginning",
    "Commit",
    "DedupTables",
    "LeftOut",
    "Outcome",
    "Progress",
    "StreamTables",
    "SweepState",
    "Swept",
    "Watermarks",
    "catalog_of",
    "commit_files",
    "commit_snapshot",
    "damage_named",
    "ensure_dedup_tables",
    "ensure_tables",
    "file_io",
    "files_reachable",
    "fit_columns",
    "io_properties",
    "left_out_text",
    "load_dedup_tables",
    "load_tables",
    "open_catalog",
    "read_left_out",
    "read_progress",
    "read_retries",
    "read_sweep_state",
    "read_swept",
    "read_watermarks",
    "remove_files",
    "state_of",
    "sweep_properties",
    "swept_text",
    "task_io",
    "until_committed",
]
