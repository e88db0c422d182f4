"""Maintain tables: compact small files, expire snapshots, remove files that are no longer needed.

    spark-submit spark_jobs/maintenance.py --stream flights [--config streams.yaml] [--report report.json]
    spark-submit spark_jobs/maintenance.py --group default

Spark needs Iceberg's jars (`waybill.tables.spark.catalog.JARS`) on its class path. Connections come from the
environment (`AIRFLOW_CONN_…`). With exit code 1, the last lines name the problems, and whether the same command may
succeed later.
"""

from __future__ import annotations

import logging
import sys

from pyspark import SparkContext
from pyspark.sql import SparkSession

from waybill.config.connections import CatalogEndpoint, S3Endpoint, find_connection
from waybill.config.models import Config
from waybill.config.names import Stage
from waybill.tables.maintenance.maintenance_run import run_maintenance
from waybill.tables.spark.catalog import spark_catalog
from waybill.tables.spark.group_job import Application, check_options, run_application
from waybill.tables.spark.iceberg import SparkProcedures, attach_catalog
from waybill.tables.spark.job import configure_logging, end_with_spark_submit, job_parser
from waybill.tables.spark.session import connection_ids, spark_session
from waybill.tables.spark.side_by_side import StreamWork

logger = logging.getLogger("waybill.tables.maintenance")

# Spark's default of 200 is too many for the lists of files that the procedures process.
_SETTINGS = {"spark.sql.shuffle.partitions": "16"}


def main(arguments: list[str] | None = None) -> int:
    """Run the job and return its exit code."""
    parser = job_parser("Maintain tables.", "the runs' figures")
    options = parser.parse_args(arguments)
    check_options(parser, options)
    configure_logging()
    end_with_spark_submit()
    return run_application(Stage.MAINTENANCE, options, start, maintain)


def start(config: Config, name: str) -> SparkContext:
    """Start Spark with Spark SQL, and return its context."""
    return spark_session(name, connection_ids(config), _SETTINGS).sparkContext


def maintain(application: Application, work: StreamWork) -> None:
    """Maintain the tables of a stream. Spark starts only if a procedure is needed."""
    config = application.config

    def make_procedures() -> SparkProcedures:
        catalog = spark_catalog(
            CatalogEndpoint.of(find_connection(config.catalog.connection)),
            S3Endpoint.of(find_connection(config.storage.connection)),
        )
        application.context()
        # Each stream has its own session, since temporary views and the catalog's cache of tables belong to a session.
        session = SparkSession.builder.getOrCreate().newSession()
        attach_catalog(session, catalog)
        return SparkProcedures(session, catalog.name)

    report = run_maintenance(config, work.stream, make_procedures, services=application.services)
    logger.info("%s", report)
    work.reports.append(report.document())
    work.lines.append(str(report))
    work.did_something = report.changed_something
    work.committed = any(table.before != table.after for table in report.tables)
    work.alerts += report.warnings


if __name__ == "__main__":
    sys.exit(main())
