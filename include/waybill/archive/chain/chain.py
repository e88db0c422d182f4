"""The chain of one topic-partition in one generation: its backup objects in order, and where each of them ends.

The name of an object contains the offset at which its range starts. Its range ends where the next object starts. The
range of the last object ends at the committed offset or, without one, after its own last record batch
(docs/decisions/0001-objects-describe-themselves.md).

What this relies on: a listing that begins after the committed offset was read contains every object before that offset.
So read the committed offset first, then list the chain.

A chain start is the stored record of the offset at which a chain begins, written before the chain's first object.
ZooKeeper must not be the only place that stores this offset. The configured start `latest` moves, and so does the first
offset that Kafka's retention leaves. If a chain without objects lost its start together with ZooKeeper's data, it would
begin again at a later offset, and the offsets in between would be skipped without a trace. So the start is an S3
object, created if absent: the first lane decides, and every later lane uses that decision.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from waybill.archive.chain import object_reader
from waybill.base.documents import Document, Stored, spaced
from waybill.base.errors import ChainBroken, MixedFormats
from waybill.config import names
from waybill.config.names import BackupName, Extension, TopicPartition
from waybill.services.coordination import CommittedOffset
from waybill.services.store import Store, StoredObject


@dataclass(frozen=True, slots=True)
class ChainStart(Stored):
    """The offset at which a chain begins, and the state of the topic when that was decided."""

    DOCUMENT: ClassVar = Document(
        "{where} is not a valid chain start ({kind}: {error}): restore it from the bucket's versions",
        converts=True,
        dump=spaced,
    )

    offset: int
    topic_id: str
    """Kafka's id of the topic; '' if the broker did not report one."""
    partitions: int
    """The number of partitions of the topic."""
    extension: Extension
    """The format of the chain's objects."""


def record_chain_start(store: Store, generation: int, tp: TopicPartition, start: ChainStart) -> ChainStart:
    """Store where a chain begins, unless it is stored already. Return the stored start."""
    key = names.chain_start_key(store.prefix, tp.topic, generation, tp.partition)
    existing = store.create_or_read_existing(key, start.to_json())
    return start if existing is None else ChainStart.from_json(key, existing)


def find_chain_start(store: Store, generation: int, tp: TopicPartition) -> ChainStart | None:
    """Return the stored start of a chain; None if none is stored."""
    key = names.chain_start_key(store.prefix, tp.topic, generation, tp.partition)
    data = store.read_if_exists(key)
    return None if data is None else ChainStart.from_json(key, data)


@dataclass(frozen=True, slots=True)
class ChainObject:
    """One backup object and its range `[name.first_offset, next_offset)`. Readers clip its messages to the range."""

    name: BackupName
    key: str
    next_offset: int
    size_bytes: int
    modified: datetime | None = None
    """When S3 stored the object; None: unknown."""


# --- all objects of a chain -------------------------------------------------------------------------------------------


def walk_chain(
    store: Store,
    generation: int,
    tp: TopicPartition,
    *,
    from_offset: int | None = None,
    committed_offset: int | None = None,
) -> Iterator[ChainObject]:
    """Yield the objects of a chain in order, from the one that holds `from_offset` (default: from the first).

    `committed_offset` must have been read before this call. With it, the last object need not be read for its end.

    Raises `ChainBroken` when the chain starts after `from_offset`, ends before the committed offset, or its last object
    does not hold the range that its name states. Raises `MixedFormats` when
    the objects are of more than one format.
    """
    listed = _list_from(store, generation, tp, from_offset, committed_offset)
    current = next(listed, None)
    if current is None:
        if committed_offset is not None and from_offset is not None and from_offset < committed_offset:
            raise _not_held(generation, tp, from_offset, committed_offset)
        return
    if from_offset is not None and current.name.first_offset > from_offset:
        raise _not_held(generation, tp, from_offset, current.name.first_offset)
    for following in listed:
        if following.name.extension is not current.name.extension:
            raise _mixed_formats(current, following)
        yield _chain_object(current, following.name.first_offset)
        current = following
    if committed_offset is not None and committed_offset > current.name.first_offset:
        final = _chain_object(current, committed_offset)
    else:
        final = _chain_object(current, object_reader.read_next_offset(store, current))
    if from_offset is None or final.next_offset > from_offset:
        yield final


def _list_from(
    store: Store, generation: int, tp: TopicPartition, from_offset: int | None, committed_offset: int | None
) -> Iterator[StoredObject]:
    """List from the object that holds `from_offset`. An object nearly always starts there, and one call is enough."""
    if from_offset is None:
        yield from store.list_chain(tp.topic, generation, tp.partition)
        return
    listed = store.list_chain(tp.topic, generation, tp.partition, start_after=from_offset - 1 if from_offset else None)
    first = next(listed, None)
    if first is None and committed_offset is not None and committed_offset <= from_offset:
        return
    if first is None or first.name.first_offset > from_offset:
        preceding = _find_last_up_to(store, generation, tp, from_offset)
        if preceding is not None:
            yield preceding
    if first is not None:
        yield first
    yield from listed


def _find_last_up_to(store: Store, generation: int, tp: TopicPartition, offset: int) -> StoredObject | None:
    """Return the last object that starts at or before `offset`. S3 lists only forwards, so list from the start."""
    last = None
    for stored in store.list_chain(tp.topic, generation, tp.partition):
        if stored.name.first_offset > offset:
            break
        last = stored
    return last


def _chain_object(stored: StoredObject, next_offset: int) -> ChainObject:
    return ChainObject(stored.name, stored.key, next_offset, stored.size_bytes, stored.modified)


def _not_held(generation: int, tp: TopicPartition, first_offset: int, next_offset: int) -> ChainBroken:
    return ChainBroken(f"{tp}, generation {generation}: no object holds offsets {first_offset}–{next_offset - 1}")


def _mixed_formats(one: StoredObject, other: StoredObject) -> MixedFormats:
    return MixedFormats(
        f"{one.name.topic}/{one.name.partition}: {one.key} and {other.key} are of different formats, but all objects "
        f"of a chain have one format. Look at both with `waybill cat`, move away the one that the stream's format did "
        f"not write, and run `waybill verify`"
    )


# --- the end of a chain -----------------------------------------------------------------------------------------------


def find_last_object(store: Store, generation: int, tp: TopicPartition) -> StoredObject | None:
    """Return the last object of a chain; None if the chain has no object.

    S3 lists only forwards: this takes one call for each thousand objects.

    Raises `MixedFormats` when the chain holds objects of more than one format.
    """
    last: StoredObject | None = None
    for stored in store.list_chain(tp.topic, generation, tp.partition):
        if last is not None and stored.name.extension is not last.name.extension:
            raise _mixed_formats(last, stored)
        last = stored
    return last


def read_chain_end(store: Store, generation: int, tp: TopicPartition) -> int | None:
    """Return the offset at which a chain ends, from its listing and its last object; None if it has no object.

    Raises `ChainBroken` when the last object is missing, damaged, or does not hold the range that its name states.
    """
    last = find_last_object(store, generation, tp)
    return None if last is None else object_reader.read_next_offset(store, last)


def find_uncommitted_object(
    store: Store, generation: int, tp: TopicPartition, committed: CommittedOffset
) -> StoredObject | None:
    """Return the object that starts at the committed offset; None if there is none. This takes one listing call.

    Such an object exists when a lane died after it created the object and before it committed.

    Raises `ChainBroken` if the object before the committed offset is missing, or if objects start after the committed
    offset but none starts at it.
    """
    offset, last_object_offset = committed.committed_offset, committed.last_object_offset
    start = offset if last_object_offset is None else last_object_offset
    listed = store.list_chain(tp.topic, generation, tp.partition, start_after=start - 1 if start else None)
    following = next(listed, None)
    if last_object_offset is not None and last_object_offset < offset:
        if following is None or following.name.first_offset != last_object_offset:
            raise _last_object_missing(tp, last_object_offset, offset)
        following = next(listed, None)
    if following is None or following.name.first_offset == offset:
        return following
    beyond = following.name.first_offset
    raise ChainBroken(
        f"{tp}: no backup object starts or ends at the committed offset {offset}, but {following.key} starts at "
        f"{beyond}. Check the chain with `waybill verify --no-table`: if it is complete, the committed offset is "
        f"wrong, and `waybill offsets rebuild --topic {tp.topic} --yes` sets it from the chain",
        min(offset, beyond),
        max(offset, beyond),
    )


def committed_from_chain(store: Store, generation: int, tp: TopicPartition, now_ms: int) -> CommittedOffset | None:
    """Return the committed offset that follows from a chain's last object; None if the chain has no object.

    `now_ms` (milliseconds since 1970 UTC) becomes the time of the commit.

    Raises `ChainBroken` when the last object is missing, damaged, or does not hold the range that its name states.
    """
    last = find_last_object(store, generation, tp)
    if last is None:
        return None
    with add_restore_remedy(last.key, last.name.first_offset):
        summary = object_reader.inspect_object(store, last.name, last.key)
    metadata = store.metadata(last.key)
    start = find_chain_start(store, generation, tp)
    return CommittedOffset(
        committed_offset=summary.next_offset,
        topic_id=metadata.get("topic-id", ""),
        leader_epoch=summary.leader_epoch,
        object_bytes=summary.size_bytes,
        object_messages=summary.messages,
        committed_at_ms=now_ms,
        start_offset=None if start is None else start.offset,
        last_object_offset=last.name.first_offset,
        extension=last.name.extension,
        checkpoint=None if summary.slot_state is None else summary.slot_state.checkpoint,
    )


@contextmanager
def add_restore_remedy(key: str, first_offset: int) -> Iterator[None]:
    """Add the remedy to a `ChainBroken` of the chain's last object.

    The last object can be removed by hand, since no other object and no committed offset depends on it yet.
    """
    try:
        yield
    except ChainBroken as error:
        raise ChainBroken(
            f"{error}. Ingest of this topic-partition is stopped, and no object is overwritten: restore the object "
            f"from the bucket's versions or replica, or move {key} away by hand. The next run then archives the "
            f"offsets from {first_offset} again; offsets that Kafka no longer has become a RetentionGap that you can "
            f"accept",
            first_offset,
            error.next_offset,
        ) from error


def _last_object_missing(tp: TopicPartition, first_offset: int, next_offset: int) -> ChainBroken:
    return ChainBroken(
        f"{tp}: the chain's last backup object, offsets {first_offset}–{next_offset - 1}, is missing. Restore it from "
        f"the bucket's versions or replica. If it is lost, `waybill offsets rebuild --topic {tp.topic} --yes` sets the "
        f"committed offset back to the chain's present end, and the next run archives again what Kafka still has of "
        f"these offsets",
        first_offset,
        next_offset,
    )
