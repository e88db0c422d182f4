"""Maintenance runs of test streams, at a time that the test sets, with Spark or with PyIceberg alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from partition_scenes import Scene
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from waybill.config.connections import CatalogEndpoint, S3Endpoint, find_connection
from waybill.config.models import Config
from waybill.services.store import ListedObject
from waybill.tables.iceberg.state import ancestry
from waybill.tables.maintenance.maintenance_run import run_maintenance
from waybill.tables.maintenance.procedures import (
    CompactionResult,
    ExpiryResult,
    MaintenanceReport,
    ManifestRewriteResult,
    Procedures,
    TableReport,
)
from waybill.tables.spark.catalog import spark_catalog
from waybill.tables.spark.iceberg import SparkProcedures, attach_catalog

Clock = Callable[[], datetime]


@dataclass
class MaintenanceRunner:
    """Runs the maintenance of a scene `later` than now: files, snapshots and plans are that much older."""

    procedures: Callable[[Clock], Procedures]
    later: timedelta = timedelta(0)

    @classmethod
    def on(cls, spark: SparkSession) -> MaintenanceRunner:
        """Return a runner with Iceberg's own procedures on Spark."""
        catalog = spark_catalog(
            CatalogEndpoint.of(find_connection("iceberg_default")), S3Endpoint.of(find_connection("aws_default"))
        )
        session = spark.newSession()
        session.conf.set("spark.sql.shuffle.partitions", "2")
        attach_catalog(session, catalog)
        return cls(lambda clock: SparkProcedures(session, catalog.name, clock))

    @classmethod
    def without_spark(cls, catalog: Catalog) -> MaintenanceRunner:
        """Return a runner that only expires snapshots and removes orphans, in a tenth of the time."""
        return cls(lambda _: ByPyIceberg(catalog))

    def now(self) -> datetime:
        return datetime.now(UTC) + self.later

    def run(self, scene: Scene, **rules: Any) -> MaintenanceReport:
        config = scene.with_stream(maintenance=rules)
        return self.run_config(config)

    def run_config(self, config: Config) -> MaintenanceReport:
        return run_maintenance(config, "flights", lambda: self.procedures(self.now), now=self.now)


def figures(report: TableReport, step: str) -> dict[str, int]:
    """Return the figures of one step for a table."""
    return dict(next(done.figures for done in report.steps if done.name == step))


class ByPyIceberg:
    """Procedures without Spark: they rewrite no files, and expire snapshots with the files that only these have."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def rewrite_data_files(
        self,
        table: str,  # noqa: ARG002
        *,
        sort: bool,  # noqa: ARG002
        target_file_bytes: int,  # noqa: ARG002
        min_input_files: int,  # noqa: ARG002
    ) -> CompactionResult:
        return CompactionResult(0, 0, 0, 0)

    def rewrite_manifests(self, table: str) -> ManifestRewriteResult:  # noqa: ARG002
        return ManifestRewriteResult(0, 0)

    def expire_snapshots(self, table: str, *, older_than: datetime, keep_last: int) -> ExpiryResult:
        loaded = self._catalog.load_table(table)
        kept = {snapshot.snapshot_id for snapshot, _ in zip(ancestry(loaded.metadata), range(keep_last), strict=False)}
        older_ms = older_than.timestamp() * 1000
        expired = [
            snapshot.snapshot_id
            for snapshot in loaded.metadata.snapshots
            if snapshot.timestamp_ms < older_ms and snapshot.snapshot_id not in kept
        ]
        before = _data_files(loaded)
        loaded.maintenance.expire_snapshots().by_ids(expired).commit()
        loaded.refresh()
        removed = before - _data_files(loaded)
        for path in removed:
            loaded.io.delete(path)
        return ExpiryResult(len(removed), 0, 0, 0)

    def remove_orphan_files(self, table: str, candidates: Sequence[tuple[str, ListedObject]]) -> list[str]:
        loaded = self._catalog.load_table(table)
        referenced = _data_files(loaded)
        removed = [path for path, _ in candidates if "/data/" in path and path not in referenced]
        for path in removed:
            loaded.io.delete(path)
        return removed


def _data_files(table: Table) -> set[str]:
    """Return the data files of all snapshots."""
    manifests = {m.manifest_path: m for snapshot in table.metadata.snapshots for m in snapshot.manifests(table.io)}
    return {entry.data_file.file_path for m in manifests.values() for entry in m.fetch_manifest_entry(table.io)}
