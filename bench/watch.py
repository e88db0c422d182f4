"""The cost of a watch: CPU and wall seconds of `waybill watch` for many streams, and of the measuring alone.

    python bench/watch.py [--streams N] [--repeats N] [--json FILE]

The script starts Kafka, ZooKeeper and S3, and creates `--streams` streams of three topic-partitions each, with tables
of `--snapshots` published runs and with dedup tables. The rows:

- `process`: a whole process `waybill watch`, from its start to its end, as cron runs it: CPU and wall seconds
  (`wait4`). The first watch, which reads the tables of all streams, is not measured.
- `measuring`: the part of it that measures, stores and sends, without imports, as the process reports it: wall seconds.

Each figure is the median over the repeats. The servers' CPU is not part of it.
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

from fleet import create_topics, write_config
from rich.console import Console
from rich.table import Table
from services import bootstrap_servers, running_services


@dataclass(frozen=True)
class Row:
    """The figures of one case; None where the case has none."""

    case: str
    streams: int
    cpu_seconds: float | None
    wall_seconds: float


def create_tables(path: Path, snapshots: int) -> None:
    """Create the tables of all streams, as they are after some published runs."""
    from waybill.config import load_config
    from waybill.coordination import CommittedOffset, Coordinator
    from waybill.names import TopicPartition
    from waybill.tables import catalog_of, commit_snapshot, ensure_dedup_tables, ensure_tables
    from waybill.tables.progress import progress_text
    from waybill.tables.state import PROGRESS_PROPERTY

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


def watch(path: Path) -> tuple[float, float, float]:
    """Run a watch in a process. Return its CPU seconds, its wall seconds, and those without imports."""
    command = [sys.executable, "-m", "waybill.cli", "watch", "--json"]
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--snapshots", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as directory, running_services():
        path = write_config(Path(directory) / "streams.yaml", arguments.streams)
        console.print(f"creating {arguments.streams} streams")
        create_topics(",".join(bootstrap_servers()), arguments.streams)
        create_tables(path, arguments.snapshots)
        watch(path)  # compiles the modules
        runs = [watch(path) for _ in range(arguments.repeats)]
    cpu, wall, measuring = (statistics.median(each) for each in zip(*runs, strict=True))
    rows = [
        Row("process", arguments.streams, round(cpu, 2), round(wall, 2)),
        Row("measuring", arguments.streams, None, round(measuring, 2)),
    ]
    table = Table("case", "streams", "CPU s", "wall s")
    for row in rows:
        table.add_row(row.case, str(row.streams), str(row.cpu_seconds or ""), str(row.wall_seconds))
    console.print(table)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"rows": [asdict(row) for row in rows]}, indent=2))


if __name__ == "__main__":
    main()
