"""Maintain a stream's tables: compact small files, expire snapshots, remove files that are no longer needed.

    spark-submit spark_jobs/maintenance.py --stream flights [--config streams.yaml] [--report report.json]

Spark needs Iceberg's jars (`waybill.spark.catalog.JARS`) on its class path. Connections come from the environment
(`AIRFLOW_CONN_…`). With exit code 1, the last line names the problem, and whether the same command may succeed later.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from waybill.config import load_config
from waybill.connections import CatalogEndpoint, S3Endpoint, find_connection
from waybill.errors import WaybillError
from waybill.maintenance.procedures import MaintenanceReport
from waybill.maintenance.run import run_maintenance
from waybill.spark.catalog import spark_catalog
from waybill.spark.iceberg import SparkProcedures, attach_catalog
from waybill.spark.job import configure_logging, job_parser, log_failure, write_report
from waybill.spark.session import connection_ids, spark_session

logger = logging.getLogger("waybill.maintenance")

# Spark's default of 200 is too many for the lists of files that the procedures process.
_SETTINGS = {"spark.sql.shuffle.partitions": "16"}


def main(arguments: list[str] | None = None) -> int:
    """Run the job and return its exit code."""
    parser = job_parser("Maintain a stream's tables.", "the run's figures")
    options = parser.parse_args(arguments)
    configure_logging()
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
    """Maintain the tables of a stream, and return the report. Spark starts only if a procedure is needed."""
    config = load_config(path)

    def make_procedures() -> SparkProcedures:
        catalog = spark_catalog(
            CatalogEndpoint.of(find_connection(config.catalog.connection)),
            S3Endpoint.of(find_connection(config.storage.connection)),
        )
        session = spark_session(f"waybill-maintenance-{stream}", connection_ids(config), _SETTINGS)
        attach_catalog(session, catalog)
        return SparkProcedures(session, catalog.name)

    return run_maintenance(config, stream, make_procedures)


if __name__ == "__main__":
    sys.exit(main())
