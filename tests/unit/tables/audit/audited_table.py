"""A table in a local catalog without servers, staged files for it, and the input of an audit of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from waybill.config.models import Config, Stream
from waybill.config.names import TopicPartition
from waybill.tables.audit import AuditInput
from waybill.tables.audit.counts import COUNTS_PROPERTY, AuditCounts
from waybill.tables.iceberg import commit_snapshot, ensure_tables
from waybill.tables.iceberg.progress import watermarks_text
from waybill.tables.iceberg.state import WATERMARKS_PROPERTY
from waybill.tables.partition.rows import table_rows
from waybill.tables.staging.file_writer import write_data_files

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
TP = TopicPartition("flights", 0)
COLUMNS = {"delay": "int", "carrier": "string", "price": "double", "fee": "decimal(12,2)", "tags": "list<string>"}


def stream_of(quality: Mapping[str, Any] | None = None, **settings: Any) -> Stream:
    """Return the config of a stream with `COLUMNS`."""
    stream = {
        "topics": ["flights"],
        "parser": {"name": "json", "event_time": {"field": "time"}, "message_id": "id"},
        "columns": COLUMNS,
        "table": "analytics.flights",
        "quality": quality or {},
        **settings,
    }
    config = Config.model_validate({"version": 1, "storage": {"bucket": "archive"}, "streams": {"flights": stream}})
    return config.stream("flights")


def catalog_in(folder: Path) -> Catalog:
    """Return an empty catalog whose files are in a folder."""
    return SqlCatalog("waybill", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")


class AuditedTable:
    """The main table of a stream, and files that are staged for it."""

    def __init__(self, catalog: Catalog, stream: Stream | None = None) -> None:
        self.stream = stream or stream_of()
        self.table: Table = ensure_tables(catalog, self.stream).main
        self.branch = MAIN_BRANCH
        self._next_offset = 0

    def stage(self, rows: Sequence[Mapping[str, Any]]) -> list[DataFile]:
        """Return data files with these rows. Columns that a row lacks are null; its offset is the next one."""
        schema = table_rows(self.stream.columns)
        batch = pa.RecordBatch.from_pylist([self._row(row) for row in rows], schema)
        return write_data_files(self.table, schema, [batch], memory_bytes=64 << 20, name="plan")

    def commit(self, rows: Sequence[Mapping[str, Any]], watermark: datetime | None = None) -> None:
        """Add rows to the branch."""
        mark = {} if watermark is None else {WATERMARKS_PROPERTY: watermarks_text({TP: epoch_ms(watermark)})}
        assert commit_snapshot(self.table, mark, added=self.stage(rows), branch=self.branch)
        self.table.refresh()

    def given(
        self,
        files: Sequence[DataFile] = (),
        counts: AuditCounts | None = None,
        *,
        quarantine: Sequence[DataFile] = (),
        watermark: datetime | None = None,
        stream: Stream | None = None,
    ) -> AuditInput:
        """Return the input of an audit of these files."""
        properties = {}
        if counts is not None:
            properties[COUNTS_PROPERTY] = counts.to_text()
        if watermark is not None:
            properties[WATERMARKS_PROPERTY] = watermarks_text({TP: epoch_ms(watermark)})
        return AuditInput(
            "flights", stream or self.stream, "plan1", "run1", NOON, self.table, files, quarantine, properties
        )

    def _row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        offset, self._next_offset = self._next_offset, self._next_offset + 1
        own = {
            "topic": TP.topic,
            "partition": TP.partition,
            "offset": offset,
            "headers": [],
            "event_time": NOON,
            "message_id": f"id{offset}",
            "generation": 1,
        }
        return {**own, **row}


def epoch_ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
