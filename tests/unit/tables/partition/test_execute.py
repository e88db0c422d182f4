"""Executing a plan's tasks on an archive with faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from waybill.archive.chain.span import Span
from waybill.archive.chain.spans import ArchiveFault
from waybill.config.names import TopicPartition
from waybill.tables.partition.execute import execute_all_or_none, execute_tasks
from waybill.tables.partition.partition_plan import Task
from waybill.tables.partition.statistics import RunStatistics
from waybill.tables.partition.tasks import Job, StageSeconds, TaskResult

TP0, TP1 = TopicPartition("t", 0), TopicPartition("t", 1)
JOB = cast("Job", None)


def span(tp: TopicPartition, first_offset: int, next_offset: int) -> Span:
    return Span(tp, f"{tp}@{first_offset}", first_offset, next_offset, 100)


def result(task: Task) -> TaskResult:
    """A result whose files are the spans that were read, so that a test can compare them."""
    files = cast("list[Any]", list(task))
    return TaskResult(files, [], len(task), 0, StageSeconds(0, 0, 0), 0.0, 0, RunStatistics())


class Archive:
    """Executes tasks on an archive that cannot be read from an offset of a topic-partition on."""

    def __init__(self, **faults: int) -> None:
        self.faults = {TopicPartition("t", int(name[-1])): offset for name, offset in faults.items()}
        self.rounds: list[int] = []
        self.discarded: list[TaskResult] = []

    def execute(self, _: Job, tasks: Sequence[Task]) -> list[TaskResult | ArchiveFault]:
        self.rounds.append(len(tasks))
        return [self._execute_one(task) for task in tasks]

    def _execute_one(self, task: Task) -> TaskResult | ArchiveFault:
        for read in task:
            bad = self.faults.get(read.tp)
            if bad is not None and read.next_offset > bad:
                return ArchiveFault(read.tp, max(bad, read.first_offset), "bad")
        return result(task)


TASKS = (
    (span(TP0, 0, 10), span(TP1, 0, 5)),
    (span(TP0, 10, 20), span(TP1, 5, 9)),
    (span(TP0, 20, 30),),
)


def test_all_tasks_are_executed_once_when_the_archive_has_no_fault() -> None:
    archive = Archive()
    executed = execute_tasks(archive.execute, JOB, TASKS, archive.discarded.extend)
    assert (archive.rounds, archive.discarded, executed.faults) == ([3], [], {})
    assert executed.end == {TP0: 30, TP1: 9}


def test_a_fault_stops_its_topic_partition_and_repeats_only_the_tasks_behind_it() -> None:
    archive = Archive(tp0=15)
    executed = execute_tasks(archive.execute, JOB, TASKS, archive.discarded.extend)
    assert archive.rounds == [3, 1], "the first task's result stays, the third has nothing left to read"
    assert executed.end == {TP0: 15, TP1: 9}
    assert {tp: fault.offset for tp, fault in executed.faults.items()} == {TP0: 15}
    assert [read for each in executed.results for read in each.table_files] == [
        *TASKS[0],
        span_cut_at(TASKS[1][0], 15),
        TASKS[1][1],
    ]


def span_cut_at(read: Span, next_offset: int) -> Span:
    return Span(read.tp, read.key, read.first_offset, next_offset, read.size_bytes)


def test_results_behind_a_fault_of_another_task_are_discarded() -> None:
    """A task reads objects behind a damaged one before another task meets the damage."""
    archive = Archive(tp0=5)
    sound = archive._execute_one
    archive._execute_one = lambda task: result(task) if task == TASKS[2] else sound(task)  # type: ignore[method-assign]
    executed = execute_tasks(archive.execute, JOB, TASKS, archive.discarded.extend)
    assert [each.table_files for each in archive.discarded] == [list(TASKS[2])]
    assert executed.end == {TP0: 5, TP1: 9}


def test_one_task_may_meet_faults_of_several_topic_partitions() -> None:
    archive = Archive(tp0=0, tp1=7)
    executed = execute_tasks(archive.execute, JOB, TASKS, archive.discarded.extend)
    assert executed.end == {TP1: 7}
    assert {tp: fault.offset for tp, fault in executed.faults.items()} == {TP0: 0, TP1: 7}


def test_no_results_are_returned_when_nothing_can_be_read() -> None:
    archive = Archive(tp0=0, tp1=0)
    executed = execute_tasks(archive.execute, JOB, TASKS, archive.discarded.extend)
    assert (executed.results, executed.end, set(executed.faults)) == ([], {}, {TP0, TP1})


def test_all_results_are_discarded_when_one_task_meets_a_fault_and_file_names_follow_from_the_plan() -> None:
    archive = Archive(tp0=15)
    executed = execute_all_or_none(archive.execute, JOB, TASKS, archive.discarded.extend)
    assert archive.rounds == [3]
    assert [each.table_files for each in archive.discarded] == [list(TASKS[0])]
    assert (executed.results, executed.end) == ([], {})
    assert {tp: fault.offset for tp, fault in executed.faults.items()} == {TP0: 15}
