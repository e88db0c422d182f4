"""What an audit reads: the staged files of a plan, and what the tasks counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from waybill.config import Stream

__all__ = ["AuditInput"]


@dataclass(frozen=True, slots=True)
class AuditInput:
    """The input of an audit. It needs neither Spark nor ZooKeeper."""

    stream_name: str
    stream: Stream
    plan_id: str
    run_id: str
    """The run that staged the files."""
    planned_at: datetime
    table: Table
    """The main table, as `main` is loaded."""
    table_files: Sequence[DataFile]
    """The staged data files of the main table; with the sink `files`, those of the file inventory."""
    quarantine_files: Sequence[DataFile]
    properties: Mapping[str, str]
    """The snapshot properties that were staged with the files: the statistics of the tasks."""
