"""Turn new messages of a stream's archive into table rows.

    spark-submit spark_jobs/partition.py --stream flights [--config streams.yaml] [--report report.json]

Connections come from the environment (`AIRFLOW_CONN_…`). With exit code 1, the last line names the problem, and whether
the same command may succeed later.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark import SparkContext

from waybill.config import load_config
from waybill.errors import WaybillError
from waybill.partition.report import Report
from waybill.partition.run import run_to_the_end
from waybill.spark import daemon
from waybill.spark.execute import spark_execute
from waybill.spark.job import configure_logging, end_process, job_parser, log_failure, write_report
from waybill.spark.session import connection_ids, spark_context, task_slots

logger = logging.getLogger("waybill.partition")


def main(arguments: list[str] | None = None) -> int:
    """Run the job and return its exit code."""
    parser = job_parser("Turn new messages of a stream's archive into table rows.", "the runs' figures")
    parser.add_argument(
        "--no-quarantine-alert",
        dest="quarantine_alert",
        action="store_false",
        help="exit with 0 even if more than quarantine.max_rate went to quarantine (in Airflow, the task "
        "check_quarantine checks it)",
    )
    options = parser.parse_args(arguments)
    configure_logging()
    with daemon.forked_daemon(daemon.warm_up, daemon.run) as environment:
        return run_job(options, environment)


def run_job(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """Run the partition runs and return the exit code. `environment`: for Spark's workers on this machine."""
    reports: list[Report] = []
    try:
        for report in partition(options.stream, options.config, environment):
            logger.info("%s", report)
            if report.alert:
                logger.error("partition %s", report.alert)
            reports.append(report)
    except WaybillError as error:
        log_failure(logger, "partition", options.stream, error)
        return 1
    write_report(options.report, [report.document() for report in reports])
    for fault in reports[-1].faults:
        logger.error("partition %s: left out until the archive fault is repaired: %s", options.stream, fault)
    is_alerted = options.quarantine_alert and any(report.alert for report in reports)
    return 1 if reports[-1].faults or is_alerted else 0


def partition(stream: str, path: Path | None, environment: Mapping[str, str]) -> Iterator[Report]:
    """Run partition runs until all messages are partitioned, and yield their reports. Spark starts only if needed."""
    config = load_config(path)

    def start() -> SparkContext:
        return spark_context(f"waybill-partition-{stream}", connection_ids(config), environment)

    return run_to_the_end(config, stream, spark_execute(start), slots=task_slots())


if __name__ == "__main__":
    end_process(main())
