"""The cost of a watch: CPU and wall seconds of `waybill watch` for many streams, and of the measuring alone.

    python bench/watch.py [--streams N] [--repeats N] [--json FILE]

The script starts the local stack with Airflow, and creates `--streams` streams of three topic-partitions each, with
tables of `--snapshots` published runs and with dedup tables. The rows, each without and with Airflow's API, by turns:

- `process`: a whole process `waybill watch`, from its start to its end, as cron runs it: CPU and wall seconds
  (`wait4`). The first watch, which reads the tables of all streams, is not measured.
- `measuring`: the part of it that measures, stores and sends, without imports, as the process reports it: wall seconds.

Each figure is the median over the repeats. The servers' CPU is not part of it. Airflow's DAGs are paused, so no watch
runs beside the measured one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml
from fleet import create_topics, write_config
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """The figures of one case; None where the case has none."""

    case: str
    airflow: bool
    """Whether the watch asks Airflow."""
    streams: int
    cpu_seconds: float | None
    wall_seconds: float


def create_tables(path: Path, snapshots: int) -> None:
    """Create the tables of all streams, as they are after some published runs."""
    from waybill.config.models import load_config
    from waybill.config.names import TopicPartition
    from waybill.services.coordination import CommittedOffset, Coordinator
    from waybill.tables.iceberg import catalog_of, commit_snapshot, ensure_dedup_tables, ensure_tables
    from waybill.tables.iceberg.progress import progress_text
    from waybill.tables.iceberg.state import PROGRESS_PROPERTY

    config = load_config(path)
    with catalog_of(config) as catalog:
        for name, stream in config.streams.items():
            tps = [TopicPartition(topic, number) for topic in stream.topics for number in range(3)]
            tables = ensure_tables(catalog, stream)
            ensure_dedup_tables(catalog, stream, tables.main)
            for _ in range(snapshots):
                properties = {
                    PROGRESS_PROPERTY: progress_text(dict.fromkeys(tps, 0)),
                    "waybill.quarantined": "0",
                    "waybill.rows": "1000",
                }
                assert commit_snapshot(tables.main, properties)
            with Coordinator.of(config, name) as coordinator:
                for tp in tps:
                    coordinator.write_committed(tp, CommittedOffset(0), -1)


def with_airflow(path: Path) -> Path:
    """Write the config again beside `path`, with Airflow's connection, and return the path of that file."""
    document = yaml.safe_load(path.read_text())
    document["airflow"] = {"connection": "waybill_airflow"}
    asking = path.with_name("with-airflow.yaml")
    asking.write_text(yaml.safe_dump(document, sort_keys=False))
    return asking


def watch(path: Path) -> tuple[float, float, float]:
    """Run a watch in a process. Return its CPU seconds, its wall seconds, and those without imports."""
    command = [sys.executable, "-m", "waybill.interfaces.cli", "watch", "--json"]
    environment = {**os.environ, "WAYBILL_CONFIG": str(path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        report = json.loads(output.read())
    assert process.returncode == 0, report
    return usage.ru_utime + usage.ru_stime, wall, report["seconds"]


def main() -> None:
    """Parse the command line, measure, and print the rows."""
    from devstack import Stack

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--snapshots", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="waybill-bench-") as directory:
        path = write_config(Path(directory) / "streams.yaml", arguments.streams)
        configs = {False: path, True: with_airflow(path)}
        os.environ["WAYBILL_CONFIG"] = str(path)
        with Stack.start(Path(directory) / "stack", on_progress=console.print) as stack:
            os.environ.update(stack.environment())
            console.print(f"creating {arguments.streams} streams")
            create_topics(stack.bootstrap_servers, arguments.streams)
            create_tables(path, arguments.snapshots)
            stack.start_airflow({"WAYBILL_CONFIG": str(path)})
            with stack.airflow.client() as airflow:
                airflow.wait_for_dag("partition", seconds=180)
            for config in configs.values():
                watch(config)  # compiles the modules
            runs = [{asks: watch(config) for asks, config in configs.items()} for _ in range(arguments.repeats)]
    rows = []
    for asks in configs:
        cpu, wall, measuring = (statistics.median(each) for each in zip(*(run[asks] for run in runs), strict=True))
        rows.append(Row("process", asks, arguments.streams, round(cpu, 2), round(wall, 2)))
        rows.append(Row("measuring", asks, arguments.streams, None, round(measuring, 2)))
    table = Table("case", "asks Airflow", "streams", "CPU s", "wall s")
    for row in rows:
        table.add_row(
            row.case,
            "yes" if row.airflow else "no",
            str(row.streams),
            str(row.cpu_seconds or ""),
            str(row.wall_seconds),
        )
    console.print(table)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"rows": [asdict(row) for row in rows]}, indent=2))


if __name__ == "__main__":
    main()
