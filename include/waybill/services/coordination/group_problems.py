"""The problems of the streams of a group, recorded by the group's last run.

A stream may be stopped for days until a person decides. The run of its group fails once, when the problem appears, and
not every minute. So the runs record the problems that they have reported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from waybill.services.coordination.nodes import node_document
from waybill.services.coordination.paths import group_problems_path
from waybill.services.coordination.session import ZooKeeperSession

_DOCUMENT = node_document("the next run records the problems again")


@dataclass(frozen=True, slots=True)
class GroupProblem:
    """Why a stream, or some of its topic-partitions, does not advance."""

    stream: str
    error: str
    """The name of the error's class."""
    message: str
    since_ms: int = 0
    """When a run found it first. Epoch ms."""

    @property
    def key(self) -> tuple[str, str]:
        """The key of the problem, which is the same in each run.

        It leaves out the message, which may contain changing figures.
        """
        return self.stream, self.error


@dataclass(frozen=True, slots=True)
class GroupProblems:
    """The problems that the last run of a group found."""

    root: str
    group: str
    known: Mapping[tuple[str, str], GroupProblem] = field(default_factory=dict)

    @classmethod
    def read(cls, session: ZooKeeperSession, root: str, group: str) -> GroupProblems:
        """Return the recorded problems. Raises `DocumentTooNew` or `DocumentDamaged`."""
        path = group_problems_path(root, group)
        node = session.get(path)
        if node is None:
            return cls(root, group)
        problems = _DOCUMENT.parse(path, node[0], lambda fields: [_problem(each) for each in fields["problems"]])
        return cls(root, group, {problem.key: problem for problem in problems})

    def keys_of(self, streams: Collection[str]) -> set[tuple[str, str]]:
        """Return the keys of the problems of these streams."""
        return {key for key, problem in self.known.items() if problem.stream in streams}

    def write(self, session: ZooKeeperSession) -> None:
        """Record the problems."""
        problems = [
            {"stream": each.stream, "error": each.error, "message": each.message, "since": each.since_ms}
            for each in self.known.values()
        ]
        path = group_problems_path(self.root, self.group)
        session.put(path, _DOCUMENT.write({"problems": problems}), f"record the problems of the group {self.group}")


def _problem(fields: dict[str, Any]) -> GroupProblem:
    return GroupProblem(str(fields["stream"]), str(fields["error"]), str(fields["message"]), int(fields["since"]))
