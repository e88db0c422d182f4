"""Sweep the rows appended to tables since the last sweep: keep each key once per window.

    spark-submit spark_jobs/dedup.py --stream flights [--config streams.yaml] [--report report.json]
    spark-submit spark_jobs/dedup.py --group default

Connections come from the environment (`AIRFLOW_CONN_…`). Exit code 1: the job failed for a stream, or there is an
alert; the last log lines name the errors and whether a retry may succeed.
"""

from __future__ import annotations

import argparse
import logging
from datetime import UTC, datetime
from functools import partial

from pyspark import SparkContext

from waybill.base.errors import ConfigError, WindowShrunk
from waybill.config.models import Config
from waybill.config.names import Stage
from waybill.tables.dedup.first_sweep import check_range, parse_instant
from waybill.tables.dedup.status import check_window
from waybill.tables.dedup.sweep import run_all_sweeps
from waybill.tables.spark import daemon
from waybill.tables.spark.execute import SparkSweep
from waybill.tables.spark.group_job import Application, check_options, run_application
from waybill.tables.spark.job import configure_logging, end_process, end_with_spark_submit, job_parser
from waybill.tables.spark.session import connection_ids, spark_context, task_slots
from waybill.tables.spark.side_by_side import StreamWork
from waybill.tables.staging.driver import RunOutcome

logger = logging.getLogger("waybill.tables.dedup")


def main(arguments: list[str] | None = None) -> int:
    """Parse the arguments, run the job and return the exit code."""
    parser = job_parser("Sweep the rows appended to tables: keep each key once.", "the sweeps' figures")
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
    check_options(parser, options)
    if (options.since or options.until or options.rebuild_index) and len(options.streams) != 1:
        parser.error("--since, --until and --rebuild-index are for one stream: name it with --stream")
    try:
        check_range(options.since, options.until, datetime.now(UTC))
    except ConfigError as error:
        parser.error(str(error))
    configure_logging()
    end_with_spark_submit()
    with daemon.forked_daemon(daemon.warm_up_dedup, daemon.run) as environment:

        def start(config: Config, name: str) -> SparkContext:
            return spark_context(name, connection_ids(config), environment)

        return run_application(Stage.DEDUP, options, start, partial(dedup, options))


def instant(name: str, text: str) -> datetime:
    """Return a time that has a time zone. Raises `ArgumentTypeError` for other text."""
    try:
        return parse_instant(name, text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def dedup(options: argparse.Namespace, application: Application, work: StreamWork) -> None:
    """Sweep a stream's table until nothing is left, and check the window."""
    alert = sweep(options, application, work)
    if application.is_group:
        work.alerts += [alert] if alert else []
    elif options.window_alert:
        try:
            check_window(application.config, work.stream, application.services)
        except WindowShrunk as shrunk:
            work.alerts.append(str(shrunk))


def sweep(options: argparse.Namespace, application: Application, work: StreamWork) -> str | None:
    """Sweep a stream's table until nothing is left, and return the alert about the last sweep's window.

    Spark is started only if there are tasks.
    """
    alert = None
    sweeps = run_all_sweeps(
        application.config,
        work.stream,
        SparkSweep(application.context),
        since=options.since,
        until=options.until,
        rebuild_index=options.rebuild_index,
        merge_index=application.is_group,
        slots=task_slots(),
        services=application.services,
    )
    for report in sweeps:
        logger.info("%s", report)
        work.reports.append(report.document())
        work.lines.append(str(report))
        work.rows += report.rows
        is_new = report.outcome is not RunOutcome.NOTHING_NEW
        work.did_something |= is_new or options.rebuild_index
        work.committed |= is_new
        if report.outcome is RunOutcome.COMMITTED:
            work.counts.update(rows=report.rows, duplicates=report.duplicates)
        alert = report.alert or alert
    return alert


if __name__ == "__main__":
    end_process(main())
