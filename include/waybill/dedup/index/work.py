"""Work on a key index that is cut into tasks, and who carries them out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

__all__ = ["ForEach", "one_by_one"]

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class ForEach(Protocol):
    """Carries out the same work for each of several tasks, anywhere."""

    def __call__(self, work: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> Iterable[_Result]:
        """What came of each, in the order of the tasks; what `work` raises is raised as it is.

        `work` and `tasks` can be pickled, if what they were made of can be.
        """


def one_by_one(work: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> list[_Result]:
    """In this process, one after the other."""
    return [work(task) for task in tasks]
