"""Build a requested backfill: its tasks run on executors.

    spark-submit spark_jobs/backfill.py --stream flights --backfill 20261122_7f3a [--config streams.yaml]

Connections come from the environment (`AIRFLOW_CONN_…`). With exit code 1, the last line names the error, and whether
the same command may succeed later.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from waybill.base.errors import WaybillError
from waybill.base.metering import Tally, meter, working_for
from waybill.config.models import load_valid_streams
from waybill.config.models.quantities import parse_size
from waybill.services.coordination import store_usage
from waybill.tables.backfill.kinds import run_backfill
from waybill.tables.spark import daemon
from waybill.tables.spark.execute import run_each
from waybill.tables.spark.job import (
    configure_logging,
    end_process,
    end_with_spark_submit,
    jvm_cpu_seconds,
    log_failure,
    write_report,
)
from waybill.tables.spark.session import connection_ids, spark_context, task_slots
from waybill.tables.spark.side_by_side import StartedOnce

logger = logging.getLogger("waybill.backfill")


def main(arguments: list[str] | None = None) -> int:
    """Run the job and return its exit code."""
    parser = argparse.ArgumentParser(description="Build a requested backfill.")
    parser.add_argument("--stream", required=True, help="its name in the config")
    parser.add_argument("--backfill", required=True, metavar="ID", help="as `waybill backfill status` shows it")
    parser.add_argument(
        "--config", type=Path, help="the YAML file; default: WAYBILL_CONFIG, else include/config/streams.yaml"
    )
    parser.add_argument("--parallel", type=int, metavar="N", help="execute so many tasks at a time; default: all slots")
    parser.add_argument(
        "--rate", type=parse_size, metavar="SIZE", help="at most so much of the archive a second: 10MiB"
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write what is known of the backfill to FILE, as JSON"
    )
    options = parser.parse_args(arguments)
    configure_logging()
    end_with_spark_submit()
    with daemon.forked_daemon(daemon.warm_up, daemon.run) as environment:
        try:
            config = load_valid_streams(options.config)
            context = StartedOnce[SparkContext](
                lambda: spark_context(f"waybill-backfill-{options.stream}", connection_ids(config), environment)
            )

            def for_each(work: Any, tasks: Any) -> Any:
                return run_each(context, work, tasks)

            try:
                with working_for(options.stream):
                    report = run_backfill(
                        config,
                        options.stream,
                        options.backfill,
                        for_each,
                        parallel=options.parallel,
                        bytes_per_second=options.rate,
                        slots=task_slots(),
                    )
            finally:
                meter.add(Tally(cpu_seconds={"jvm": jvm_cpu_seconds()}))
                store_usage(config, "backfill", options.stream)
        except WaybillError as error:
            log_failure(logger, "backfill", options.stream, error)
            return 1
    for line in report.lines():
        logger.info("%s", line)
    write_report(options.report, report.document())
    return 0


if __name__ == "__main__":
    end_process(main())
