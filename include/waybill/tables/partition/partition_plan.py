"""The plan of a partition run: the ranges of backup objects to read, and the settings for parsing them.

The plan is an object in S3, named after the progress that it starts from and created if absent. So a rival, or a retry
after a crash, finds and executes the same plan, even if the archive has grown or the config has changed since then.

`list_chains` returns the part of a stream's archive that is not in the tables yet, which `make_plan` cuts into tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from waybill.archive.chain import chain
from waybill.archive.chain.chain import ChainObject
from waybill.archive.chain.span import Span
from waybill.archive.chain.spans import ArchiveFault, spans_from
from waybill.base.documents import As, Document, Stored
from waybill.base.errors import ChainBroken, MixedFormats, UnexpectedFailure, WaybillError
from waybill.config.models import ParseSettings
from waybill.config.names import TopicPartition, offsets_of_json, offsets_to_json
from waybill.services.coordination import CommittedOffset
from waybill.services.store import Store
from waybill.tables.staging.driver import LEAST_TASK_BYTES

logger = logging.getLogger(__name__)

_LISTING_THREADS = 8

Task = tuple[Span, ...]
"""The spans that one Spark task reads, in this order."""


def plan_id(key: str) -> str:
    """Return the id of the plan with this key: the last segment, without its extension."""
    return key.rsplit("/", 1)[-1].removesuffix(".json")


# --- parts of documents ---


def faults_document(faults: Mapping[TopicPartition, ArchiveFault]) -> dict[str, Any]:
    """Return faults for a JSON document: offset and message by `topic/partition`."""
    return {str(tp): [fault.offset, fault.message] for tp, fault in sorted(faults.items())}


def parse_faults(document: Mapping[str, Any]) -> dict[TopicPartition, ArchiveFault]:
    """Parse what `faults_document` returned."""
    faults = [ArchiveFault(TopicPartition.parse(tp), *fault) for tp, fault in document.items()]
    return {fault.tp: fault for fault in faults}


def _tasks_document(tasks: tuple[Task, ...]) -> list[list[list[Any]]]:
    return [
        [[s.tp.topic, s.tp.partition, s.key, s.first_offset, s.next_offset, s.size_bytes] for s in task]
        for task in tasks
    ]


def _parse_tasks(document: list[list[list[Any]]]) -> tuple[Task, ...]:
    return tuple(tuple(_span(fields) for fields in task) for task in document)


def _span(fields: list[Any]) -> Span:
    topic, partition, key, first_offset, next_offset, size_bytes = fields
    return Span(TopicPartition(topic, partition), key, first_offset, next_offset, size_bytes)


OFFSETS = As("", offsets_of_json, offsets_to_json)
FAULTS = As("", parse_faults, faults_document)
SETTINGS = As("reading", ParseSettings.model_validate, ParseSettings.document)


# --- the plan ---


@dataclass(frozen=True, slots=True)
class Plan(Stored):
    """The input of one partition run."""

    DOCUMENT: ClassVar = Document(
        "plan {where} cannot be read ({error}): remove the object, and run again",
        version=2,
        oldest=2,
        name="plan {where}",
        remedy="Let the Waybill that made the plan execute it, or remove the object, and run again",
    )

    key: Annotated[str, As(is_place=True)]
    """Key of the plan's object."""
    stream: str
    generation: int
    created_at: datetime
    parse_settings: Annotated[ParseSettings, SETTINGS]
    start: Annotated[Mapping[TopicPartition, int], OFFSETS]
    end: Annotated[Mapping[TopicPartition, int], OFFSETS]
    tasks: Annotated[tuple[Task, ...], As("", _parse_tasks, _tasks_document)]
    faults: Annotated[Mapping[TopicPartition, ArchiveFault], FAULTS] = field(default_factory=dict)
    """Known faults of the archive: these topic-partitions end before them."""

    @property
    def id(self) -> str:
        """A short name; plans with the same start have the same id."""
        return plan_id(self.key)


# --- what to plan ---


def list_chains(
    store: Store,
    topics: Iterable[str],
    generation: int,
    start: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, CommittedOffset],
) -> tuple[dict[TopicPartition, list[ChainObject]], list[str]]:
    """Return the objects that hold offsets at or after `start`, by topic-partition, and messages about broken chains.

    `topics`: the stream's topics that have backup objects. A broken chain is listed up to the break. `committed`: the
    known committed offsets, read before this call. They show a chain's start, and its end without reading the last
    object.
    """
    with ThreadPoolExecutor(_LISTING_THREADS) as pool:
        found = [c.tp for chains in pool.map(store.chains, topics) for c in chains if c.generation == generation]
        tps = sorted({*found, *start})
        walked = list(pool.map(lambda tp: _walk_chain(store, generation, tp, start.get(tp), committed.get(tp)), tps))
    objects = {tp: found for tp, (found, _) in zip(tps, walked, strict=True)}
    return objects, [fault for _, fault in walked if fault]


def _walk_chain(
    store: Store, generation: int, tp: TopicPartition, start: int | None, committed: CommittedOffset | None
) -> tuple[list[ChainObject], str]:
    objects: list[ChainObject] = []
    offset = None
    if committed is not None:
        offset = committed.committed_offset
        start = committed.start_offset if start is None else start
    try:
        objects.extend(chain.walk_chain(store, generation, tp, from_offset=start, committed_offset=offset))
    except (ChainBroken, MixedFormats) as error:
        return objects, str(error)
    except WaybillError:
        raise
    except Exception as error:
        failure = UnexpectedFailure(f"the chain of {tp}", error)
        logger.exception("%s", failure)
        return objects, str(failure)
    return objects, ""


# --- cut into tasks ---


def make_plan(
    key: str,
    *,
    stream: str,
    generation: int,
    parse_settings: ParseSettings,
    created_at: datetime,
    start: Mapping[TopicPartition, int],
    chains: Mapping[TopicPartition, Sequence[ChainObject]],
    task_bytes: int,
    run_bytes: int,
    slots: int = 1,
    faults: Mapping[TopicPartition, ArchiveFault] = MappingProxyType({}),
) -> Plan | None:
    """Return a plan for about the first `run_bytes` of `chains` from `start` on; None if there is no input.

    `chains`: for each topic-partition the objects that hold offsets at or after its start, in order.
    `slots`: how many tasks can run in parallel. If the input has fewer tasks, it is divided among the slots. `faults`:
    why some topic-partitions end before their chain does.
    """
    spans = bound({tp: tuple(spans_from(tp, objects, start.get(tp))) for tp, objects in chains.items()}, run_bytes)
    end = {**start, **{tp: s[-1].next_offset for tp, s in spans.items() if s}}
    tasks = pack(spans, task_bytes)
    if len(tasks) < slots:
        tasks = _share(_interleave(spans), slots) or tasks
    if not tasks:
        return None
    return Plan(key, stream, generation, created_at, parse_settings, start, end, tasks, faults)


def bound(spans: Mapping[TopicPartition, Sequence[Span]], run_bytes: int) -> Mapping[TopicPartition, tuple[Span, ...]]:
    """Return the first `run_bytes` of a backlog, the same share of each topic-partition's, but at least one object."""
    kept: dict[TopicPartition, list[Span]] = {}
    taken = 0
    for span in _interleave(spans):
        if kept and taken + span.size_bytes > run_bytes:
            break
        kept.setdefault(span.tp, []).append(span)
        taken += span.size_bytes
    return {tp: tuple(taken_spans) for tp, taken_spans in kept.items()}


def pack(spans: Mapping[TopicPartition, Sequence[Span]], task_bytes: int) -> tuple[Task, ...]:
    """Pack spans into tasks of about `task_bytes` of backup objects.

    Every task writes a file for each partition value in its rows, so a few tasks that each cover a short time write few
    and large files. Chains that are written at the same time grow together. So a task takes the spans of all
    topic-partitions at the same share of their backlogs. Spans of one topic-partition stay in order of offset.
    """
    tasks: list[list[Span]] = []
    filled = 0
    for span in _interleave(spans):
        # Choose the nearer side of the target: a task may exceed it by half of its last object.
        if not tasks or filled + span.size_bytes / 2 > task_bytes:
            tasks.append([])
            filled = 0
        tasks[-1].append(span)
        filled += span.size_bytes
    return tuple(tuple(task) for task in tasks)


def _share(spans: Sequence[Span], slots: int) -> tuple[Task, ...]:
    """Cut spans into tasks of about the same size, one for each slot, or fewer so that each has enough input.

    Returns no tasks if there is not enough input for two.
    """
    total = sum(span.size_bytes for span in spans)
    count = min(slots, total // LEAST_TASK_BYTES)
    if count < 2:
        return ()
    tasks: dict[int, list[Span]] = {}
    before = 0
    for span in spans:
        # The position of the middle of the span decides. For the last span it is below the total, unless the object is
        # empty.
        number = min((2 * before + span.size_bytes) * count // (2 * total), count - 1)
        tasks.setdefault(number, []).append(span)
        before += span.size_bytes
    return tuple(tuple(task) for task in tasks.values())


def _interleave(spans: Mapping[TopicPartition, Sequence[Span]]) -> list[Span]:
    """Return all spans, sorted by the share of their topic-partition's backlog that lies before them."""
    placed: list[tuple[float, TopicPartition, int, Span]] = []
    for tp, ordered in sorted(spans.items()):
        total = max(sum(span.size_bytes for span in ordered), 1)
        before = 0
        for span in ordered:
            placed.append((before / total, tp, span.first_offset, span))
            before += span.size_bytes
    return [span for *_, span in sorted(placed, key=lambda place: place[:3])]
