"""What maintenance of a table of many small files takes, by procedure, and what it leaves. On the local stack:

    python bench/maintenance.py [--runs N] [--days N] [--rows N] [--json FILE]

A stream is partitioned in `runs` commits, each of which puts `rows` messages of about 60 bytes into each of `days`
partitions: runs × days small files. Then a run of maintenance compacts them, and a second one, at a time when all
snapshots but the newest have expired, removes what is left of the first state.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--rows", type=int, default=100, help="messages in each file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the reports to FILE")
    options = parser.parse_args()

    from devstack import Stack

    with tempfile.TemporaryDirectory(prefix="waybill-bench-") as folder:
        stack = Stack.start(Path(folder) / "stack")
        try:
            os.environ.update(stack.environment())
            documents = measure(options)
        finally:
            stack.stop(grace_seconds=0.0)
    if options.json:
        options.json.write_text(json.dumps(documents, indent=2) + "\n")


def measure(options: argparse.Namespace) -> list[object]:
    """The two reports, as documents."""
    from partition_scenes import DAY_MS, event, new_scene

    from waybill.connections import CatalogEndpoint, S3Endpoint, find_connection
    from waybill.maintenance.run import run_maintenance
    from waybill.names import TopicPartition
    from waybill.spark.catalog import spark_catalog
    from waybill.spark.iceberg import attach_catalog
    from waybill.spark.iceberg import SparkProcedures
    from waybill.spark.session import spark_session

    scene, tp, count = new_scene(), TopicPartition("flights", 0), options.days * options.rows
    began = time.perf_counter()
    for run in range(options.runs):
        first = run * count
        scene.put(tp, [event(first + i, i % options.days * DAY_MS + first + i) for i in range(count)])
        scene.run()
    print(f"{options.runs} partition runs: {time.perf_counter() - began:.1f} s")

    began = time.perf_counter()
    catalog = spark_catalog(CatalogEndpoint.of(find_connection("iceberg_default")), S3Endpoint.of(find_connection("aws_default")))
    session = spark_session("bench-maintenance", (), {"spark.sql.shuffle.partitions": "16"})
    attach_catalog(session, catalog)
    session.sql("SELECT 1").collect()
    print(f"Spark SQL has started: {time.perf_counter() - began:.1f} s")

    reports = []
    for later in (timedelta(0), timedelta(days=30)):
        config = scene.with_stream(maintenance={"keep_last": 1})

        def now(later: timedelta = later) -> datetime:
            return datetime.now(UTC) + later

        report = run_maintenance(
            config,
            "flights",
            lambda now=now: SparkProcedures(session, catalog.name, now),
            now=now,  # type: ignore[misc]
        )
        reports.append(report)
        print(report)
        for step in (*report.tables[0].steps, *report.store):
            print(f"    {step}")
    scene.check_exactly_once()
    session.stop()
    return [report.document() for report in reports]


if __name__ == "__main__":
    main()
