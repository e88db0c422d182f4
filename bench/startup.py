"""The cost of starting: CPU seconds of whole processes that do what a task of an ingest DAG does.

    python bench/startup.py [--repeats N] [--case NAME] [--running BUCKET] [--json FILE]

- `python`: the interpreter alone.
- `config`, `config-200`: import `waybill.config.models`, and load a file of one stream, or of 200.
- `plan-idle`: load the config and plan a run with nothing new, of one stream with three topic-partitions.
- `lane-idle`: load the config and run a lane whose three topic-partitions have nothing new.
- `lane-one`: the same, and one message is new: it is archived as an object.

Each figure is the median over the repeats of user and system time, from the start of the process to its end, as the
kernel reports it (`wait4`). `least` is the least of them. The servers' CPU is not part of it. The processes may write
Python's bytecode, as the tasks of the local stack may: with PYTHONDONTWRITEBYTECODE, which some machines set, each
start would compile every module again, for about as much CPU as all the rest.

Without `--running` the script starts Kafka, ZooKeeper and S3; with it, connections come from the environment
(AIRFLOW_CONN_…), and BUCKET must exist.
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
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from services import BUCKET, create_topic, produce, run_name, running_services, topic_name

STREAM = "bench"
PARTITIONS = 3
MANY_STREAMS = 200

_CONFIG = "from waybill.config.models import load_config\nconfig = load_config()\n"
_PLAN = f"{_CONFIG}from waybill.archive.ingest import plan_lanes\nassert plan_lanes(config, {STREAM!r}) == []\n"
_LANE = f"""{_CONFIG}
from waybill.archive.ingest import Lane, LaneShare, run_lane
topic = config.stream({STREAM!r}).topics[0]
shares = [LaneShare(stream={STREAM!r}, topic=topic, partition=n, estimated_bytes=0) for n in range({PARTITIONS})]
report = run_lane(config, Lane(number=1, shares=tuple(shares)))
assert not report.failures, report
"""


@dataclass(frozen=True)
class Row:
    """The figures of one case."""

    case: str
    cpu_seconds: float
    """The median over the repeats."""
    least_cpu_seconds: float
    seconds: float
    """The median of the wall time."""
    samples: list[float] = field(default_factory=list)
    """The CPU seconds of each repeat."""


def measure(case: str, code: str, repeats: int, prepare: Callable[[], None] | None = None) -> Row:
    """Run `code` in a new Python process, `repeats` times after one unmeasured start, and return the figures.

    `prepare` is called before each start.
    """
    print(f"{case} …", file=sys.stderr, flush=True)
    samples = []
    for _ in range(repeats + 1):
        if prepare is not None:
            prepare()
        samples.append(run_python(code))
    cpu, seconds = zip(*samples[1:], strict=True)
    return Row(case, statistics.median(cpu), min(cpu), statistics.median(seconds), list(cpu))


def run_python(code: str) -> tuple[float, float]:
    """Run `code` in a new process; return its CPU seconds and wall seconds."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"the process ended with exit code {process.returncode}:\n{code}")
    return usage.ru_utime + usage.ru_stime, seconds


def write_config(path: Path, topics: list[str]) -> Path:
    """Write a config with a stream for each topic; the first is called `bench`."""
    streams: dict[str, Any] = {}
    for number, topic in enumerate(topics):
        streams[f"{STREAM}{number or ''}"] = {
            "topics": [topic],
            "upload": {"max_age": "0s"},
            "ingest": {"budget": "50s"},
            "parser": {"name": "json", "event_time": {"field": "event_time", "format": "epoch_ms"}, "message_id": "id"},
            "columns": {"amount": "double", "name": {"type": "string", "field": "customer.name"}},
            "table": f"bench.messages_{number}",
        }
    document = {
        "version": 1,
        "storage": {"bucket": os.environ[BUCKET], "prefix": run_name()},
        "zookeeper": {"root": run_name()},
        "streams": streams,
    }
    # libyaml writes one entry per line, so that the file has the size that a person's file would have.
    import yaml

    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def run(arguments: argparse.Namespace, folder: Path) -> list[Row]:
    """Measure the cases that `--case` selects."""
    topic = topic_name("startup")
    create_topic(topic, PARTITIONS)
    one = write_config(folder / "one.yaml", [topic])
    many = write_config(folder / "many.yaml", [topic, *(f"{topic}-{n}" for n in range(1, MANY_STREAMS))])
    os.environ["WAYBILL_CONFIG"] = str(one)
    one_message: Callable[[], None] = lambda: produce(topic, [(b"key", b'{"event_time": 1700000000000}', 0)])  # noqa: E731
    produce(topic, [(b"key", b"{}", partition) for partition in range(PARTITIONS)])
    run_python(_LANE)  # archives the first messages, so that nothing is new afterwards

    def use(config: Path) -> Callable[[], None]:
        return lambda: os.environ.update(WAYBILL_CONFIG=str(config))

    cases: list[tuple[str, str, Callable[[], None] | None]] = [
        ("python", "pass", None),
        ("config", _CONFIG, use(one)),
        ("config-200", _CONFIG, use(many)),
        ("plan-idle", _PLAN, use(one)),
        ("lane-idle", _LANE, use(one)),
        ("lane-one", _LANE, one_message),
    ]
    return [
        measure(case, code, arguments.repeats, prepare)
        for case, code, prepare in cases
        if not arguments.case or case in arguments.case
    ]


def show(rows: list[Row]) -> None:
    table = Table(title="Start-up of a process", title_justify="left")
    for heading in ("case", "CPU s", "least", "wall s"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for row in rows:
        table.add_row(row.case, f"{row.cpu_seconds:.3f}", f"{row.least_cpu_seconds:.3f}", f"{row.seconds:.3f}")
    Console(width=max(100, Console().width)).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    parser.add_argument("--repeats", type=int, default=15, help="measured starts of each case")
    parser.add_argument("--case", action="append", help="only this case; may be repeated")
    parser.add_argument("--running", metavar="BUCKET", help="use the running services, and this bucket")
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with running_services(arguments.running), tempfile.TemporaryDirectory() as folder:
        rows = run(arguments, Path(folder))
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
