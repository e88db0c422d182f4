"""Rehearsals: a random range of the archive is restored into a separate topic, compared, and deleted again.

A rehearsal shows that the archive can be restored, and how fast. It reads whole backup objects that follow each other,
about as many bytes as configured. An object that is damaged or missing fails the rehearsal, which names it.
"""

from __future__ import annotations

import hashlib
import logging
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from waybill.archive.chain.chain import ChainObject, walk_chain
from waybill.archive.restore.request import RestoreRequest
from waybill.archive.restore.service import begin_restore, compare_restore, run_restore
from waybill.base.documents import Document, spaced
from waybill.base.errors import RestoreRefused, RestoreStopped
from waybill.config.connections import Connection, KafkaEndpoint, find_connection
from waybill.config.models import Config
from waybill.config.models.enums import BackupFormat
from waybill.config.names import TopicPartition, is_topic, restore_event_key
from waybill.services.kafka.target import TargetCluster
from waybill.services.store import Store

logger = logging.getLogger(__name__)

TOPIC_PREFIX = "waybill-rehearsal-"
_EVENT = "rehearsal"
_DOCUMENT = Document(dump=spaced)
FindConnection = Callable[[str], Connection]


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """The restored range of a rehearsal, and its duration."""

    restore: str
    stream: str
    topic: str
    partition: int
    first_offset: int
    next_offset: int
    messages: int
    size_bytes: int
    """The size of the backup objects."""
    restore_seconds: float
    compare_seconds: float
    stream_bytes: int
    """The size of all backup objects of the stream's generation."""

    @property
    def recovery_seconds(self) -> float:
        """How long a restore of the whole stream would take at this speed."""
        return self.restore_seconds * self.stream_bytes / self.size_bytes if self.size_bytes else 0.0


@dataclass(frozen=True, slots=True)
class _Choice:
    stream: str
    tp: TopicPartition
    first_offset: int
    next_offset: int
    size_bytes: int
    stream_bytes: int


def rehearse(
    config: Config,
    seed: str,
    *,
    stream: str | None = None,
    find: FindConnection = find_connection,
) -> Rehearsed | None:
    """Restore a random range, compare it, delete the topic, and store and return the figures.

    `seed` chooses the range, so that a retry chooses the same range, and removes the topic of a rehearsal with this
    seed that was killed. Returns None if nothing is archived in the format `kafka`. Raises `RestoreStopped`,
    `ChainBroken` or `CorruptBatch`, which name the object that cannot be restored.
    """
    settings = config.restore.rehearsal
    with Store.of(config.storage, find) as store:
        choice = _choose(config, store, random.Random(seed), stream)
    if choice is None:
        return None
    logger.info("rehearsing %s, offsets %d–%d", choice.tp, choice.first_offset, choice.next_offset - 1)
    own_prefix = f"{TOPIC_PREFIX}{hashlib.sha256(seed.encode()).hexdigest()[:12]}-"
    topic = f"{own_prefix}{secrets.token_hex(4)}"
    request = RestoreRequest(
        stream=choice.stream,
        connection=settings.connection,
        to_topic=topic,
        offsets={choice.tp: (choice.first_offset, choice.next_offset)},
        create=True,
        suspend_cleanup=True,
    )
    with TargetCluster(KafkaEndpoint.of(find(settings.connection))) as target:
        for left_behind in target.log.topics():
            if left_behind.startswith(own_prefix):
                target.delete_topic(left_behind)
        try:
            return _carry_out(config, request, choice, find)
        finally:
            target.delete_topic(topic)


def _carry_out(config: Config, request: RestoreRequest, choice: _Choice, find: FindConnection) -> Rehearsed:
    plan = begin_restore(config, request, by="rehearsal", reason="a rehearsal", find=find)
    begun = time.monotonic()
    (result,) = run_restore(config, plan.id, find=find)
    if result.error is not None:
        raise result.error
    restored = time.monotonic()
    report = compare_restore(config, plan.id, find)
    if not report["sound"]:
        raise RestoreStopped(
            f"rehearsal {plan.id}: {choice.tp}: {report['partitions'][0]['difference']}. The archive cannot be "
            f"restored as it is: look at the object with `waybill verify {choice.stream}`"
        )
    rehearsed = Rehearsed(
        restore=plan.id,
        stream=choice.stream,
        topic=choice.tp.topic,
        partition=choice.tp.partition,
        first_offset=choice.first_offset,
        next_offset=choice.next_offset,
        messages=int(report["messages"]),
        size_bytes=choice.size_bytes,
        restore_seconds=restored - begun,
        compare_seconds=time.monotonic() - restored,
        stream_bytes=choice.stream_bytes,
    )
    with Store.of(config.storage, find) as store:
        content = _DOCUMENT.write({"at": datetime.now(UTC).isoformat(), **asdict(rehearsed)})
        store.replace(restore_event_key(store.prefix, plan.id, _EVENT), content)
    return rehearsed


def _choose(config: Config, store: Store, chosen: random.Random, only: str | None) -> _Choice | None:
    """Return a random range: of a random chain of a random stream, from a random object on."""
    if only is not None:
        config.stream(only)
    names = [only] if only is not None else list(config.streams)
    names = [name for name in names if config.stream(name).format.name is BackupFormat.KAFKA]
    if only is not None and not names:
        raise RestoreRefused(f"stream {only!r} is archived in another format than `kafka`, which cannot be restored")
    chosen.shuffle(names)
    for name in names:
        stream = config.stream(name)
        chains = sorted(
            chain.tp
            for topic in store.topics()
            if is_topic(topic) and stream.matches(topic)
            for chain in store.chains(topic)
            if chain.generation == stream.generation
        )
        if not chains:
            continue
        tp = chosen.choice(chains)
        objects = list(walk_chain(store, stream.generation, tp))
        taken = _follow(objects, chosen.randrange(len(objects)), int(config.restore.rehearsal.max_bytes))
        return _Choice(
            stream=name,
            tp=tp,
            first_offset=taken[0].name.first_offset,
            next_offset=taken[-1].next_offset,
            size_bytes=sum(each.size_bytes for each in taken),
            stream_bytes=sum(_size_bytes(store, stream.generation, tp) for tp in chains),
        )
    return None


def _size_bytes(store: Store, generation: int, tp: TopicPartition) -> int:
    return sum(each.size_bytes for each in store.list_chain(tp.topic, generation, tp.partition))


def _follow(objects: list[ChainObject], start: int, max_bytes: int) -> list[ChainObject]:
    """Return the objects from one on, up to a size, at least one."""
    taken = [objects[start]]
    size_bytes = objects[start].size_bytes
    for each in objects[start + 1 :]:
        size_bytes += each.size_bytes
        if size_bytes > max_bytes:
            break
        taken.append(each)
    return taken
