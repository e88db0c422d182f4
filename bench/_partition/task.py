"""One task of a partition run, in this process."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from _report import peak_rss_bytes

from _partition.archive import config, remove, table_prefix
from _partition.section import Case, Measured

if TYPE_CHECKING:
    from waybill.config import Config
    from waybill.partition.plan import Task
    from waybill.partition.run import Execute
    from waybill.partition.tasks import Job, TaskResult

__all__ = ["ONE_TASK", "on_one_core", "partition_here", "run_task_measured", "whole_task"]

ONE_TASK = {"task_bytes": "16GiB"}


def whole_task(what: str, name: str, case: str = "", *, one_core: bool = False, **partition: object) -> Case:
    """One task over all of a topic's archive: everything between S3 and S3.

    With `one_core` as the steps of a task are measured: on one core, and again after a run that is not counted.
    """

    def prepare(_: argparse.Namespace) -> Callable[[], Measured]:
        def run() -> Measured:
            found: list[Measured] = []
            remove(partition_here(config(what, **ONE_TASK, **partition), what, run_task_measured(found)))
            return found[0]

        if one_core:
            on_one_core()
            run()
        return run

    return Case(name, case, prepare, once=not one_core)


def on_one_core() -> None:
    """Keep this process to one core, Arrow included."""
    import pyarrow as pa

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)


def partition_here(stream: Config, what: str, execute: Execute) -> str:
    """A run in this process; the prefix of the table's files."""
    from waybill.partition.run import run_partition

    run_partition(stream, what, execute)
    return table_prefix(stream, what)


def run_task_measured(into: list[Measured]) -> Execute:
    """Carries out tasks in this process, and notes what they took."""
    from waybill.partition.tasks import run_task

    def execute(job: Job, tasks: Sequence[Task]) -> Iterable[TaskResult]:
        cpu, wall = time.process_time(), time.perf_counter()
        done = [run_task(job, task) for task in tasks]
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        size = sum(span.size_bytes for task in tasks for span in task)
        into.append(Measured(sum(d.messages for d in done), size, wall, cpu, peak_rss_bytes()))
        return done

    return execute
