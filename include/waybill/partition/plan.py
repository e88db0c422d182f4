"""The plan of a partition run: which ranges of which backup objects, read by which parser.

The plan is an object in S3, named by the progress that it starts from and created if absent. So a rival, or a retry
after a crash, finds it and does the same, even if the archive has grown or the config has changed in between.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from waybill.chain import ChainObject
from waybill.config import Reading
from waybill.errors import ObjectAlreadyThere, PlanUnusable
from waybill.names import TopicPartition
from waybill.store import Store

__all__ = ["Plan", "Span", "Task", "clip", "find_plan", "make_plan", "pack", "settle_plan"]

_VERSION = 2


@dataclass(frozen=True, slots=True)
class Span:
    """A range of one backup object: the messages with offsets in `[first_offset, next_offset)`."""

    tp: TopicPartition
    key: str
    first_offset: int
    next_offset: int
    size_bytes: int
    """Size of the whole object."""


Task = tuple[Span, ...]
"""What one Spark task reads, in this order."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one partition run does."""

    key: str
    """The name of the plan's object."""
    stream: str
    generation: int
    created_at: datetime
    reading: Reading
    start: Mapping[TopicPartition, int]
    end: Mapping[TopicPartition, int]
    tasks: tuple[Task, ...]

    @property
    def id(self) -> str:
        """Short, and the same for the same start."""
        return self.key.rsplit("/", 1)[-1].removesuffix(".json")

    def to_json(self) -> bytes:
        """The document of `"v": 2`."""
        document = {
            "v": _VERSION,
            "stream": self.stream,
            "generation": self.generation,
            "created_at": self.created_at.isoformat(),
            "reading": self.reading.model_dump(mode="json"),
            "start": _offsets(self.start),
            "end": _offsets(self.end),
            "tasks": [
                [[s.tp.topic, s.tp.partition, s.key, s.first_offset, s.next_offset, s.size_bytes] for s in task]
                for task in self.tasks
            ],
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, key: str, text: bytes) -> Plan:
        """The inverse of `to_json`. Raises `PlanUnusable` on anything that this version did not write."""
        try:
            document = json.loads(text)
            if document["v"] != _VERSION:
                raise PlanUnusable(
                    f"plan {key} is of version {document['v']!r}; this Waybill reads version {_VERSION}: "
                    f"let the Waybill that made the plan carry it out, or remove the object, and run again"
                )
            return cls(
                key=key,
                stream=document["stream"],
                generation=document["generation"],
                created_at=datetime.fromisoformat(document["created_at"]),
                reading=Reading.model_validate(document["reading"]),
                start=_progress(document["start"]),
                end=_progress(document["end"]),
                tasks=tuple(tuple(_span(fields) for fields in task) for task in document["tasks"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, ValidationError) as error:
            raise PlanUnusable(f"plan {key} cannot be read ({error}): remove the object, and run again") from error


def make_plan(
    key: str,
    *,
    stream: str,
    generation: int,
    reading: Reading,
    created_at: datetime,
    start: Mapping[TopicPartition, int],
    chains: Mapping[TopicPartition, Sequence[ChainObject]],
    task_bytes: int,
) -> Plan | None:
    """A plan for all that `chains` hold from `start` on; None if that is nothing.

    `chains`: for each topic-partition the objects that hold offsets at or after its start, in order.
    """
    spans = {tp: tuple(clip(tp, objects, start.get(tp))) for tp, objects in chains.items()}
    end = {**start, **{tp: s[-1].next_offset for tp, s in spans.items() if s}}
    tasks = pack(spans, task_bytes)
    if not tasks:
        return None
    return Plan(key, stream, generation, created_at, reading, start, end, tasks)


def pack(spans: Mapping[TopicPartition, Sequence[Span]], task_bytes: int) -> tuple[Task, ...]:
    """Pack spans into tasks of about `task_bytes` of backup.

    Few tasks, each over a short time, make few and full files: every task writes a file for each partition value that
    it meets. So a task takes the topic-partitions' spans side by side, each at the same share of its backlog, since
    chains that were written at the same time grow together. Within a topic-partition order is that of offsets.
    """
    placed: list[tuple[float, TopicPartition, int, Span]] = []
    for tp, chain in sorted(spans.items()):
        total = max(sum(span.size_bytes for span in chain), 1)
        before = 0
        for span in chain:
            placed.append((before / total, tp, span.first_offset, span))
            before += span.size_bytes
    tasks: list[list[Span]] = []
    filled = 0
    for *_, span in sorted(placed, key=lambda place: place[:3]):
        # To the nearer side of the target: a task may overshoot by half of its last object.
        if not tasks or filled + span.size_bytes / 2 > task_bytes:
            tasks.append([])
            filled = 0
        tasks[-1].append(span)
        filled += span.size_bytes
    return tuple(tuple(task) for task in tasks)


def find_plan(store: Store, key: str) -> Plan | None:
    """The plan of that name, if there is one."""
    found = store.read_if_there(key)
    return None if found is None else Plan.from_json(key, found)


def settle_plan(store: Store, key: str, make: Callable[[], Plan | None]) -> Plan | None:
    """The plan of that name: the one that is there, else a new one; None if there is nothing to do.

    `make` is called only if there is none yet. If a rival creates it meanwhile, the rival's counts.
    """
    found = find_plan(store, key)
    if found is not None:
        return found
    plan = make()
    if plan is None:
        return None
    try:
        store.create_if_absent(key, plan.to_json())
    except ObjectAlreadyThere:
        return find_plan(store, key)
    return plan


def clip(tp: TopicPartition, objects: Iterable[ChainObject], start: int | None) -> Iterator[Span]:
    """The ranges of a chain's objects from `start` on; None: all of them."""
    for found in objects:
        first = max(found.name.first_offset, start or 0)
        if first < found.next_offset:
            yield Span(tp, found.key, first, found.next_offset, found.size_bytes)


def _offsets(progress: Mapping[TopicPartition, int]) -> dict[str, int]:
    return {str(tp): offset for tp, offset in sorted(progress.items())}


def _progress(offsets: dict[str, int]) -> dict[TopicPartition, int]:
    return {TopicPartition.parse(tp): int(offset) for tp, offset in offsets.items()}


def _span(fields: list[Any]) -> Span:
    topic, partition, key, first_offset, next_offset, size_bytes = fields
    return Span(TopicPartition(topic, partition), key, first_offset, next_offset, size_bytes)
