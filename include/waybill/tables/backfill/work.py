"""Shared by all parts of a backfill: how tasks are executed, and the names of the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from waybill.base import failpoints

_T = TypeVar("_T")
_R = TypeVar("_R")


class TaskRunner(Protocol):
    """Runs the same function for each task, and returns the results in order. Raises the error of a failed task."""

    def __call__(self, work: Callable[[Any], Any], tasks: Sequence[Any], /) -> Sequence[Any]: ...


def in_this_process(work: Callable[[_T], _R], tasks: Sequence[_T], /) -> list[_R]:
    """Run the tasks one after the other in this process. A `TaskRunner`."""
    return [work(task) for task in tasks]


def reach_step(step: str) -> None:
    """Reach the failpoint of a step. The default of every `on_step`."""
    failpoints.reach(f"backfill.{step}")
