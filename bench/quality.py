"""What audits cost: the hourly partition job without any check, with the built-in checks, and with 12 expectations.

    python bench/quality.py [--messages N] [--repeats N] [--running BUCKET] [--json FILE]

All jobs read the same archive, with the same columns, on `local[2]`, from the start of `spark-submit` to its end. They
take turns, and the table shows medians. CPU seconds and memory are those of all processes of a job, JVMs included, but
not of S3. Without `--running` the script starts the services; with it, connections come from the environment.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from measurement import (
    MIB,
    Case,
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
from services import running_services

NAMES = ("without", "built-in", "gx-12")
_STREAM = "quality"
_ROOT = Path(__file__).parents[1]
_SPARK_SUBMIT = (str(Path(sys.executable).parent / "spark-submit"), "--master", "local[2]")

COLUMNS = {"carrier": "string", "dest": "string", "flight": "int", "price": "double", "session": "string"}

_CARRIERS = ["UA", "AA", "DL", "B6", "WN", "EV", "MQ"]
_AIRPORTS = ["LAX", "SFO", "ATL", "ORD", "MIA", "BOS", "IAH", "DEN"]
EXPECTATIONS: list[dict[str, Any]] = [
    {"expect_table_row_count_to_be_between": {"min_value": 1}},
    {"expect_column_values_to_not_be_null": {"column": "carrier"}, "severity": "critical"},
    {"expect_column_values_to_be_in_set": {"column": "carrier", "value_set": _CARRIERS}},
    {"expect_column_distinct_values_to_be_in_set": {"column": "dest", "value_set": _AIRPORTS}},
    {"expect_column_values_to_match_regex": {"column": "dest", "regex": "^[A-Z]{3}$"}},
    {"expect_column_value_lengths_to_equal": {"column": "session", "value": 16}},
    {"expect_column_values_to_not_be_null": {"column": "price"}},
    {"expect_column_values_to_be_between": {"column": "price", "min_value": 0, "max_value": 900}},
    {"expect_column_mean_to_be_between": {"column": "price", "min_value": 400, "max_value": 500}},
    {"expect_column_values_to_be_between": {"column": "flight", "min_value": 1, "max_value": 9999}},
    {
        "expect_column_values_to_be_between": {
            "column": "price",
            "min_value": 10,
            "mostly": 0.95,
            "row_condition": 'carrier == "UA"',
            "condition_parser": "pandas",
        }
    },
    {"expect_column_values_to_be_unique": {"column": "message_id"}},
]

_CHECKS = (
    "rows_match_messages",
    "offsets_unique",
    "quarantine_share",
    "event_time_null_share",
    "message_id_null_share",
    "clock_skew",
    "volume",
    "column_became_null",
)


def quality_of(name: str) -> dict[str, Any]:
    """Return the section `quality` of a case."""
    if name == "without":
        return {"checks": dict.fromkeys(_CHECKS, "off")}
    return {"expectations": EXPECTATIONS} if name == "gx-12" else {}


def job(name: str, *_: object) -> Work:
    """The partition job of a case, over the archive that all cases share."""
    from waybill.tables.spark.job import with_brief_jvm

    def work() -> Sample:
        config = config_of(_STREAM)
        document = json.loads(config.model_dump_json())
        document["streams"][_STREAM] |= {"columns": COLUMNS, "quality": quality_of(name)}
        with tempfile.TemporaryDirectory() as folder:
            file, report_file = Path(folder) / "streams.yaml", Path(folder) / "report.json"
            file.write_text(json.dumps(document))  # JSON is YAML
            command = [*_SPARK_SUBMIT, str(_ROOT / "spark_jobs/partition.py"), "--stream", _STREAM]
            cost = run_command(
                [*command, "--config", str(file), "--report", str(report_file)], env=with_brief_jvm(os.environ)
            )
            (report,) = json.loads(report_file.read_text())
            _check_audit(name, file)
        remove(table_prefix(config, _STREAM))
        print(f"{name}: {cost.cpu_seconds:.2f} CPU seconds", file=sys.stderr, flush=True)
        if report["quarantined"] or report["faults"]:
            raise RuntimeError(f"some messages did not become rows: {report}")
        return Sample(report["rows"], report["backup_bytes"], {}, *cost)

    return work


def _check_audit(name: str, config_file: Path) -> None:
    """Raise an error unless the audit of the last run has the results of this case, all of them successful."""
    from waybill.config.models import load_config
    from waybill.services.store import Store
    from waybill.tables.audit import Audit

    with Store.of(load_config(config_file).storage) as store:
        keys = [
            found.key for found in store.list_objects(f"{store.prefix}/plans/") if found.key.endswith(".audit.json")
        ]
        audits = [Audit.from_json(key, store.read(key)) for key in keys]
        for key in keys:
            store.remove(key)
    failed = [str(result) for audit in audits for result in audit.results if not result.success]
    results = [len(audit.results) for audit in audits]
    least = {"without": 0, "built-in": 5, "gx-12": 17}[name]
    if len(audits) != 1 or failed or results[0] < least or (name == "without" and results[0]):
        raise RuntimeError(f"{name}: unexpected audits: {results}, failed: {failed}")


def cases(_: argparse.Namespace) -> list[Case]:
    return [Case(name, "2M", partial(job, name), warm_up=False, repeats=1) for name in NAMES]


def run_in_turns(arguments: argparse.Namespace) -> list[Row]:
    """Run all cases one after the other, `--repeats` times, and return the medians of each."""
    rounds = [run_cases(cases(arguments), arguments) for _ in range(arguments.repeats)]
    rows = []
    for each in zip(*rounds, strict=True):
        cpu = [row.cpu_seconds for row in each]
        print(f"{each[0].name}: CPU seconds {', '.join(f'{seconds:.2f}' for seconds in cpu)}", file=sys.stderr)
        rows.append(
            replace(
                each[0],
                seconds=statistics.median(row.seconds for row in each),
                cpu_seconds=statistics.median(cpu),
                peak_rss_bytes=max(row.peak_rss_bytes for row in each),
                extra={"least_cpu_seconds": min(cpu), "most_cpu_seconds": max(cpu)},
            )
        )
    return rows


def show(rows: Sequence[Row]) -> None:
    base = next((row for row in rows if row.name == "without"), None)
    columns = {
        "name": lambda row: row.name,
        "case": lambda row: row.case,
        "messages": lambda row: f"{row.messages:,}",
        "seconds": lambda row: f"{row.seconds:.1f}",
        "CPU s": lambda row: f"{row.cpu_seconds:.2f}",
        "least": lambda row: f"{row.extra['least_cpu_seconds']:.2f}",
        "most": lambda row: f"{row.extra['most_cpu_seconds']:.2f}",
        "peak MiB": lambda row: f"{row.peak_rss_bytes / MIB:,.0f}",
        "× without": lambda row: f"{row.cpu_seconds / base.cpu_seconds:.3f}" if base else "",
    }
    print_table("the whole partition job with audits, local[2]", rows, columns)


def main() -> None:
    parser = argument_parser(__doc__, repeats=5)
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
