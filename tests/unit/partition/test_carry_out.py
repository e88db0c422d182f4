from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from waybill.archive.spans import ArchiveFault, Span
from waybill.names import TopicPartition
from waybill.partition.observed import Observed
from waybill.partition.plan import Task
from waybill.partition.tasks import Job, StageSeconds, TaskResult, carry_out

TP0, TP1 = TopicPartition("t", 0), TopicPartition("t", 1)
JOB = cast("Job", None)


def span(tp: TopicPartition, first_offset: int, next_offset: int) -> Span:
    return Span(tp, f"{tp}@{first_offset}", first_offset, next_offset, 100)


def result(task: Task) -> TaskResult:
    """One that says which spans it read, where a real one names files."""
    files = cast("list[Any]", list(task))
    return TaskResult(files, [], len(task), 0, StageSeconds(0, 0, 0), 0.0, 0, Observed())


class Archive:
    """Carries out tasks on an archive with faults: from an offset of a topic-partition on."""

    def __init__(self, **faults: int) -> None:
        self.faults = {TopicPartition("t", int(name[-1])): offset for name, offset in faults.items()}
        self.rounds: list[int] = []
        self.taken_back: list[TaskResult] = []

    def execute(self, _: Job, tasks: Sequence[Task]) -> list[TaskResult | ArchiveFault]:
        self.rounds.append(len(tasks))
        return [self._one(task) for task in tasks]

    def _one(self, task: Task) -> TaskResult | ArchiveFault:
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


def test_a_sound_archive_takes_one_round() -> None:
    archive = Archive()
    done = carry_out(archive.execute, JOB, TASKS, archive.taken_back.extend)
    assert (archive.rounds, archive.taken_back, done.faults) == ([3], [], {})
    assert done.end == {TP0: 30, TP1: 9}


def test_a_fault_stops_its_topic_partition_and_costs_the_tasks_behind_it() -> None:
    archive = Archive(tp0=15)
    done = carry_out(archive.execute, JOB, TASKS, archive.taken_back.extend)
    assert archive.rounds == [3, 1], "the first task's result stays, the third has nothing left to read"
    assert done.end == {TP0: 15, TP1: 9}
    assert {tp: fault.offset for tp, fault in done.faults.items()} == {TP0: 15}
    assert [read for each in done.results for read in each.table_files] == [
        *TASKS[0],
        span_to(TASKS[1][0], 15),
        TASKS[1][1],
    ]


def span_to(read: Span, next_offset: int) -> Span:
    return Span(read.tp, read.key, read.first_offset, next_offset, read.size_bytes)


def test_results_behind_a_fault_that_another_task_met_are_taken_back() -> None:
    """As when an object is damaged, and tasks read those after it before anybody knows."""
    archive = Archive(tp0=5)
    sound = archive._one
    archive._one = lambda task: result(task) if task == TASKS[2] else sound(task)  # type: ignore[method-assign]
    done = carry_out(archive.execute, JOB, TASKS, archive.taken_back.extend)
    assert [each.table_files for each in archive.taken_back] == [list(TASKS[2])]
    assert done.end == {TP0: 5, TP1: 9}


def test_faults_of_several_topic_partitions_in_one_task() -> None:
    archive = Archive(tp0=0, tp1=7)
    done = carry_out(archive.execute, JOB, TASKS, archive.taken_back.extend)
    assert done.end == {TP1: 7}
    assert {tp: fault.offset for tp, fault in done.faults.items()} == {TP0: 0, TP1: 7}


def test_nothing_can_be_read() -> None:
    archive = Archive(tp0=0, tp1=0)
    done = carry_out(archive.execute, JOB, TASKS, archive.taken_back.extend)
    assert (done.results, done.end, set(done.faults)) == ([], {}, {TP0, TP1})
