"""Waybill's hourly job, from `spark-submit` to its end."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from _report import Row

from _partition.archive import config, remove, table_prefix
from _partition.section import MIB, Case, Measured, show

__all__ = ["BENCH", "SUBMIT", "show_jobs", "waybill_job"]

BENCH = Path(__file__).parent.parent
SUBMIT = (str(Path(sys.executable).parent / "spark-submit"), "--master", "local[2]")


def waybill_job(what: str, case: str, *, once: bool = False) -> Case:
    """The hourly job over the archive of topic `what`."""

    def prepare(_: argparse.Namespace) -> Callable[[], Measured]:
        from _tree import run_tree

        from waybill.spark.job import with_brief_jvm

        def run() -> Measured:
            stream = config(what)
            with tempfile.TemporaryDirectory() as folder:
                path, report = Path(folder) / "streams.yaml", Path(folder) / "report.json"
                path.write_text(stream.model_dump_json())  # JSON is YAML
                job = [str(BENCH.parent / "spark_jobs/partition.py"), "--stream", what]
                command = [*SUBMIT, *job]
                tree = run_tree(
                    [*command, "--config", str(path), "--report", str(report)], env=with_brief_jvm(os.environ)
                )
                (done,) = json.loads(report.read_text())
            remove(table_prefix(stream, what))
            if done["quarantined"] or done["faults"]:
                raise RuntimeError(f"not all became rows: {done}")
            extra = {f"{step}_seconds": spent for step, spent in done["seconds"].items()}
            extra |= {f"{stage}_task_seconds": spent for stage, spent in done["task_seconds"].items()}
            extra |= {name: done[name] for name in ("task_cpu_seconds", "tasks", "files", "file_bytes")}
            return Measured(done["rows"], done["backup_bytes"], tree.seconds, tree.cpu_seconds, tree.peak_bytes, extra)

        return run

    return Case("waybill", case, prepare, once)


def show_jobs(rows: Sequence[Row]) -> None:
    steps = ("start", "plan", "tasks", "commit")
    headings = ("messages", "backup MB", "seconds", "CPU s", "peak MiB", *(f"{s} s" for s in steps), "tasks", "files")
    show(
        f"{rows[0].extra['section']}: the whole job, local[2]; its seconds by step",
        ("case", *headings),
        [
            (
                row.case,
                f"{row.messages:,}",
                f"{row.bytes / 1e6:,.0f}",
                f"{row.seconds:.1f}",
                f"{row.cpu_seconds:.1f}",
                f"{row.peak_rss_bytes / MIB:,.0f}",
                f"{row.seconds - float(row.extra['total_seconds']):.1f}",
                *(f"{row.extra[f'{step}_seconds']:.2f}" for step in steps[1:]),
                f"{row.extra['tasks']:.0f}",
                f"{row.extra['files']:.0f}",
            )
            for row in rows
        ],
    )
