"""The input of an audit: the staged files of a plan, and the counts of the tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from waybill.config.models import Stream
from waybill.config.models.quality import CheckName
from waybill.tables.iceberg import metadata_at, target_of

_ALL_CHECKS = frozenset(CheckName)


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
    """The main table, loaded at `main`."""
    table_files: Sequence[DataFile]
    """The staged data files of the main table; with the sink `files`, those of the file inventory."""
    quarantine_files: Sequence[DataFile]
    properties: Mapping[str, str]
    """The snapshot properties that were staged with the files: the statistics of the tasks."""
    checks: Set[CheckName] = _ALL_CHECKS
    """The built-in checks that apply to these files."""

    @property
    def history(self) -> TableMetadata:
        """The table's metadata at the stream's generation, with which a run is compared."""
        return metadata_at(self.table.metadata, target_of(self.table.metadata, self.stream.generation))
