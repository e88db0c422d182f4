"""Maintain a table of many small files: the seconds of each procedure, and what it leaves.

    python bench/maintenance.py [--runs N] [--days N] [--rows N] [--json FILE]

A stream is partitioned in `runs` commits, each of which adds `rows` messages of about 60 bytes to each of `days`
partitions: runs × days small files. A first maintenance run compacts them. A second one, 30 days later by its clock,
expires all snapshots but the newest, and so removes the small files. The script starts a local stack.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from services import running_services

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))


def measure(arguments: argparse.Namespace) -> list[object]:
    """Return the reports of both maintenance runs, as JSON documents."""
    from partition_scenes import DAY_MS, event, new_scene

    from waybill.config.connections import CatalogEndpoint, S3Endpoint, find_connection
    from waybill.config.names import TopicPartition
    from waybill.tables.maintenance.maintenance_run import run_maintenance
    from waybill.tables.spark.catalog import spark_catalog
    from waybill.tables.spark.iceberg import SparkProcedures, attach_catalog
    from waybill.tables.spark.session import spark_session

    scene, tp, count = new_scene(), TopicPartition("flights", 0), arguments.days * arguments.rows
    start = time.perf_counter()
    for first in range(0, arguments.runs * count, count):
        scene.put(tp, [event(first + i, i % arguments.days * DAY_MS + first + i) for i in range(count)])
        scene.run()
    print(f"{arguments.runs} partition runs: {time.perf_counter() - start:.1f} s")

    start = time.perf_counter()
    iceberg, s3 = find_connection("iceberg_default"), find_connection("aws_default")
    catalog = spark_catalog(CatalogEndpoint.of(iceberg), S3Endpoint.of(s3))
    session = spark_session("bench-maintenance", (), {"spark.sql.shuffle.partitions": "16"})
    attach_catalog(session, catalog)
    session.sql("SELECT 1").collect()
    print(f"start of Spark SQL: {time.perf_counter() - start:.1f} s")

    reports = []
    for delay in (timedelta(0), timedelta(days=30)):
        config = scene.with_stream(maintenance={"keep_last": 1})

        def now(delay: timedelta = delay) -> datetime:
            return datetime.now(UTC) + delay

        def procedures(now: object = now) -> SparkProcedures:
            return SparkProcedures(session, catalog.name, now)

        report = run_maintenance(config, "flights", procedures, now=now)
        print(report)
        for step in (*report.tables[0].steps, *report.store):
            print(f"    {step}")
        reports.append(report.document())
    scene.check_exactly_once()
    session.stop()
    return reports


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--rows", type=int, default=100, help="messages in each file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the reports to FILE")
    arguments = parser.parse_args()
    with running_services():
        reports = measure(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(reports, indent=2) + "\n")


if __name__ == "__main__":
    main()
