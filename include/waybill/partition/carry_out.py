"""Carrying out a plan's tasks, and going around what the archive cannot give.

A backup object that is damaged, or gone, stops its topic-partition and no other. What a task says about it is an
`ArchiveFault`: from that offset on the topic-partition is left out. The tasks that would have read beyond it are
carried out again without that part; the others' results stay. So the price of a fault is the tasks behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from waybill.names import TopicPartition
from waybill.partition.plan import ArchiveFault, Task
from waybill.partition.task import Job, TaskResult

__all__ = ["CarriedOut", "Execute", "carry_out", "carry_out_whole", "trim"]

log = logging.getLogger(__name__)

Execute = Callable[[Job, Sequence[Task]], Iterable[TaskResult | ArchiveFault]]
"""Carries out tasks, anywhere, and gives what they staged, or what stopped them, in the order of the tasks."""


@dataclass(frozen=True, slots=True)
class CarriedOut:
    """What came of a plan's tasks."""

    results: list[TaskResult]
    end: dict[TopicPartition, int]
    """Where each topic-partition that was read ends."""
    faults: dict[TopicPartition, ArchiveFault]
    """Why some end before the plan does."""


def carry_out(
    execute: Execute, job: Job, tasks: Sequence[Task], take_back: Callable[[Sequence[TaskResult]], None]
) -> CarriedOut:
    """Carry out the tasks, as far as the archive can be read. Raises what `execute` raises.

    `take_back` removes the files of results that do not count, since their tasks are carried out again.
    """
    faults: dict[TopicPartition, ArchiveFault] = {}
    results: dict[Task, TaskResult] = {}
    left = list(tasks)
    while left:
        for task, outcome in zip(left, list(execute(job, left)), strict=True):
            if isinstance(outcome, TaskResult):
                results[task] = outcome
            else:
                _note(faults, outcome)
        stopped = [task for task in left if task not in results]
        void = [task for task in results if trim(task, faults) != task]
        take_back([results.pop(task) for task in void])
        left = [rest for task in (*stopped, *void) if (rest := trim(task, faults))]
    return CarriedOut(list(results.values()), _ends(results), faults)


def carry_out_whole(
    execute: Execute, job: Job, tasks: Sequence[Task], take_back: Callable[[Sequence[TaskResult]], None]
) -> CarriedOut:
    """Carry out the tasks as they are, or none: if one cannot be, nothing comes of the plan but its faults.

    So it is where the names of files follow from the plan: a task that ends sooner would give other files under the
    same names, and a rival, or a retry after the archive was repaired, would not know of it. The next plan leaves out
    what is at fault.
    """
    faults: dict[TopicPartition, ArchiveFault] = {}
    results: list[TaskResult] = []
    for outcome in list(execute(job, tasks)):
        if isinstance(outcome, TaskResult):
            results.append(outcome)
        else:
            _note(faults, outcome)
    if faults:
        take_back(results)
        return CarriedOut([], {}, faults)
    return CarriedOut(results, _ends(tasks), {})


def _ends(tasks: Iterable[Task]) -> dict[TopicPartition, int]:
    """Where the tasks end, by topic-partition."""
    end: dict[TopicPartition, int] = {}
    for span in (span for task in tasks for span in task):
        end[span.tp] = max(end.get(span.tp, span.next_offset), span.next_offset)
    return end


def trim(task: Task, faults: Mapping[TopicPartition, ArchiveFault]) -> Task:
    """What is left of a task when nothing at or beyond the faults is read."""
    spans = []
    for span in task:
        fault = faults.get(span.tp)
        if fault is None or span.next_offset <= fault.offset:
            spans.append(span)
        elif span.first_offset < fault.offset:
            spans.append(replace(span, next_offset=fault.offset))
    return tuple(spans)


def _note(faults: dict[TopicPartition, ArchiveFault], found: ArchiveFault) -> None:
    """Of a topic-partition's faults the first one counts."""
    log.error("left out from offset %d on: %s", found.offset, found.message)
    known = faults.get(found.tp)
    if known is None or found.offset < known.offset:
        faults[found.tp] = found
