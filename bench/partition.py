"""The archive to a table: Waybill's partition job beside two Spark jobs as people write them, and beside its own parts.

    python bench/partition.py [--section SECTION] [--json FILE] [--repeats N] [--running BUCKET]

Sections, each a table; without `--section` all of them:

- `rivals`: the same messages, zstd record batches in several topic-partitions, to committed files on `local[2]`, from
  `spark-submit` to its end. `waybill` is the hourly job over its backup objects. `spark-kafka` reads the topic with
  Spark's Kafka source and `from_json`, to the same columns; `spark-kafka-all` to a column for every field.
  `binary-files` decodes the backup objects with kafka-python in an RDD; it is given `--sample` messages, and its rates
  are taken from those. The rivals write Parquet to S3 by s3a, which is no table and no commit: a reader sees half of it
  before the end, and a run again repeats it all.
- `parts`: what a task does, each step alone over the same messages, and the task as a whole; one thread, one core.
- `memory`: one task over objects of several sizes: the peak follows `partition.memory`.
- `data`: the whole job over 1, 4 and 16 times as much.
- `objects`: the whole job over the same messages in 10, 100, 1,000 and 10,000 backup objects.

CPU seconds and memory are those of all processes of a run, JVMs included; not of Kafka and S3. Without `--running` the
script starts Kafka, ZooKeeper and S3; with it, connections come from the environment and BUCKET must exist.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time

from _partition.data import DATA
from _partition.memory import MEMORY
from _partition.objects import OBJECTS
from _partition.parts import PARTS
from _partition.rivals import RIVALS
from _partition.section import Section, measure
from _report import Row, argument_parser, in_fresh_process, write_json
from ingest import RUN, services

SECTIONS = {section.name: section for section in (RIVALS, PARTS, MEMORY, DATA, OBJECTS)}


def run_section(section: Section, arguments: argparse.Namespace) -> list[Row]:
    cases = [c for c in section.cases(arguments) if not arguments.case or {c.name, c.case} & set(arguments.case)]
    print(f"making the input of {section.name} …", file=sys.stderr, flush=True)
    section.make_input(arguments)
    rows, options = [], [*sys.argv[1:], *section.passed_on()]
    for case in cases:
        print(f"{section.name}: {case.name} {case.case} …", file=sys.stderr, flush=True)
        rows.append(in_fresh_process(f"{section.name}/{case.name}", case.case, options))
    section.show(rows)
    return rows


def run_case(section: Section, name: str, variant: str, arguments: argparse.Namespace) -> None:
    """One case, in this process; prints its row as JSON."""
    (case,) = (case for case in section.cases(arguments) if (case.name, case.case) == (name, variant))
    print(json.dumps(dataclasses.asdict(measure(section, case, arguments))))


def run() -> None:
    parser = argument_parser("the archive to a table: messages/s, CPU seconds and memory")
    parser.set_defaults(repeats=3)
    parser.add_argument("--section", action="append", choices=SECTIONS, help="only this one; may be repeated")
    parser.add_argument("--messages", type=int, default=2_000_000, help="of the rivals")
    parser.add_argument("--sample", type=int, default=200_000, help="messages of binary-files")
    parser.add_argument("--few", type=int, default=500_000, help="messages of parts and objects, and 1 × data")
    parser.add_argument("--times", type=int, nargs="+", default=[1, 4, 16], help="of data")
    parser.add_argument("--objects", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--running", metavar="BUCKET", help="use the connections of the environment and this bucket")
    parser.add_argument("--jars", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        section, name = arguments.only[0].split("/")
        run_case(SECTIONS[section], name, arguments.only[1], arguments)
        return
    os.environ[RUN] = f"{int(time.time())}"
    with services(arguments.running):
        rows = [row for name in arguments.section or SECTIONS for row in run_section(SECTIONS[name], arguments)]
    if arguments.json:
        write_json(rows, arguments.json)


if __name__ == "__main__":
    run()
