"""The operations on restores that the command line and the DAG call: preview, begin, run, compare, move groups."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from waybill.archive.restore.comparison import NOT_CHECKED, PartitionComparison, compare
from waybill.archive.restore.creation import Creation
from waybill.archive.restore.groups import GroupMove, commit_moves, plan_moves
from waybill.archive.restore.offset_map import find_mapped_end
from waybill.archive.restore.preflight import SUSPENDED, WHILE_RESTORING, examine, examine_schemas
from waybill.archive.restore.problem import RestoreProblem
from waybill.archive.restore.progress import check_target
from waybill.archive.restore.request import RestoreRequest, SourceRange, find_ranges
from waybill.archive.restore.restore_plan import PartitionPlan, RestorePlan, find_plan
from waybill.archive.restore.restore_run import PartitionResult, restore
from waybill.base import failpoints
from waybill.base.documents import Document, spaced
from waybill.base.errors import KafkaUnavailable, ObjectExists, RestoreRefused
from waybill.config.connections import Connection, KafkaEndpoint, RegistryEndpoint, find_connection
from waybill.config.models import Config
from waybill.config.names import TopicPartition, restore_event_key, restore_plan_key, restore_report_key
from waybill.services.clients.registry import SchemaRegistry
from waybill.services.kafka.target import AclOperation, TargetCluster, TargetTopic
from waybill.services.store import Store

_COMPLETE = "complete"
_COMPLETED = Document(dump=spaced)
_REPORT = Document(dump=lambda report: json.dumps(report, indent=1).encode())
FindConnection = Callable[[str], Connection]


@dataclass(frozen=True, slots=True)
class Preview:
    """The ranges that a restore would produce, and its problems."""

    ranges: tuple[SourceRange, ...]
    problems: tuple[RestoreProblem, ...]
    creations: Mapping[str, Creation] = field(default_factory=dict)
    """By target topic: how missing topics will be created."""

    @property
    def is_possible(self) -> bool:
        return all(each.is_warning for each in self.problems)


@dataclass(frozen=True, slots=True)
class RestoreStatus:
    """The progress of a restore."""

    plan: RestorePlan
    target_ends: Mapping[TopicPartition, int]
    """The end of the log of each target topic-partition that answers."""
    is_complete: bool

    def messages(self, partition: PartitionPlan) -> int | None:
        """Return how many messages the target has of a topic-partition's range; None if it does not answer."""
        end = self.target_ends.get(partition.target)
        return None if end is None else max(end - partition.target_offset, 0)


def preview_restore(config: Config, request: RestoreRequest, find: FindConnection = find_connection) -> Preview:
    """Return the ranges of a request, and the problems that the preflight finds. Nothing is changed.

    Raises `RestoreRefused` when the archive does not have the requested offsets.
    """
    with Store.of(config.storage, find) as store, _open_target(request.connection, find) as target:
        return _preview(config, store, target, request, find)


def _open_target(connection: str, find: FindConnection) -> TargetCluster:
    return TargetCluster(KafkaEndpoint.of(find(connection)))


def _preview(
    config: Config, store: Store, target: TargetCluster, request: RestoreRequest, find: FindConnection
) -> Preview:
    ranges = find_ranges(store, config.stream(request.stream), request)
    findings = examine(config, store, target, request, ranges, datetime.now(UTC))
    problems = findings.problems
    if request.registry is not None:
        registry = SchemaRegistry(RegistryEndpoint.of(find(request.registry)))
        problems += examine_schemas(store, ranges, lambda schema_id: registry.find(schema_id) is not None)
    return Preview(tuple(ranges), tuple(problems), findings.creations)


def begin_restore(
    config: Config,
    request: RestoreRequest,
    *,
    by: str,
    reason: str,
    restore_id: str | None = None,
    find: FindConnection = find_connection,
) -> RestorePlan:
    """Check a request, create missing topics if requested, and store its plan. No message is produced yet.

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
        plan = _make_plan(config, target, request, preview, by, reason, restore_id)
        key = restore_plan_key(store.prefix, plan.id)
        stored = store.create_or_read_existing(key, plan.to_json())
        failpoints.reach("restore.planned")
        return plan if stored is None else RestorePlan.from_json(key, stored)


def _make_plan(
    config: Config,
    target: TargetCluster,
    request: RestoreRequest,
    preview: Preview,
    by: str,
    reason: str,
    restore_id: str | None,
) -> RestorePlan:
    now, ranges = datetime.now(UTC), preview.ranges
    warnings = [str(each) for each in preview.problems]
    topic_ids: dict[str, str] = {}
    suspended: dict[str, dict[str, str | None]] = {}
    for topic in sorted({each.tp.topic for each in ranges}):
        name = request.target_of(topic)
        found, creation = target.find_topic(name), preview.creations.get(name)
        if found is None and creation is not None:
            own = creation.topic.own_config
            target.create_topic(name, creation.topic.partitions, request.replication_factor, own)
            found = target.find_topic(name)
        if found is None:
            state = "was deleted after the preflight" if creation is None else "was created, and does not exist"
            raise KafkaUnavailable(f"topic {name!r} at {target.where} {state}")
        topic_ids[name] = found.topic_id
        if request.suspend_cleanup:
            suspended[name] = {key: found.own_config.get(key) for key in SUSPENDED}
        if creation is not None and creation.comes_back:
            if _may_change(found):
                suspended.setdefault(name, {}).update(creation.comes_back)
            else:
                warnings.append(_stays(request, name, creation))
    targets = [TopicPartition(request.target_of(each.tp.topic), each.tp.partition) for each in ranges]
    ends = target.log.offsets(targets)
    producer = target.producer.new_producer()
    return RestorePlan(
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
        warnings=tuple(warnings),
    )


def _may_change(topic: TargetTopic) -> bool:
    return not topic.allowed or AclOperation.ALTER_CONFIGS in topic.allowed


def _stays(request: RestoreRequest, name: str, creation: Creation) -> str:
    keys = ", ".join(creation.comes_back)
    return (
        f"topic {name!r} keeps the {keys} that it is created with: the user of {request.connection!r} may not change "
        f"its configs (ACL ALTER_CONFIGS). Set {keys} yourself when everything is restored"
    )


def run_restore(
    config: Config,
    restore_id: str,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    report: Callable[[PartitionResult], None] = lambda _: None,
    find: FindConnection = find_connection,
) -> list[PartitionResult]:
    """Produce the messages that the target lacks, and then set the target's own configs again.

    A restore that was interrupted continues. Raises the errors of `restore.run.restore`, and `RestoreRefused` if there
    is no such restore.
    """
    with Store.of(config.storage, find) as store:
        plan = find_plan(store, restore_id)
        with _open_target(plan.connection, find) as target:
            is_complete = store.exists(restore_event_key(store.prefix, plan.id, _COMPLETE))
            is_missing = not is_complete or (bool(plan.suspended) and _has_lost(store, target, plan))
            if is_missing:
                for name, own in plan.suspended.items():
                    target.change_config(name, {key: WHILE_RESTORING[key] for key in own})
                failpoints.reach("restore.target_changed")
            results = restore(store, target, plan, should_stop=should_stop, report=report)
            if all(each.is_complete for each in results) and is_missing:
                failpoints.reach("restore.produced")
                for name, own in plan.suspended.items():
                    target.change_config(name, own)
                failpoints.reach("restore.target_changed_back")
                _record_completion(store, plan)
            return results


def _has_lost(store: Store, target: TargetCluster, plan: RestorePlan) -> bool:
    """Return whether a topic-partition of a complete restore has fewer messages than were restored.

    An unclean leader election can cause this. Messages that are produced again need the same configs as before: with
    LogAppendTime, they would get other timestamps.
    """
    check_target(target, plan)
    ends = target.log.offsets([each.target for each in plan.partitions])
    return any(ends[each.target].end < find_mapped_end(store, plan.id, each.source) for each in plan.partitions)


def _record_completion(store: Store, plan: RestorePlan) -> None:
    content = _COMPLETED.write({"at": datetime.now(UTC).isoformat()})
    with suppress(ObjectExists):  # a rival has completed it
        store.create_if_absent(restore_event_key(store.prefix, plan.id, _COMPLETE), content)


def compare_restore(config: Config, restore_id: str, find: FindConnection = find_connection) -> dict[str, Any]:
    """Compare all restored messages with the archive, store the report, and return it.

    In the report, `sound` is true if there is no difference; `not_checked` lists the properties that were not compared.
    """
    with Store.of(config.storage, find) as store:
        plan = find_plan(store, restore_id)
        with _open_target(plan.connection, find) as target:
            comparisons = list(compare(store, target, plan))
        document = _report(plan, comparisons)
        store.replace(restore_report_key(store.prefix, plan.id), _REPORT.write(document), "application/json")
        return document


def _report(plan: RestorePlan, comparisons: Sequence[PartitionComparison]) -> dict[str, Any]:
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
) -> list[GroupMove]:
    """Return where consumer groups continue in the target; with `commit`, commit these offsets there."""
    with Store.of(config.storage, find) as store:
        plan = find_plan(store, restore_id)
        with _open_target(plan.connection, find) as target:
            moves = plan_moves(store, target, plan, groups, backwards=backwards)
            if commit:
                moves = commit_moves(target, moves)
                failpoints.reach("restore.groups_committed")
            return moves


def read_status(store: Store, plan: RestorePlan, find: FindConnection = find_connection) -> RestoreStatus:
    """Return the progress of a restore. If it is complete, the target gets no request, since it may no longer exist."""
    if store.exists(restore_event_key(store.prefix, plan.id, _COMPLETE)):
        return RestoreStatus(plan, {}, is_complete=True)
    with _open_target(plan.connection, find) as target:
        ends = {tp: found.end for tp, found in target.log.offsets_briefly([p.target for p in plan.partitions]).items()}
    return RestoreStatus(plan, ends, is_complete=False)
