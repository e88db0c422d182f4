"""The operations on restores that the command line and the DAG call: preview, begin, run, compare, move groups."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from waybill import failpoints
from waybill.archive.chain import find_chain_start
from waybill.archive.topic_settings import find_topic_settings
from waybill.clients.registry import SchemaRegistry
from waybill.config import Config
from waybill.connections import Connection, KafkaEndpoint, RegistryEndpoint, find_connection
from waybill.errors import KafkaUnavailable, ObjectExists, RestoreRefused
from waybill.names import TopicPartition, restore_event_key, restore_plan_key, restore_report_key
from waybill.restore.comparison import NOT_CHECKED, PartitionComparison, compare
from waybill.restore.groups import Move, commit_moves, plan_moves
from waybill.restore.plan import PartitionPlan, Plan, find_plan
from waybill.restore.preflight import SUSPENDED, Problem, examine, examine_schemas
from waybill.restore.request import Request, SourceRange, find_ranges
from waybill.restore.run import PartitionResult, restore
from waybill.sources.target import KafkaTarget
from waybill.store import Store

__all__ = [
    "Preview",
    "Status",
    "begin_restore",
    "compare_restore",
    "move_groups",
    "preview_restore",
    "read_status",
    "run_restore",
]

_COMPLETE = "complete"
FindConnection = Callable[[str], Connection]


@dataclass(frozen=True, slots=True)
class Preview:
    """What a restore would do, and what speaks against it."""

    ranges: tuple[SourceRange, ...]
    problems: tuple[Problem, ...]

    @property
    def is_possible(self) -> bool:
        return all(each.is_warning for each in self.problems)


@dataclass(frozen=True, slots=True)
class Status:
    """How far a restore is."""

    plan: Plan
    target_ends: Mapping[TopicPartition, int]
    """The end of the log of each target topic-partition that answers."""
    is_complete: bool

    def messages(self, partition: PartitionPlan) -> int | None:
        """Return how many messages the target has of a topic-partition's range; None if it does not answer."""
        end = self.target_ends.get(partition.target)
        return None if end is None else max(end - partition.target_offset, 0)


def preview_restore(config: Config, request: Request, find: FindConnection = find_connection) -> Preview:
    """Return the ranges of a request, and the problems that the preflight finds. Nothing is changed.

    Raises `RestoreRefused` when the archive does not have what is asked for.
    """
    with Store.of(config.storage, find) as store, _open_target(request.connection, find) as target:
        return _preview(config, store, target, request, find)


def _open_target(connection: str, find: FindConnection) -> KafkaTarget:
    return KafkaTarget(KafkaEndpoint.of(find(connection)))


def _preview(config: Config, store: Store, target: KafkaTarget, request: Request, find: FindConnection) -> Preview:
    ranges = find_ranges(store, config.stream(request.stream), request)
    problems = examine(config, store, target, request, ranges, datetime.now(UTC))
    if request.registry is not None:
        registry = SchemaRegistry(RegistryEndpoint.of(find(request.registry)))
        problems += examine_schemas(store, ranges, lambda schema_id: registry.find(schema_id) is not None)
    return Preview(tuple(ranges), tuple(problems))


def begin_restore(
    config: Config,
    request: Request,
    *,
    by: str,
    reason: str,
    restore_id: str | None = None,
    find: FindConnection = find_connection,
) -> Plan:
    """Check a request, create missing topics if it says so, and store its plan. Nothing is produced yet.

    `restore_id`: the id to use; the plan of that id is returned if it exists, so that a retry finds it.

    Raises `RestoreRefused` with every problem of the preflight.
    """
    with Store.of(config.storage, find) as store, _open_target(request.connection, find) as target:
        if restore_id is not None and store.exists(restore_plan_key(store.prefix, restore_id)):
            return find_plan(store, restore_id)
        preview = _preview(config, store, target, request, find)
        if not preview.is_possible:
            problems = [f"- {each}" for each in preview.problems if not each.is_warning]
            raise RestoreRefused("\n".join(["the restore is refused; nothing was produced", *problems]))
        plan = _make_plan(config, store, target, request, preview.ranges, by, reason, restore_id)
        key = restore_plan_key(store.prefix, plan.id)
        stored = store.create_or_read_existing(key, plan.to_json())
        failpoints.reach("restore.planned")
        return plan if stored is None else Plan.from_json(key, stored)


def _make_plan(
    config: Config,
    store: Store,
    target: KafkaTarget,
    request: Request,
    ranges: Sequence[SourceRange],
    by: str,
    reason: str,
    restore_id: str | None,
) -> Plan:
    now = datetime.now(UTC)
    topic_ids: dict[str, str] = {}
    suspended: dict[str, dict[str, str | None]] = {}
    for topic in sorted({each.tp.topic for each in ranges}):
        name = request.target_of(topic)
        found = target.find_topic(name)
        if found is None:
            settings = find_topic_settings(store, topic)
            partitions = _archived_partitions(store, config.stream(request.stream).generation, topic, ranges)
            own = {} if settings is None else settings.config
            target.create_topic(name, partitions, request.replication_factor, own)
            found = target.find_topic(name)
        if found is None:
            raise KafkaUnavailable(f"topic {name!r} was created at {target.where}, and does not exist")
        topic_ids[name] = found.topic_id
        if request.suspend_cleanup:
            suspended[name] = {key: found.own_config.get(key) for key in SUSPENDED}
    targets = [TopicPartition(request.target_of(each.tp.topic), each.tp.partition) for each in ranges]
    ends = target.log.offsets(targets)
    producer = target.producer.new_producer()
    return Plan(
        id=restore_id or f"{now:%Y%m%d}_{secrets.token_hex(2)}",
        stream=request.stream,
        generation=config.stream(request.stream).generation,
        connection=request.connection,
        topic_ids=topic_ids,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        partitions=tuple(
            PartitionPlan(
                topic=each.tp.topic,
                partition=each.tp.partition,
                first_offset=each.first_offset,
                next_offset=each.next_offset,
                target_topic=tp.topic,
                target_offset=ends[tp].end,
                size_bytes=each.size_bytes,
            )
            for each, tp in zip(ranges, targets, strict=True)
        ),
        by=by,
        reason=reason,
        at=now,
        suspended=suspended,
    )


def _archived_partitions(store: Store, generation: int, topic: str, ranges: Sequence[SourceRange]) -> int:
    """Return how many partitions the archived topic had when its chains began, at least those of the ranges."""
    settings = find_topic_settings(store, topic)
    numbers = [0 if settings is None else settings.partitions]
    numbers += [each.tp.partition + 1 for each in ranges if each.tp.topic == topic]
    for chain_id in store.chains(topic):
        if chain_id.generation == generation:
            start = find_chain_start(store, generation, chain_id.tp)
            numbers += [chain_id.tp.partition + 1, 0 if start is None else start.partitions]
    return max(numbers)


def run_restore(
    config: Config,
    restore_id: str,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    report: Callable[[PartitionResult], None] = lambda _: None,
    find: FindConnection = find_connection,
) -> list[PartitionResult]:
    """Produce what the target lacks, and give the target its own configs back when everything is there.

    A restore that was interrupted continues. Raises the errors of `restore.run.restore`, and `RestoreRefused` if there
    is no such restore.
    """
    with Store.of(config.storage, find) as store:
        plan = find_plan(store, restore_id)
        with _open_target(plan.connection, find) as target:
            is_complete = store.exists(restore_event_key(store.prefix, plan.id, _COMPLETE))
            if not is_complete:
                for name in plan.suspended:
                    target.change_config(name, dict(SUSPENDED))
                failpoints.reach("restore.target_changed")
            results = restore(store, target, plan, should_stop=should_stop, report=report)
            if all(each.is_complete for each in results) and not is_complete:
                failpoints.reach("restore.produced")
                for name, own in plan.suspended.items():
                    target.change_config(name, own)
                failpoints.reach("restore.target_changed_back")
                _record_completion(store, plan)
            return results


def _record_completion(store: Store, plan: Plan) -> None:
    document = {"v": 1, "at": datetime.now(UTC).isoformat()}
    with suppress(ObjectExists):  # a rival has completed it
        store.create_if_absent(restore_event_key(store.prefix, plan.id, _COMPLETE), json.dumps(document).encode())


def compare_restore(config: Config, restore_id: str, find: FindConnection = find_connection) -> dict[str, Any]:
    """Compare everything that was restored with the archive, store the report, and return it.

    The report's `sound` says whether nothing differs; `not_checked` lists what was not compared.
    """
    with Store.of(config.storage, find) as store:
        plan = find_plan(store, restore_id)
        with _open_target(plan.connection, find) as target:
            comparisons = list(compare(store, target, plan))
        document = _report(plan, comparisons)
        content = json.dumps({"v": 1, **document}, indent=1).encode()
        store.replace(restore_report_key(store.prefix, plan.id), content, "application/json")
        return document


def _report(plan: Plan, comparisons: Sequence[PartitionComparison]) -> dict[str, Any]:
    return {
        "restore": plan.document(),
        "compared_at": datetime.now(UTC).isoformat(),
        "sound": all(each.difference is None for each in comparisons),
        "messages": sum(each.messages for each in comparisons),
        "partitions": [each.document() for each in comparisons],
        "not_checked": list(NOT_CHECKED),
    }


def move_groups(
    config: Config,
    restore_id: str,
    groups: Mapping[str, Mapping[TopicPartition, int]],
    *,
    commit: bool,
    backwards: bool = False,
    find: FindConnection = find_connection,
) -> list[Move]:
    """Return where consumer groups continue in the target; with `commit`, commit these offsets there."""
    with Store.of(config.storage, find) as store:
        plan = find_plan(store, restore_id)
        with _open_target(plan.connection, find) as target:
            moves = plan_moves(store, target, plan, groups, backwards=backwards)
            if commit:
                moves = commit_moves(target, moves)
                failpoints.reach("restore.groups_committed")
            return moves


def read_status(store: Store, plan: Plan, find: FindConnection = find_connection) -> Status:
    """Return how far a restore is. The target of one that is complete is not asked: it may be gone."""
    if store.exists(restore_event_key(store.prefix, plan.id, _COMPLETE)):
        return Status(plan, {}, is_complete=True)
    with _open_target(plan.connection, find) as target:
        ends = {tp: found.end for tp, found in target.log.offsets_briefly([p.target for p in plan.partitions]).items()}
    return Status(plan, ends, is_complete=False)
