"""Iceberg: the catalog, the two tables of a stream, progress, and the commit that moves rows and progress together."""

from waybill.tables.catalog import file_io, open_catalog
from waybill.tables.commit import Commit, Outcome, commit_files
from waybill.tables.files import io_properties
from waybill.tables.progress import Progress, read_progress
from waybill.tables.schemas import StreamTables, ensure_tables, load_tables

__all__ = [
    "Commit",
    "Outcome",
    "Progress",
    "StreamTables",
    "commit_files",
    "ensure_tables",
    "file_io",
    "io_properties",
    "load_tables",
    "open_catalog",
    "read_progress",
]
