"""Execute the tasks of a plan, and leave out offsets that cannot be read from the archive.

A backup object that is damaged or missing stops its own topic-partition and no other. The task that meets it returns an
`ArchiveFault`: from that offset on the topic-partition is left out. The tasks that would have read at or beyond the
fault are executed again without that part; the results of the other tasks are kept. So a fault costs only the tasks
after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from waybill.archive.chain.spans import ArchiveFault
from waybill.config.names import TopicPartition
from waybill.tables.partition.partition_plan import Task
from waybill.tables.partition.tasks import Job, TaskResult

logger = logging.getLogger(__name__)

Execute = Callable[[Job, Sequence[Task]], Iterable[TaskResult | ArchiveFault]]
"""Runs tasks, on Spark or in this process, and returns the result or the fault of each, in the order of the tasks."""

Discard = Callable[[Sequence[TaskResult]], None]
"""Deletes the files of discarded results."""


@dataclass(frozen=True, slots=True)
class ExecutedTasks:
    """The results of a plan's tasks."""

    results: list[TaskResult]
    end: dict[TopicPartition, int]
    """The offset at which each topic-partition that was read ends."""
    faults: dict[TopicPartition, ArchiveFault]
    """Why some topic-partitions end before the plan does."""


def execute_tasks(execute: Execute, job: Job, tasks: Sequence[Task], discard: Discard) -> ExecutedTasks:
    """Execute the tasks up to the faults of the archive. Raises what `execute` raises.

    Calls `discard` with results whose tasks are executed again.
    """
    faults: dict[TopicPartition, ArchiveFault] = {}
    results: dict[Task, TaskResult] = {}
    pending = list(tasks)
    while pending:
        for task, outcome in zip(pending, list(execute(job, pending)), strict=True):
            if isinstance(outcome, TaskResult):
                results[task] = outcome
            else:
                _add_fault(faults, outcome)
        stopped = [task for task in pending if task not in results]
        obsolete = [task for task in results if trim(task, faults) != task]
        discard([results.pop(task) for task in obsolete])
        pending = [rest for task in (*stopped, *obsolete) if (rest := trim(task, faults))]
    return ExecutedTasks(list(results.values()), _end_offsets(results), faults)


def execute_all_or_none(execute: Execute, job: Job, tasks: Sequence[Task], discard: Discard) -> ExecutedTasks:
    """Execute the tasks exactly as planned; if one meets a fault, discard all results and return only the faults.

    This rule is necessary if the names of files follow from the plan (sink `files`): a task that ended earlier would
    write other files with the same names, which a rival, or a retry after a repair of the archive, does not expect. The
    next plan leaves out the faulty offsets.
    """
    faults: dict[TopicPartition, ArchiveFault] = {}
    results: list[TaskResult] = []
    for outcome in list(execute(job, tasks)):
        if isinstance(outcome, TaskResult):
            results.append(outcome)
        else:
            _add_fault(faults, outcome)
    if faults:
        discard(results)
        return ExecutedTasks([], {}, faults)
    return ExecutedTasks(results, _end_offsets(tasks), {})


def trim(task: Task, faults: Mapping[TopicPartition, ArchiveFault]) -> Task:
    """Return the part of a task that lies before the faults of its topic-partitions."""
    spans = []
    for span in task:
        fault = faults.get(span.tp)
        if fault is None or span.next_offset <= fault.offset:
            spans.append(span)
        elif span.first_offset < fault.offset:
            spans.append(replace(span, next_offset=fault.offset))
    return tuple(spans)


def _end_offsets(tasks: Iterable[Task]) -> dict[TopicPartition, int]:
    """Return the offset at which the tasks end, by topic-partition."""
    end: dict[TopicPartition, int] = {}
    for span in (span for task in tasks for span in task):
        end[span.tp] = max(end.get(span.tp, span.next_offset), span.next_offset)
    return end


def _add_fault(faults: dict[TopicPartition, ArchiveFault], fault: ArchiveFault) -> None:
    """Keep the first fault, by offset, of each topic-partition."""
    logger.error("left out from offset %d on: %s", fault.offset, fault.message)
    known = faults.get(fault.tp)
    if known is None or fault.offset < known.offset:
        faults[fault.tp] = fault
