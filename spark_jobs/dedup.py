"""Take what the table of a stream gained since the last sweep, and keep each key once.

    spark-submit spark_jobs/dedup.py --stream flights [--config streams.yaml] [--report report.json]

Connections come from the environment (`AIRFLOW_CONN_…`). Exit code 1: something needs a decision, or the same command
again; the last line says which.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial

from pyspark import SparkContext

from waybill.config import load_config
from waybill.dedup.alert import check_window
from waybill.dedup.first_sweep import check_range, parse_instant
from waybill.dedup.report import SweepReport
from waybill.dedup.sweep import sweep_to_the_end
from waybill.errors import ConfigError, WaybillError
from waybill.spark import daemon
from waybill.spark.execute import SparkSweep
from waybill.spark.fork import forked
from waybill.spark.job import end_process, job_parser, log_failure, set_up_log, write_report
from waybill.spark.session import connection_ids, spark_context, task_slots

logger = logging.getLogger("waybill.dedup")


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    parser = job_parser("Take what a stream's table gained, and keep each key once.", "the sweeps' figures")
    parser.add_argument(
        "--since",
        type=partial(instant, "since"),
        metavar="TIME",
        help="where nothing was swept yet: leave out for good what the table had gained before: 2026-01-01T00:00:00Z",
    )
    parser.add_argument(
        "--until",
        type=partial(instant, "until"),
        metavar="TIME",
        help="sweep only what the table had gained by then: 2026-01-31T00:00:00Z; a plan that an earlier sweep has "
        "made is carried out as it is",
    )
    parser.add_argument(
        "--rebuild-index",
        action="store_true",
        help="first build the index of keys anew from the unique table; what a sweep decides is the same",
    )
    parser.add_argument(
        "--no-window-alert",
        dest="window_alert",
        action="store_false",
        help="end well even if sweeps see less far back than the config promises: somebody else looks (in Airflow, the "
        "task check_window)",
    )
    options = parser.parse_args(arguments)
    try:
        check_range(options.since, options.until, datetime.now(UTC))
    except ConfigError as error:
        parser.error(str(error))
    set_up_log()
    with forked(daemon.warm_up_dedup, daemon.run) as environment:
        return carry_out(options, environment)


def instant(name: str, text: str) -> datetime:
    """A time with its time zone. Raises `ArgumentTypeError` otherwise."""
    try:
        return parse_instant(name, text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def carry_out(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """The exit code. `environment`: for Spark's workers on this machine."""
    reports: list[SweepReport] = []
    try:
        for report in sweep(options, environment):
            logger.info("%s", report)
            reports.append(report)
    except WaybillError as error:
        log_failure(logger, "dedup", options.stream, error)
        return 1
    write_report(options.report, [report.document() for report in reports])
    return 1 if options.window_alert and is_shrunk(options) else 0


def is_shrunk(options: argparse.Namespace) -> bool:
    """Whether sweeps see less far back than they should, or nobody can say; how far they see is logged."""
    try:
        check_window(load_config(options.config), options.stream)
    except WaybillError as error:
        logger.error("dedup %s: %s: %s", options.stream, type(error).__name__, error)
        return True
    return False


def sweep(options: argparse.Namespace, environment: Mapping[str, str]) -> Iterator[SweepReport]:
    """Run the job until nothing of an earlier run is left; Spark starts only if there is something to do."""
    config = load_config(options.config)

    def start() -> SparkContext:
        return spark_context(f"waybill-dedup-{options.stream}", connection_ids(config), environment)

    return sweep_to_the_end(
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
