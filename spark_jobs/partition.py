"""Turn what is new in the archive of a stream into table rows.

    spark-submit spark_jobs/partition.py --stream flights [--config streams.yaml] [--report report.json]

Connections come from the environment (`AIRFLOW_CONN_…`). Exit code 1: something needs a decision, or the same command
again; the last line says which.
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
from waybill.spark.daemon import forked_daemon
from waybill.spark.job import end_process, job_parser, log_failure, configure_logging, write_report
from waybill.spark.session import connection_ids, spark_context, task_slots

logger = logging.getLogger("waybill.partition")


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    parser = job_parser("Turn what is new in the archive of a stream into table rows.", "the runs' figures")
    parser.add_argument(
        "--no-quarantine-alert",
        dest="quarantine_alert",
        action="store_false",
        help="end well even if more went to quarantine than quarantine.max_rate: somebody else looks (in Airflow, the "
        "task check_quarantine)",
    )
    options = parser.parse_args(arguments)
    configure_logging()
    with forked_daemon(daemon.warm_up, daemon.run) as environment:
        return carry_out(options, environment)


def carry_out(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """The exit code. `environment`: for Spark's workers on this machine."""
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
        logger.error("partition %s: left out until it is mended: %s", options.stream, fault)
    is_alerted = options.quarantine_alert and any(report.alert for report in reports)
    return 1 if reports[-1].faults or is_alerted else 0


def partition(stream: str, path: Path | None, environment: Mapping[str, str]) -> Iterator[Report]:
    """Run the job until nothing of an earlier run is left; Spark starts only if there is something to do."""
    config = load_config(path)

    def start() -> SparkContext:
        return spark_context(f"waybill-partition-{stream}", connection_ids(config), environment)

    return run_to_the_end(config, stream, spark_execute(start), slots=task_slots())


if __name__ == "__main__":
    end_process(main())
