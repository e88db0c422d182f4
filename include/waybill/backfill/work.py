"""How the tasks of a backfill are executed: on Spark's executors, or in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

__all__ = ["ForEach", "in_this_process"]

_T = TypeVar("_T")
_R = TypeVar("_R")


class ForEach(Protocol):
    """Runs the same work for each task, and returns the results in order. Raises the error of a task that failed."""

    def __call__(self, work: Callable[[Any], Any], tasks: Sequence[Any], /) -> Sequence[Any]: ...


def in_this_process(work: Callable[[_T], _R], tasks: Sequence[_T], /) -> list[_R]:
    """Run the tasks one after the other in this process. A `ForEach`."""
    return [work(task) for task in tasks]
