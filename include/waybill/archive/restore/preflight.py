"""Preflight: find problems that would make a restore fail or lose messages, before it produces any message.

`creation` plans how a missing topic is created, `figures` reads times and sizes from the archive, and `topic_checks`
finds configs of the target topic that would refuse or delete messages. A figure can be an estimate. If it misses a
message that the target refuses, the restore itself names that message (`refusal`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from waybill.archive.chain.chain import find_chain_start
from waybill.archive.chain.topic_settings import find_topic_settings
from waybill.archive.restore.creation import CREATE_TIME, TIMESTAMP_TYPE, Creation, plan_creation
from waybill.archive.restore.figures import BatchFigures, measure
from waybill.archive.restore.problem import RestoreProblem
from waybill.archive.restore.request import RestoreRequest, SourceRange
from waybill.archive.restore.topic_checks import check_retention, check_topic
from waybill.config.models import Config
from waybill.config.names import TopicPartition
from waybill.records.batches.limits import LARGEST
from waybill.services.kafka.target import AclOperation, TargetCluster, TargetTopic
from waybill.services.store import Store

SUSPENDED = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
"""The configs of a target that keeps everything while a restore runs."""

WHILE_RESTORING = {**SUSPENDED, TIMESTAMP_TYPE: CREATE_TIME}
"""The value of each config that a plan may suspend, while the restore runs."""

_OPERATIONS = (AclOperation.WRITE, AclOperation.READ)


@dataclass(slots=True)
class Findings:
    """The result of a preflight."""

    problems: list[RestoreProblem] = field(default_factory=list)
    creations: dict[str, Creation] = field(default_factory=dict)
    """By target topic: how missing topics will be created."""


def examine(
    config: Config,
    store: Store,
    target: TargetCluster,
    request: RestoreRequest,
    ranges: Sequence[SourceRange],
    now: datetime,
) -> Findings:
    """Return the problems of a restore into the present target, and how missing topics will be created."""
    findings = Findings()
    problems = findings.problems
    figures = measure(store, ranges)
    for topic in sorted({each.tp.topic for each in ranges}):
        name = request.target_of(topic)
        own = [each for each in ranges if each.tp.topic == topic]
        problems.extend(_would_be_archived_again(config, request, name))
        found = target.find_topic(name)
        if found is None and not request.create:
            problems.append(
                RestoreProblem(
                    f"topic {name!r} does not exist at {target.where}",
                    f"Create it with at least {_partitions(own)} partitions, or give --create",
                )
            )
            continue
        if found is None:
            creation = _creation(config, store, target, request, topic, own)
            findings.creations[name] = creation
            problems.extend(_of_creation(creation, request))
            found = creation.topic
        problems.extend(_of_topic(target, request, found, figures[topic], own, now))
    problems.extend(_estimated(figures))
    problems.extend(_two_topics_into_one(request, ranges))
    problems.extend(_quotas(target, ranges))
    return findings


def _creation(
    config: Config,
    store: Store,
    target: TargetCluster,
    request: RestoreRequest,
    topic: str,
    ranges: Sequence[SourceRange],
) -> Creation:
    settings = find_topic_settings(store, topic)
    partitions = _archived_partitions(store, config.stream(request.stream).generation, topic, ranges)
    own = {} if settings is None else settings.config
    return plan_creation(target, request.target_of(topic), partitions, request.replication_factor, own)


def _archived_partitions(store: Store, generation: int, topic: str, ranges: Sequence[SourceRange]) -> int:
    """Return how many partitions the archived topic had when its chains began, at least those of the ranges."""
    settings = find_topic_settings(store, topic)
    numbers = [0 if settings is None else settings.partitions, _partitions(ranges)]
    for chain_id in store.chains(topic):
        if chain_id.generation == generation:
            start = find_chain_start(store, generation, chain_id.tp)
            numbers += [chain_id.tp.partition + 1, 0 if start is None else start.partitions]
    return max(numbers)


def _of_creation(creation: Creation, request: RestoreRequest) -> Iterator[RestoreProblem]:
    yield from creation.problems
    is_refused = any(not each.is_warning for each in creation.problems)
    if not creation.is_described and not is_refused:
        yield RestoreProblem(
            f"the target does not state which configs topic {creation.topic.name!r} will have: its defaults are not "
            f"checked",
            f"Give the user of {request.connection!r} the ACL DescribeConfigs on the topic, to have them checked",
            is_warning=True,
        )


def _estimated(figures: Mapping[str, BatchFigures]) -> Iterator[RestoreProblem]:
    """Return the sentence that timestamps and sizes are known only for a part of the messages."""
    partly = [each for each in figures.values() if each.is_estimate]
    if partly:
        read, of = sum(each.read_bytes for each in partly), sum(each.size_bytes for each in partly)
        yield RestoreProblem(
            f"timestamps and sizes of batches are an estimate: {read:,} of {of:,} bytes of {len(partly)} topics were "
            f"read for them",
            "If the target refuses a message that was not read, the restore stops there, names it and the config to "
            "change, and can be continued",
            is_warning=True,
        )


def _partitions(ranges: Sequence[SourceRange]) -> int:
    return max(each.tp.partition for each in ranges) + 1


def _of_topic(
    target: TargetCluster,
    request: RestoreRequest,
    topic: TargetTopic,
    figures: BatchFigures,
    ranges: Sequence[SourceRange],
    now: datetime,
) -> Iterator[RestoreProblem]:
    name, config = topic.name, topic.config
    if topic.partitions < _partitions(ranges):
        yield RestoreProblem(
            f"topic {name!r} has {topic.partitions} partitions, and the archive needs {_partitions(ranges)}",
            "Add partitions, or restore into another topic: keys stay in their partitions",
        )
    if "compact" in config.get("cleanup.policy", "") and not request.suspend_cleanup:
        yield RestoreProblem(
            f"topic {name!r} is compacted (cleanup.policy={config['cleanup.policy']}): restored messages would vanish "
            f"while the restore runs",
            "Give --suspend-cleanup, which sets cleanup.policy=delete until the restore is complete",
        )
    if not request.suspend_cleanup:
        yield from check_retention(topic, figures, ranges, now)
    yield from check_topic(topic, figures, ranges, now)
    missing = [operation for operation in _operations(request) if topic.allowed and operation not in topic.allowed]
    if missing:
        yield RestoreProblem(
            f"the user of {request.connection!r} may not {', '.join(each.name for each in missing)} topic {name!r}",
            f"Give it the ACLs {', '.join(each.name for each in missing)} on the topic",
        )
    elif topic.topic_id:
        yield from _not_empty(target, topic, ranges)


def _operations(request: RestoreRequest) -> tuple[AclOperation, ...]:
    return (*_OPERATIONS, AclOperation.ALTER_CONFIGS) if request.suspend_cleanup else _OPERATIONS


def _not_empty(target: TargetCluster, topic: TargetTopic, ranges: Sequence[SourceRange]) -> Iterator[RestoreProblem]:
    tps = [TopicPartition(topic.name, each.tp.partition) for each in ranges if each.tp.partition < topic.partitions]
    for tp, log_range in sorted(target.log.offsets(tps).items()):
        if log_range.end > log_range.earliest:
            yield RestoreProblem(
                f"{tp} of the target is not empty: it has offsets {log_range.earliest}–{log_range.end - 1}",
                "Restore into another topic (--to-topic), or delete this one. To continue a restore, give its --id",
            )


def _would_be_archived_again(config: Config, request: RestoreRequest, name: str) -> Iterator[RestoreProblem]:
    if request.connection != config.kafka.connection:
        return
    for stream in config.streams:
        if config.stream(stream).matches(name):
            yield RestoreProblem(
                f"stream {stream!r} archives topic {name!r} of this cluster: the restored messages would be archived "
                f"again",
                "Give --to-topic a name that no stream matches, or remove the topic from the stream first",
            )


def _two_topics_into_one(request: RestoreRequest, ranges: Sequence[SourceRange]) -> Iterator[RestoreProblem]:
    topics = sorted({each.tp.topic for each in ranges})
    if len({request.target_of(topic) for topic in topics}) < len(topics):
        yield RestoreProblem(
            f"topics {', '.join(topics)} would all go to topic {request.to_topic!r}",
            "Let --to-topic contain {topic}, or choose the topic-partitions of one topic",
        )


def _quotas(target: TargetCluster, ranges: Sequence[SourceRange]) -> Iterator[RestoreProblem]:
    size_bytes = sum(each.size_bytes for each in ranges)
    for who, bytes_per_second in sorted(target.producer_quotas().items()):
        if bytes_per_second > 0:
            takes = timedelta(seconds=round(size_bytes / bytes_per_second))
            yield RestoreProblem(
                f"the target limits producers of {who} to {bytes_per_second:,.0f} bytes/s for each broker",
                f"If that applies to {target.where}, the restore takes up to {takes} on one broker",
                is_warning=True,
            )


def examine_schemas(
    store: Store, ranges: Sequence[SourceRange], is_known: Callable[[int], bool]
) -> Iterator[RestoreProblem]:
    """Yield a problem for each schema id in the values that the target's registry does not know.

    This reads and decodes the whole range. An id is the four bytes after a first byte of 0, Confluent's framing.
    """
    found: set[int] = set()
    for each in ranges:
        for schema_id in _schema_ids(store, each) - found:
            found.add(schema_id)
            if not is_known(schema_id):
                yield RestoreProblem(
                    f"{each.tp}: messages have schema id {schema_id}, which the target's registry does not know",
                    "Register the schemas there with the same ids (mode IMPORT) before the restore",
                )


def _schema_ids(store: Store, each: SourceRange) -> set[int]:
    import pyarrow.compute as pc

    from waybill.archive.chain.spans import read_span, spans_from

    ids: set[int] = set()
    for span in spans_from(each.tp, each.objects, each.first_offset):
        for messages in read_span(store, span, in_part=True, limits=LARGEST):
            heads = pc.unique(pc.binary_slice(messages.column("value").drop_null(), 0, 5)).to_pylist()
            ids.update(int.from_bytes(head[1:], "big") for head in heads if len(head) == 5 and head[0] == 0)
    return ids
