"""Maintenance of the scenes, at a time that the test sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from partition_scenes import Scene
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from waybill.config import Config
from waybill.connections import CatalogEndpoint, S3Endpoint, connection
from waybill.maintenance.figures import MaintenanceReport, TableReport
from waybill.maintenance.procedures import Expired, Procedures, Rewritten, RewrittenManifests
from waybill.maintenance.run import run_maintenance
from waybill.spark.catalog import spark_catalog
from waybill.spark.iceberg import attach_catalog
from waybill.spark.procedures import SparkProcedures
from waybill.store import ListedObject
from waybill.tables.state import ancestry

Clock = Callable[[], datetime]


@dataclass
class Upkeep:
    """Maintenance of a scene, at a time that the test sets: files, snapshots and plans are that much older."""

    procedures: Callable[[Clock], Procedures]
    later: timedelta = timedelta(0)

    @classmethod
    def on(cls, spark: SparkSession) -> Upkeep:
        """With Iceberg's own procedures."""
        catalog = spark_catalog(
            CatalogEndpoint.of(connection("iceberg_default")), S3Endpoint.of(connection("aws_default"))
        )
        session = spark.newSession()
        session.conf.set("spark.sql.shuffle.partitions", "2")
        attach_catalog(session, catalog)
        return cls(lambda clock: SparkProcedures(session, catalog.name, clock))

    @classmethod
    def without_spark(cls, catalog: Catalog) -> Upkeep:
        """With expiry and the removal of orphans alone, in a tenth of the time."""
        return cls(lambda _: ByPyIceberg(catalog))

    def now(self) -> datetime:
        return datetime.now(UTC) + self.later

    def run(self, scene: Scene, **rules: Any) -> MaintenanceReport:
        config = scene.with_stream(maintenance=rules)
        return self.run_config(config)

    def run_config(self, config: Config) -> MaintenanceReport:
        return run_maintenance(config, "flights", lambda: self.procedures(self.now), now=self.now)


def figures(report: TableReport, step: str) -> dict[str, int]:
    return dict(next(done.figures for done in report.steps if done.name == step))


class ByPyIceberg:
    """Procedures that leave files as they are, and expire snapshots with the files that they alone had."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def rewrite_data_files(self, table: str, *, sort: bool, target_file_bytes: int, min_input_files: int) -> Rewritten:  # noqa: ARG002
        return Rewritten(0, 0, 0, 0)

    def rewrite_manifests(self, table: str) -> RewrittenManifests:  # noqa: ARG002
        return RewrittenManifests(0, 0)

    def expire_snapshots(self, table: str, *, older_than: datetime, keep_last: int) -> Expired:
        found = self._catalog.load_table(table)
        kept = {snapshot.snapshot_id for snapshot, _ in zip(ancestry(found.metadata), range(keep_last), strict=False)}
        older_ms = older_than.timestamp() * 1000
        expired = [
            snapshot.snapshot_id
            for snapshot in found.metadata.snapshots
            if snapshot.timestamp_ms < older_ms and snapshot.snapshot_id not in kept
        ]
        before = _files(found)
        found.maintenance.expire_snapshots().by_ids(expired).commit()
        found.refresh()
        gone = before - _files(found)
        for path in gone:
            found.io.delete(path)
        return Expired(len(gone), 0, 0, 0)

    def remove_orphan_files(self, table: str, candidates: Sequence[tuple[str, ListedObject]]) -> list[str]:
        found = self._catalog.load_table(table)
        referenced = _files(found)
        gone = [path for path, _ in candidates if "/data/" in path and path not in referenced]
        for path in gone:
            found.io.delete(path)
        return gone


def _files(table: Table) -> set[str]:
    """The data files of all snapshots."""
    manifests = {m.manifest_path: m for snapshot in table.metadata.snapshots for m in snapshot.manifests(table.io)}
    return {entry.data_file.file_path for m in manifests.values() for entry in m.fetch_manifest_entry(table.io)}
