"""Turn new messages of the archive into table rows, for one stream or for several in one Spark application.

    spark-submit spark_jobs/partition.py --stream flights [--config streams.yaml] [--report report.json]
    spark-submit spark_jobs/partition.py --group default

Connections come from the environment (`AIRFLOW_CONN_…`). With exit code 1, the last lines name the problems, and
whether the same command may succeed later.
"""

from __future__ import annotations

import logging

from pyspark import SparkContext

import waybill.tables.spark.quick_imports  # noqa: F401  (pauses garbage collection for the imports below)
from waybill.base.errors import HoursBlocked
from waybill.config.models import Config
from waybill.config.names import Stage
from waybill.tables.partition.partition_report import PartitionReport
from waybill.tables.partition.partition_run import run_to_the_end
from waybill.tables.spark import daemon
from waybill.tables.spark.execute import spark_execute
from waybill.tables.spark.group_job import Application, check_options, run_application
from waybill.tables.spark.job import configure_logging, end_process, end_with_spark_submit, job_parser
from waybill.tables.spark.session import connection_ids, spark_context, task_slots
from waybill.tables.spark.side_by_side import StreamWork
from waybill.tables.staging.driver import RunOutcome

logger = logging.getLogger("waybill.tables.partition")


def main(arguments: list[str] | None = None) -> int:
    """Run the job and return its exit code."""
    parser = job_parser("Turn new messages of the archive into table rows.", "the runs' figures")
    parser.add_argument(
        "--no-alerts",
        dest="alerts",
        action="store_false",
        help="exit with 0 even if a published run has alerts (in Airflow, the task check_alerts raises them)",
    )
    options = parser.parse_args(arguments)
    check_options(parser, options)
    configure_logging()
    end_with_spark_submit()
    with daemon.forked_daemon(daemon.warm_up, daemon.run) as environment:

        def start(config: Config, name: str) -> SparkContext:
            return spark_context(name, connection_ids(config), environment)

        def do(application: Application, work: StreamWork) -> None:
            with work.part():
                partition(application, work, alerts=options.alerts)
            if application.is_group and application.config.stream(work.stream).sink.is_files:
                mark_final_hours(application, work)

        return run_application(Stage.PARTITION, options, start, do)


def partition(application: Application, work: StreamWork, *, alerts: bool) -> None:
    """Run partition runs until all messages of a stream are partitioned. `alerts`: raise those of published runs."""
    report: PartitionReport | None = None
    execute = spark_execute(application.context)
    for report in run_to_the_end(
        application.config,
        work.stream,
        execute,
        slots=task_slots(),
        services=application.services,
        on_audit=application.audits.append,
    ):
        logger.info("%s", report)
        work.reports.append(report.document())
        work.lines.append(str(report))
        work.rows += report.rows
        is_new = report.outcome is not RunOutcome.NOTHING_NEW
        work.did_something |= is_new
        work.committed |= is_new
        if report.outcome is RunOutcome.COMMITTED:
            work.counts.update(rows=report.rows, quarantined=report.quarantined)
        if alerts:
            work.alerts += report.alerts
        for alert in () if alerts else report.alerts:
            logger.error("partition %s", alert)
    if report is not None:
        work.alerts += [
            f"{work.stream}: left out until the archive fault is repaired: {fault}" for fault in report.faults
        ]


def mark_final_hours(application: Application, work: StreamWork) -> None:
    """Mark the final hours of a stream with the sink `files`. Also after a failed run: earlier hours may be final."""
    # Imported here: it brings the client of Kafka, which most applications do not need.
    from waybill.tables.partition.files_sink.finalize import finalize, hours_blocked

    report = finalize(application.config, work.stream, services=application.services)
    for note in report.notes:
        logger.warning("%s: %s", work.stream, note)
    for key in report.removed:
        logger.info("%s: removed %s, the file of an abandoned plan", work.stream, key)
    logger.info("%s", report)
    work.lines.append(str(report))
    work.did_something |= bool(report.marked or report.unmarked or report.removed)
    if report.blocked:
        raise HoursBlocked(hours_blocked(report))


if __name__ == "__main__":
    end_process(main())
