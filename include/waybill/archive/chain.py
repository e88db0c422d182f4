"""The chain of one (generation, topic-partition): which backup objects there are, and where each ends.

An object's name says where its range starts. Where it ends is said by the object after it, which starts there; for the
last one by the committed offset, or else by its own last record batch (docs/decisions/0001).

What this relies on: a listing that begins after the committed offset was read shows every object that this offset
counts. So read the committed offset first, then walk.

Where a chain begins, kept in S3 from before its first object on.

ZooKeeper alone must not know it: `latest` moves, and so does what retention leaves. A chain that lost its start
together with ZooKeeper's data would begin anew further on, and what lies in between would be skipped in silence. So
the start is an object, created if absent: the first lane decides, and every later one goes by that.

The end of a chain as ingest needs it: checked against the committed offset, or taken for it where there is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from waybill import names
from waybill.coordination import Committed
from waybill.documents import read_document
from waybill.errors import ChainBroken, ConfigError, CorruptBatch, GenerationConflict, ObjectMissing
from waybill.names import BackupName, Extension, TopicPartition
from waybill.records import framing
from waybill.store import Store, StoredObject

__all__ = [
    "ChainObject",
    "ChainStart",
    "Contents",
    "committed_from_chain",
    "end_offset",
    "find_start",
    "find_uncommitted",
    "inspect",
    "last",
    "next_offset",
    "record_start",
    "removable",
    "walk",
]


@dataclass(frozen=True, slots=True)
class ChainObject:
    """One backup object and its range `[name.first_offset, next_offset)`. Readers clip its messages to the range."""

    name: BackupName
    key: str
    next_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Contents:
    """What a backup object holds, as read from its record batches. Times are milliseconds since 1970 UTC."""

    next_offset: int
    """The next offset of the last batch."""
    messages: int
    batches: int
    """0 for a format that has none."""
    size_bytes: int
    leader_epoch: int
    """That of the last batch; -1 if Kafka did not say."""
    min_timestamp_ms: int
    """The lowest base timestamp of a batch with messages; -1 if there is none."""
    max_timestamp_ms: int
    """The highest timestamp; -1 if there is none."""


def walk(
    store: Store,
    generation: int,
    tp: TopicPartition,
    *,
    from_offset: int | None = None,
    committed_offset: int | None = None,
) -> Iterator[ChainObject]:
    """The objects of a chain in order, from the one that holds `from_offset` (default: from the first).

    `committed_offset`, read before this call, saves reading the last object for its end.

    Raises `ChainBroken` when the chain starts after `from_offset`, ends before the committed offset, or its last object
    does not hold what its name says. `ObjectMissing` and `CorruptBatch` do not get out of here.
    """
    listed = _listed(store, generation, tp, from_offset, committed_offset)
    current = next(listed, None)
    if current is None:
        if committed_offset is not None and from_offset is not None and from_offset < committed_offset:
            raise ChainBroken(f"{_chain(generation, tp)}: no object holds offsets {from_offset}–{committed_offset - 1}")
        return
    if from_offset is not None and current.name.first_offset > from_offset:
        raise ChainBroken(
            f"{_chain(generation, tp)}: no object holds offsets {from_offset}–{current.name.first_offset - 1}"
        )
    for following in listed:
        if following.name.extension is not current.name.extension:
            raise ChainBroken(_mixed(current, following))
        yield _ranged(current, following.name.first_offset)
        current = following
    if committed_offset is not None and committed_offset > current.name.first_offset:
        final = _ranged(current, committed_offset)
    else:
        final = _ranged(current, next_offset(store, current))
    if from_offset is None or final.next_offset > from_offset:
        yield final


def end_offset(store: Store, generation: int, tp: TopicPartition) -> int | None:
    """Where the chain ends, from the listing and the last object alone; None if there is no chain.

    Raises `ChainBroken` when the last object does not hold what its name says.
    """
    found = last(store, generation, tp)
    return None if found is None else next_offset(store, found)


def last(store: Store, generation: int, tp: TopicPartition) -> StoredObject | None:
    """The last object of a chain; None if there is no chain. S3 lists forwards only: a thousand objects a call.

    Raises `GenerationConflict` when the chain's objects are of more than one format.
    """
    found: StoredObject | None = None
    for listed in store.list_chain(tp.topic, generation, tp.partition):
        if found is not None and listed.name.extension is not found.name.extension:
            raise GenerationConflict(_mixed(found, listed))
        found = listed
    return found


def next_offset(store: Store, stored: StoredObject) -> int:
    """Where an object ends, from its last record batch.

    Raises `ChainBroken` when the object is missing, damaged, or does not reach beyond its own name.
    """
    return inspect(store, stored.name, stored.key).next_offset


def inspect(store: Store, name: BackupName, key: str) -> Contents:
    """Read an object whole, in small memory, checking every CRC and that offsets grow.

    Raises `ChainBroken` when it is missing, damaged, or does not reach beyond its own name.
    """
    try:
        contents = _described(store, key) if name.extension.is_indexed else _batches(store, key)
    except (CorruptBatch, ObjectMissing) as error:
        raise ChainBroken(f"{name.topic}/{name.partition}: {error}") from error
    if contents is None or contents.next_offset <= name.first_offset:
        found = "no record batch" if contents is None else f"only offsets below {contents.next_offset}"
        raise ChainBroken(f"{name.topic}/{name.partition}: {key} holds {found}")
    return contents


def _batches(store: Store, key: str) -> Contents | None:
    with store.open(key) as stream:
        return _read_contents(framing.read_frames(stream, key), key)


def _described(store: Store, key: str) -> Contents:
    """What an object's index says, once the object is known to be the one that it speaks of."""
    # numba and pyarrow take a second to import, and the lanes of most streams need neither.
    from waybill.archive.indexed_reader import describe

    figures = describe(store, key)
    return Contents(
        figures.next_offset,
        figures.messages,
        batches=0,
        size_bytes=figures.size_bytes,
        leader_epoch=figures.leader_epoch,
        min_timestamp_ms=figures.min_timestamp_ms,
        max_timestamp_ms=figures.max_timestamp_ms,
    )


def _mixed(one: StoredObject, other: StoredObject) -> str:
    return (
        f"{one.name.topic}/{one.name.partition}: {one.key} and {other.key} are of different formats, which a chain "
        f"never is. Look at both with `waybill cat`, move away the one that the stream's format did not write, and run "
        f"`waybill verify`"
    )


def _read_contents(frames: Iterator[framing.Frame], where: str) -> Contents | None:
    messages, batches, size_bytes, lowest, highest = 0, 0, 0, -1, -1
    header = None
    for frame in frames:
        framing.check_crc(frame, where)
        header = frame.header
        messages += header.record_count
        batches += 1
        size_bytes += header.size_bytes
        highest = max(highest, header.max_timestamp_ms)
        if header.record_count:
            lowest = header.base_timestamp_ms if lowest < 0 else min(lowest, header.base_timestamp_ms)
    if header is None:
        return None
    return Contents(header.next_offset, messages, batches, size_bytes, header.leader_epoch, lowest, highest)


def _listed(
    store: Store, generation: int, tp: TopicPartition, from_offset: int | None, committed_offset: int | None
) -> Iterator[StoredObject]:
    """From the object that holds `from_offset`. Nearly always an object starts right there: that takes one call."""
    if from_offset is None:
        yield from store.list_chain(tp.topic, generation, tp.partition)
        return
    listed = store.list_chain(tp.topic, generation, tp.partition, start_after=from_offset - 1 if from_offset else None)
    first = next(listed, None)
    if first is None and committed_offset is not None and committed_offset <= from_offset:
        return
    if first is None or first.name.first_offset > from_offset:
        before = _last_up_to(store, generation, tp, from_offset)
        if before is not None:
            yield before
    if first is not None:
        yield first
    yield from listed


def _last_up_to(store: Store, generation: int, tp: TopicPartition, offset: int) -> StoredObject | None:
    """S3 lists forwards only: the object before an offset is found from the chain's start."""
    found = None
    for entry in store.list_chain(tp.topic, generation, tp.partition):
        if entry.name.first_offset > offset:
            break
        found = entry
    return found


def _ranged(stored: StoredObject, next_offset: int) -> ChainObject:
    return ChainObject(stored.name, stored.key, next_offset, stored.size_bytes)


def _chain(generation: int, tp: TopicPartition) -> str:
    return f"{tp}, generation {generation}"


_VERSION = 1


@dataclass(frozen=True, slots=True)
class ChainStart:
    """Where a chain began, and what was known then."""

    offset: int
    topic_id: str
    """'' if Kafka did not say."""
    partitions: int
    """How many partitions the topic had."""
    extension: Extension
    """The format of the chain's objects."""

    def to_json(self) -> bytes:
        return json.dumps({"v": _VERSION, **asdict(self)}).encode()

    @classmethod
    def from_json(cls, data: bytes, key: str) -> ChainStart:
        """Raises `GenerationConflict` for a document of a newer version, `ConfigError` for one that is damaged."""
        try:
            fields = read_document(data, _VERSION, key)
            found = cls(
                offset=int(fields["offset"]),
                topic_id=str(fields["topic_id"]),
                partitions=int(fields["partitions"]),
                extension=Extension(fields["extension"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{key} does not say where a chain starts ({type(error).__name__}: {error}): restore it from the "
                f"bucket's versions"
            ) from None
        return found


def record_start(store: Store, generation: int, tp: TopicPartition, start: ChainStart) -> ChainStart:
    """Write down where a chain begins. Returns the start that counts: this one, or the one that is there."""
    key = names.start_key(store.prefix, tp.topic, generation, tp.partition)
    there = store.create_unless_there(key, start.to_json())
    return start if there is None else ChainStart.from_json(there, key)


def find_start(store: Store, generation: int, tp: TopicPartition) -> ChainStart | None:
    """Where a chain begins; None if nobody wrote it down."""
    key = names.start_key(store.prefix, tp.topic, generation, tp.partition)
    found = store.read_if_there(key)
    return None if found is None else ChainStart.from_json(found, key)


def find_uncommitted(store: Store, generation: int, tp: TopicPartition, committed: Committed) -> StoredObject | None:
    """The object that starts at the committed offset, if a lane died before it could commit it. One listing call.

    Raises `ChainBroken` if the last object is not there that the committed offset counts, or if objects begin beyond
    the committed offset and none at it.
    """
    offset, last = committed.committed_offset, committed.last_object_offset
    start = offset if last is None else last
    listed = store.list_chain(tp.topic, generation, tp.partition, start_after=start - 1 if start else None)
    found = next(listed, None)
    if last is not None and last < offset:
        if found is None or found.name.first_offset != last:
            raise _missing(tp, last, offset)
        found = next(listed, None)
    if found is None or found.name.first_offset == offset:
        return found
    beyond = found.name.first_offset
    raise ChainBroken(
        f"{tp}: the committed offset is {offset}, where no backup object starts or ends, but {found.key} starts at "
        f"{beyond}. Look at the chain with `waybill verify --no-table`: if it is whole, the committed offset is wrong, "
        f"and `waybill offsets rebuild --topic {tp.topic} --yes` takes it from the chain",
        min(offset, beyond),
        max(offset, beyond),
    )


def _missing(tp: TopicPartition, last: int, offset: int) -> ChainBroken:
    return ChainBroken(
        f"{tp}: the chain's last backup object, offsets {last}–{offset - 1}, is missing. Restore it from the bucket's "
        f"versions or replica. If it is lost: `waybill offsets rebuild --topic {tp.topic} --yes` goes back to where "
        f"the chain ends now, and what Kafka still has of these offsets is archived again",
        last,
        offset,
    )


@contextmanager
def removable(key: str, first_offset: int) -> Iterator[None]:
    """Adds to a `ChainBroken` of the chain's last object what can be done about it: nothing was built on it yet."""
    try:
        yield
    except ChainBroken as error:
        raise ChainBroken(
            f"{error}. Ingest of this topic-partition is stopped, and nothing is written over: restore the object from "
            f"the bucket's versions or replica, or move {key} away by hand. The next run then archives the offsets "
            f"from {first_offset} on again; those that Kafka no longer has are a RetentionGap, to be decided",
            first_offset,
            error.next_offset,
        ) from error


def committed_from_chain(store: Store, generation: int, tp: TopicPartition, now_ms: int) -> Committed | None:
    """The committed offset as the chain says, from its listing and its last object; None without a chain.

    Raises `ChainBroken` when the last object does not hold what its name says.
    """
    stored = last(store, generation, tp)
    if stored is None:
        return None
    with removable(stored.key, stored.name.first_offset):
        contents = inspect(store, stored.name, stored.key)
    metadata = store.metadata(stored.key)
    start = find_start(store, generation, tp)
    return Committed(
        committed_offset=contents.next_offset,
        topic_id=metadata.get("topic-id", ""),
        leader_epoch=contents.leader_epoch,
        object_bytes=contents.size_bytes,
        object_messages=contents.messages,
        committed_at_ms=now_ms,
        start_offset=None if start is None else start.offset,
        last_object_offset=stored.name.first_offset,
        extension=stored.name.extension,
    )
