"""The plan of a partition run: which ranges of which backup objects, read by which parser.

The plan is an object in S3, named by the progress that it starts from and created if absent. So a rival, or a retry
after a crash, finds it and does the same, even if the archive has grown or the config has changed in between.

What of a stream's archive has not been turned into rows yet: its chains from the progress on.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from waybill.archive import chain
from waybill.archive.chain import ChainObject
from waybill.archive.spans import ArchiveFault, Span, clip
from waybill.config import Config, Reading, Stream
from waybill.coordination import Committed, Coordinator
from waybill.errors import ChainBroken, ConnectionMissing, CoordinationUnavailable, PlanUnusable
from waybill.names import TopicPartition
from waybill.staging.driver import LEAST_TASK_BYTES
from waybill.store import Store

__all__ = [
    "Plan",
    "Task",
    "bound",
    "committed_offsets",
    "faults_document",
    "list_chains",
    "make_plan",
    "offsets_document",
    "pack",
    "parse_faults",
    "parse_offsets",
]

_VERSION = 2

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
    faults: Mapping[TopicPartition, ArchiveFault] = field(default_factory=dict)
    """What was known to be at fault, and is left out."""

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
            "start": offsets_document(self.start),
            "end": offsets_document(self.end),
            "tasks": [
                [[s.tp.topic, s.tp.partition, s.key, s.first_offset, s.next_offset, s.size_bytes] for s in task]
                for task in self.tasks
            ],
            "faults": faults_document(self.faults),
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
                start=parse_offsets(document["start"]),
                end=parse_offsets(document["end"]),
                tasks=tuple(tuple(_span(fields) for fields in task) for task in document["tasks"]),
                faults=parse_faults(document["faults"]),
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
    run_bytes: int,
    slots: int = 1,
    faults: Mapping[TopicPartition, ArchiveFault] = MappingProxyType({}),
) -> Plan | None:
    """A plan for what `chains` hold from `start` on, up to about `run_bytes` of it; None if that is nothing.

    `chains`: for each topic-partition the objects that hold offsets at or after its start, in order.
    `slots`: how many tasks can run side by side. What makes fewer tasks is shared among them.
    `faults`: why some that have more are not among them.
    """
    spans = bound({tp: tuple(clip(tp, objects, start.get(tp))) for tp, objects in chains.items()}, run_bytes)
    end = {**start, **{tp: s[-1].next_offset for tp, s in spans.items() if s}}
    tasks = pack(spans, task_bytes)
    if len(tasks) < slots:
        tasks = _share(_side_by_side(spans), slots) or tasks
    if not tasks:
        return None
    return Plan(key, stream, generation, created_at, reading, start, end, tasks, faults)


def bound(spans: Mapping[TopicPartition, Sequence[Span]], run_bytes: int) -> Mapping[TopicPartition, tuple[Span, ...]]:
    """The first `run_bytes` of a backlog, the same share of each topic-partition's; one object at least."""
    kept: dict[TopicPartition, list[Span]] = {}
    taken = 0
    for span in _side_by_side(spans):
        if kept and taken + span.size_bytes > run_bytes:
            break
        kept.setdefault(span.tp, []).append(span)
        taken += span.size_bytes
    return {tp: tuple(taken_spans) for tp, taken_spans in kept.items()}


def pack(spans: Mapping[TopicPartition, Sequence[Span]], task_bytes: int) -> tuple[Task, ...]:
    """Pack spans into tasks of about `task_bytes` of backup.

    Few tasks, each over a short time, make few and full files: every task writes a file for each partition value that
    it meets. So a task takes the topic-partitions' spans side by side, each at the same share of its backlog, since
    chains that were written at the same time grow together. Within a topic-partition order is that of offsets.
    """
    tasks: list[list[Span]] = []
    filled = 0
    for span in _side_by_side(spans):
        # To the nearer side of the target: a task may overshoot by half of its last object.
        if not tasks or filled + span.size_bytes / 2 > task_bytes:
            tasks.append([])
            filled = 0
        tasks[-1].append(span)
        filled += span.size_bytes
    return tuple(tuple(task) for task in tasks)


def _share(spans: Sequence[Span], slots: int) -> tuple[Task, ...]:
    """Spans to tasks of about the same size, one for each slot, if each gets enough; else fewer, or none."""
    total = sum(span.size_bytes for span in spans)
    count = min(slots, total // LEAST_TASK_BYTES)
    if count < 2:
        return ()
    tasks: dict[int, list[Span]] = {}
    before = 0
    for span in spans:
        # By where its middle lies: the last one's is below the total, but for an empty object.
        number = min((2 * before + span.size_bytes) * count // (2 * total), count - 1)
        tasks.setdefault(number, []).append(span)
        before += span.size_bytes
    return tuple(tuple(task) for task in tasks.values())


def _side_by_side(spans: Mapping[TopicPartition, Sequence[Span]]) -> list[Span]:
    """All spans, by the share of their topic-partition's backlog that comes before them."""
    placed: list[tuple[float, TopicPartition, int, Span]] = []
    for tp, ordered in sorted(spans.items()):
        total = max(sum(span.size_bytes for span in ordered), 1)
        before = 0
        for span in ordered:
            placed.append((before / total, tp, span.first_offset, span))
            before += span.size_bytes
    return [span for *_, span in sorted(placed, key=lambda place: place[:3])]


def offsets_document(progress: Mapping[TopicPartition, int]) -> dict[str, int]:
    """For a JSON document: offsets by `topic/partition`."""
    return {str(tp): offset for tp, offset in sorted(progress.items())}


def parse_offsets(offsets: Mapping[str, int]) -> dict[TopicPartition, int]:
    """The inverse of `offsets_document`."""
    return {TopicPartition.parse(tp): int(offset) for tp, offset in offsets.items()}


def faults_document(faults: Mapping[TopicPartition, ArchiveFault]) -> dict[str, Any]:
    """For a JSON document: offset and message by `topic/partition`."""
    return {str(tp): [fault.offset, fault.message] for tp, fault in sorted(faults.items())}


def parse_faults(document: Mapping[str, Any]) -> dict[TopicPartition, ArchiveFault]:
    """The inverse of `faults_document`."""
    faults = [ArchiveFault(TopicPartition.parse(tp), *fault) for tp, fault in document.items()]
    return {fault.tp: fault for fault in faults}


def _span(fields: list[Any]) -> Span:
    topic, partition, key, first_offset, next_offset, size_bytes = fields
    return Span(TopicPartition(topic, partition), key, first_offset, next_offset, size_bytes)


logger = logging.getLogger(__name__)

_LISTING_THREADS = 8


def list_chains(
    store: Store, stream: Stream, start: Mapping[TopicPartition, int], committed: Mapping[TopicPartition, Committed]
) -> tuple[dict[TopicPartition, list[ChainObject]], list[str]]:
    """The objects of all of the stream's chains that hold offsets at or after `start`, and what is broken.

    A chain is listed up to where it is broken. `committed`: what is known of the committed offsets, which saves reading
    each chain's last object for its end, and says where it began; read before this call.
    """
    topics = [topic for topic in store.topics() if stream.matches(topic)]
    with ThreadPoolExecutor(_LISTING_THREADS) as pool:
        found = [c.tp for chains in pool.map(store.chains, topics) for c in chains if c.generation == stream.generation]
        tps = sorted({*found, *start})
        walked = list(pool.map(lambda tp: _walk(store, stream.generation, tp, start.get(tp), committed.get(tp)), tps))
    objects = {tp: found for tp, (found, _) in zip(tps, walked, strict=True)}
    return objects, [fault for _, fault in walked if fault]


def _walk(
    store: Store, generation: int, tp: TopicPartition, start: int | None, committed: Committed | None
) -> tuple[list[ChainObject], str]:
    objects: list[ChainObject] = []
    offset = None
    if committed is not None:
        offset = committed.committed_offset
        start = committed.start_offset if start is None else start
    try:
        objects.extend(chain.walk(store, generation, tp, from_offset=start, committed_offset=offset))
    except ChainBroken as error:
        return objects, str(error)
    return objects, ""


def committed_offsets(config: Config, name: str) -> dict[TopicPartition, Committed]:
    """The committed offsets, or none if ZooKeeper cannot be asked: the chains say the same, for more reading."""
    try:
        with Coordinator.of(config, name) as coordinator:
            return coordinator.list_committed()
    except (CoordinationUnavailable, ConnectionMissing) as error:
        logger.warning("going on without the committed offsets: %s", error)
        return {}
