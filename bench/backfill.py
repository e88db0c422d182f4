"""What a backfill costs: building a whole table again, and replacing 1 % of it, beside the hourly partition job.

    python bench/backfill.py [--messages N] [--repeats N] [--running BUCKET] [--json FILE]

All rows read the same archive, on `local[2]`, from the start of `spark-submit` to its end. They take turns, and the
table shows medians.

- `partition`: the partition job, with its built-in checks, into a new table.
- `backfill-all`: the job that builds all of this table again, up to its branch and with its audit.
- `backfill-all-diff`: the same job as people run it: it also compares all rows with those of the table.
- `backfill-range`: 1 % of the offsets of each topic-partition: the whole job, with the diff, and then the promotion by
  `waybill backfill promote`.

CPU seconds and memory are those of all processes, JVMs included, but not of S3. Without `--running` the script starts
the services; with it, connections come from the environment.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from measurement import (
    MIB,
    Case,
    CommandCost,
    Row,
    Sample,
    Work,
    argument_parser,
    print_table,
    run_cases,
    run_command,
    run_only_case,
    write_json,
)
from partition import PARTITIONS, config_of, create_archive, remove, table_prefix
from services import running_services, topic_name

if TYPE_CHECKING:
    from waybill.config.models import Config
    from waybill.tables.backfill.choice import RangeChoice

NAMES = ("partition", "backfill-all", "backfill-all-diff", "backfill-range")
_STREAM = "backfill"
_ROOT = Path(__file__).parents[1]
_BIN = Path(sys.executable).parent
_SPARK_SUBMIT = (str(_BIN / "spark-submit"), "--master", "local[2]")
_WITHOUT_DIFF = "--without-diff"


def job(name: str, _: str, arguments: argparse.Namespace) -> Work:
    """Return the work of a row. Each call has a new table; a backfill's table is filled before, which is not timed."""

    def work() -> Sample:
        config = config_of(_STREAM)
        with tempfile.TemporaryDirectory() as folder:
            file, report = Path(folder) / "streams.yaml", Path(folder) / "report.json"
            file.write_text(config.model_dump_json())  # JSON is YAML
            cost = _submit("spark_jobs/partition.py", file, report)
            (found,) = json.loads(report.read_text())
            if found["quarantined"] or found["faults"]:
                raise RuntimeError(f"some messages did not become rows: {found}")
            sample = Sample(found["rows"], found["backup_bytes"], {}, *cost)
            if name != "partition":
                sample = _backfill(name, config, file, report, arguments.messages)
        for prefix in (table_prefix(config, _STREAM), f"{config.storage.prefix}/backfills/"):
            remove(prefix)
        print(f"{name}: {sample.cpu_seconds:.2f} CPU seconds", file=sys.stderr, flush=True)
        return sample

    return work


def _backfill(name: str, config: Config, file: Path, report: Path, messages: int) -> Sample:
    from waybill.tables.backfill.kinds import request_backfill
    from waybill.tables.backfill.planning import Trigger

    trigger = Trigger(_STREAM, _choice(name, messages), "bench", "bench", slots=2)  # of local[2]
    request, figures = request_backfill(config, trigger)
    script = "bench/backfill.py" if name == "backfill-all" else "spark_jobs/backfill.py"
    before = (_WITHOUT_DIFF,) if name == "backfill-all" else ()
    cost = _submit(script, file, report, *before, "--backfill", request.id)
    found = json.loads(report.read_text())
    if found["quarantined"] or found["rows"] != request.ranges.offsets:
        raise RuntimeError(f"some messages did not become rows: {found}")
    if name == "backfill-range":
        command = [str(_BIN / "waybill"), "backfill", "promote", _STREAM, request.id, "--reason", "bench"]
        promotion = run_command(command, env={**os.environ, "WAYBILL_CONFIG": str(file)})
        cost = CommandCost(
            cost.seconds + promotion.seconds,
            cost.cpu_seconds + promotion.cpu_seconds,
            max(cost.peak_bytes, promotion.peak_bytes),
        )
        extra = {"promotion_seconds": promotion.seconds, "promotion_cpu_seconds": promotion.cpu_seconds}
        return Sample(found["rows"], figures.size_bytes, extra, *cost)
    return Sample(found["rows"], figures.size_bytes, {}, *cost)


def _choice(name: str, messages: int) -> RangeChoice:
    from waybill.tables.backfill.choice import RangeChoice

    if name != "backfill-range":
        return RangeChoice.parse(everything=True)
    each = messages // PARTITIONS
    first, count = each // 2, each // 100
    topic = topic_name(_STREAM)
    return RangeChoice.parse(offsets=[f"{topic}/{number}@{first}-{first + count - 1}" for number in range(PARTITIONS)])


def _submit(script: str, file: Path, report: Path, *options: str) -> CommandCost:
    from waybill.tables.spark.job import with_brief_jvm

    files = ["--stream", _STREAM, "--config", str(file), "--report", str(report)]
    return run_command([*_SPARK_SUBMIT, str(_ROOT / script), *options, *files], env=with_brief_jvm(os.environ))


def build_without_diff() -> None:
    """Run the Spark job of the command line, which ends when the branch is audited. Called by spark-submit."""
    from waybill.tables.backfill import build

    build._Build.diff = lambda *_: None  # type: ignore[method-assign]
    sys.argv.remove(_WITHOUT_DIFF)
    runpy.run_path(str(_ROOT / "spark_jobs/backfill.py"), run_name="__main__")


def cases(_: argparse.Namespace) -> list[Case]:
    return [Case(name, "2M", partial(job, name), warm_up=False, repeats=1) for name in NAMES]


def run_in_turns(arguments: argparse.Namespace) -> list[Row]:
    """Run all cases one after the other, `--repeats` times, and return the medians of each."""
    rounds = [run_cases(cases(arguments), arguments) for _ in range(arguments.repeats)]
    rows = []
    for each in zip(*rounds, strict=True):
        cpu = [row.cpu_seconds for row in each]
        rows.append(
            replace(
                each[0],
                seconds=statistics.median(row.seconds for row in each),
                cpu_seconds=statistics.median(cpu),
                peak_rss_bytes=max(row.peak_rss_bytes for row in each),
                extra={**each[0].extra, "least_cpu_seconds": min(cpu), "most_cpu_seconds": max(cpu)},
            )
        )
    return rows


def show(rows: Sequence[Row]) -> None:
    base = next((row for row in rows if row.name == "partition"), None)
    columns = {
        "name": lambda row: row.name,
        "case": lambda row: row.case,
        "messages": lambda row: f"{row.messages:,}",
        "seconds": lambda row: f"{row.seconds:.1f}",
        "messages/s": lambda row: f"{row.messages_per_second:,.0f}",
        "× partition": lambda row: f"{row.messages_per_second / base.messages_per_second:.2f}" if base else "",
        "CPU s": lambda row: f"{row.cpu_seconds:.2f}",
        "least": lambda row: f"{row.extra['least_cpu_seconds']:.2f}",
        "most": lambda row: f"{row.extra['most_cpu_seconds']:.2f}",
        "peak MiB": lambda row: f"{row.peak_rss_bytes / MIB:,.0f}",
    }
    print_table("backfills beside the partition job, local[2]", rows, columns)


def main() -> None:
    if _WITHOUT_DIFF in sys.argv:
        build_without_diff()
        return
    parser = argument_parser(__doc__, repeats=3)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--running", metavar="BUCKET", help="use the connections of the environment and this bucket")
    arguments = parser.parse_args()
    if arguments.only:
        run_only_case(cases(arguments), arguments)
        return
    with running_services(arguments.running):
        print("preparing the input …", file=sys.stderr, flush=True)
        create_archive(_STREAM, messages=arguments.messages, objects=PARTITIONS)
        rows = run_in_turns(arguments)
    show(rows)
    write_json(rows, arguments.json)


if __name__ == "__main__":
    main()
