"""Keep a stream's tables in shape: compact small files, expire snapshots, remove what nobody needs any more.

    spark-submit spark_jobs/maintenance.py --stream flights [--config streams.yaml] [--report report.json]

Spark needs Iceberg's jars (`waybill.spark.catalog.JARS`) on its class path. Connections come from the environment
(`AIRFLOW_CONN_…`). Exit code 1: the last line says what somebody should look at, or that the same command may succeed
again.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from waybill.config import load_config
from waybill.connections import CatalogEndpoint, S3Endpoint, connection
from waybill.errors import WaybillError
from waybill.maintenance.figures import MaintenanceReport
from waybill.maintenance.run import run_maintenance
from waybill.spark.catalog import spark_catalog
from waybill.spark.iceberg import attach_catalog
from waybill.spark.job import job_parser, log_failure, set_up_log, write_report
from waybill.spark.procedures import SparkProcedures
from waybill.spark.session import connection_ids, spark_session

logger = logging.getLogger("waybill.maintenance")

# Spark's default, 200, is for tables much larger than lists of files.
_SETTINGS = {"spark.sql.shuffle.partitions": "16"}


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    parser = job_parser("Keep a stream's tables in shape.", "the run's figures")
    options = parser.parse_args(arguments)
    set_up_log()
    try:
        report = maintain(options.stream, options.config)
    except WaybillError as error:
        log_failure(logger, "maintenance", options.stream, error)
        return 1
    write_report(options.report, report.document())
    logger.info("%s", report)
    for warning in report.warnings:
        logger.error("maintenance %s: %s", options.stream, warning)
    return 1 if report.warnings else 0


def maintain(stream: str, path: Path | None) -> MaintenanceReport:
    """Run the job; Spark starts only if there is something to do."""
    config = load_config(path)

    def procedures() -> SparkProcedures:
        catalog = spark_catalog(
            CatalogEndpoint.of(connection(config.catalog.connection)),
            S3Endpoint.of(connection(config.storage.connection)),
        )
        session = spark_session(f"waybill-maintenance-{stream}", connection_ids(config), _SETTINGS)
        attach_catalog(session, catalog)
        return SparkProcedures(session, catalog.name)

    return run_maintenance(config, stream, procedures)


if __name__ == "__main__":
    sys.exit(main())
