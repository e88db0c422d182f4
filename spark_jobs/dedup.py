"""Sweep the rows appended to a stream's table since the last sweep: keep each key once per window.

    spark-submit spark_jobs/dedup.py --stream flights [--config streams.yaml] [--report report.json]

Connections come from the environment (`AIRFLOW_CONN_…`). Exit code 1: the job failed, or there is an alert; the last
log line names the error and whether a retry may succeed.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial

from pyspark import SparkContext

from waybill.config import load_config
from waybill.dedup.first_sweep import check_range, parse_instant
from waybill.dedup.report import SweepReport
from waybill.dedup.status import check_window
from waybill.dedup.sweep import run_all_sweeps
from waybill.errors import ConfigError, WaybillError
from waybill.spark import daemon
from waybill.spark.execute import SparkSweep
from waybill.spark.job import configure_logging, end_process, job_parser, log_failure, write_report
from waybill.spark.session import connection_ids, spark_context, task_slots

logger = logging.getLogger("waybill.dedup")


def main(arguments: list[str] | None = None) -> int:
    """Parse the arguments, run the job and return the exit code."""
    parser = job_parser("Sweep the rows appended to a stream's table: keep each key once.", "the sweeps' figures")
    parser.add_argument(
        "--since",
        type=partial(instant, "since"),
        metavar="TIME",
        help="for the first sweep: leave out for good the rows committed before this time: 2026-01-01T00:00:00Z",
    )
    parser.add_argument(
        "--until",
        type=partial(instant, "until"),
        metavar="TIME",
        help="sweep only the rows committed by this time: 2026-01-31T00:00:00Z; an existing plan of an earlier sweep "
        "is executed unchanged",
    )
    parser.add_argument(
        "--rebuild-index",
        action="store_true",
        help="rebuild the key index from the unique table first; the result of the sweep is the same",
    )
    parser.add_argument(
        "--no-window-alert",
        dest="window_alert",
        action="store_false",
        help="exit with 0 even if the window is shorter than the config promises: another process checks it (in "
        "Airflow, the task check_window)",
    )
    options = parser.parse_args(arguments)
    try:
        check_range(options.since, options.until, datetime.now(UTC))
    except ConfigError as error:
        parser.error(str(error))
    configure_logging()
    with daemon.forked_daemon(daemon.warm_up_dedup, daemon.run) as environment:
        return run_job(options, environment)


def instant(name: str, text: str) -> datetime:
    """Return a time that has a time zone. Raises `ArgumentTypeError` for other text."""
    try:
        return parse_instant(name, text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def run_job(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """Sweep until nothing is left, check the window, return the exit code. `environment`: that of Spark's workers."""
    reports: list[SweepReport] = []
    try:
        for report in sweep(options, environment):
            logger.info("%s", report)
            reports.append(report)
    except WaybillError as error:
        log_failure(logger, "dedup", options.stream, error)
        return 1
    write_report(options.report, [report.document() for report in reports])
    return 1 if options.window_alert and has_window_alert(options) else 0


def has_window_alert(options: argparse.Namespace) -> bool:
    """Log the window; return whether it is shorter than the config promises, or cannot be read."""
    try:
        check_window(load_config(options.config), options.stream)
    except WaybillError as error:
        logger.error("dedup %s: %s: %s", options.stream, type(error).__name__, error)
        return True
    return False


def sweep(options: argparse.Namespace, environment: Mapping[str, str]) -> Iterator[SweepReport]:
    """Yield the reports of all sweeps. Spark is started only if there are tasks."""
    config = load_config(options.config)

    def start() -> SparkContext:
        return spark_context(f"waybill-dedup-{options.stream}", connection_ids(config), environment)

    return run_all_sweeps(
        config,
        options.stream,
        SparkSweep(start),
        since=options.since,
        until=options.until,
        rebuild_index=options.rebuild_index,
        slots=task_slots(),
    )


if __name__ == "__main__":
    end_process(main())
