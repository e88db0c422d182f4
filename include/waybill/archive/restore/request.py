"""A person's request for a restore, and its ranges of offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from waybill.archive.chain.chain import ChainObject
from waybill.archive.restore.archived import objects_of_range
from waybill.base.errors import RestoreRefused
from waybill.config.models import Stream
from waybill.config.names import TopicPartition, is_topic, parse_offsets
from waybill.records.batches.framing import read_frames
from waybill.services.store import Store

_TOPIC_PLACE = "{topic}"


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """The request for a restore. Topic-partitions and a time are combined with AND."""

    stream: str
    connection: str
    """The Airflow connection of the target cluster."""
    to_topic: str = _TOPIC_PLACE
    """The target topic; `{topic}` stands for the archived topic."""
    offsets: Mapping[TopicPartition, tuple[int | None, int | None]] | None = None
    """First and next offset of each topic-partition; None: from the start, to the end. Empty or None: everything."""
    topic_partitions: tuple[TopicPartition, ...] = ()
    until: datetime | None = None
    """The end of each topic-partition's range: the first message with this Kafka timestamp or a later one, not
    included."""
    create: bool = False
    """Whether to create a missing topic."""
    replication_factor: int = -1
    """The replication factor of a topic that is created; -1: the brokers' default."""
    suspend_cleanup: bool = False
    """Whether the target keeps everything while the restore runs: its own retention and compaction are set again at the
    end."""
    registry: str | None = None
    """The Airflow connection of the target's schema registry, whose schema ids are checked."""

    @classmethod
    def parse(
        cls,
        stream: str,
        connection: str,
        *,
        to_topic: str = _TOPIC_PLACE,
        offsets: Sequence[str] = (),
        topic_partitions: Sequence[str] = (),
        until: str | None = None,
        create: bool = False,
        replication_factor: int = -1,
        suspend_cleanup: bool = False,
        registry: str | None = None,
    ) -> Self:
        """Parse the options of a command line or a form. Raises `RestoreRefused` for invalid options."""
        try:
            chosen = dict(map(parse_offsets, offsets))
            tps = tuple(TopicPartition.parse(text.strip()) for text in topic_partitions)
        except ValueError as error:
            raise RestoreRefused(str(error)) from error
        if chosen and (tps or until):
            raise RestoreRefused("give offsets, or topic-partitions and a time: not both")
        if not is_topic(to_topic.replace(_TOPIC_PLACE, "x")):
            raise RestoreRefused(
                f"{to_topic!r} is no name of a target topic: letters, digits, '.', '_' and '-', and {_TOPIC_PLACE} for "
                f"the name of the archived topic"
            )
        return cls(
            stream=stream,
            connection=connection,
            to_topic=to_topic,
            offsets=chosen,
            topic_partitions=tps,
            until=None if not until else _parse_until(until),
            create=create,
            replication_factor=replication_factor,
            suspend_cleanup=suspend_cleanup,
            registry=registry,
        )

    def target_of(self, topic: str) -> str:
        """Return the target topic of an archived topic."""
        return self.to_topic.replace(_TOPIC_PLACE, topic)


@dataclass(frozen=True, slots=True)
class SourceRange:
    """The range of one topic-partition to restore, and the objects that hold it."""

    tp: TopicPartition
    first_offset: int
    next_offset: int
    objects: tuple[ChainObject, ...]

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.objects)


def find_ranges(store: Store, stream: Stream, request: RestoreRequest) -> list[SourceRange]:
    """Return the ranges of a request, sorted, without those that are empty.

    With a time, this reads the archive once, up to that time.

    Raises `RestoreRefused` for a choice outside of the archive, with the available ranges, and `ChainBroken`.
    """
    available = _chains(store, stream)
    if not available:
        raise RestoreRefused(f"stream {request.stream}, generation {stream.generation}: nothing is archived yet")
    wanted = request.offsets or dict.fromkeys(request.topic_partitions or available, (None, None))
    ranges = []
    for tp, (first, following) in sorted(wanted.items()):
        if tp not in available:
            listed = ", ".join(map(str, available[:10])) + (", …" if len(available) > 10 else "")
            raise RestoreRefused(f"{tp} is not in the archive of stream {request.stream}, which has {listed}")
        found = _range_of(store, stream, tp, first, following)
        if request.until is not None:
            found = _until(store, found, int(request.until.timestamp() * 1000))
        if found.first_offset < found.next_offset:
            ranges.append(found)
    if not ranges:
        raise RestoreRefused("the archive has no message of what is chosen")
    return ranges


def _chains(store: Store, stream: Stream) -> list[TopicPartition]:
    topics = [topic for topic in store.topics() if is_topic(topic) and stream.matches(topic)]
    return sorted(
        chain.tp for topic in topics for chain in store.chains(topic) if chain.generation == stream.generation
    )


def _range_of(
    store: Store, stream: Stream, tp: TopicPartition, first: int | None, following: int | None
) -> SourceRange:
    every = objects_of_range(store, stream.generation, tp, None, following)
    begin, end = every[0].name.first_offset, every[-1].next_offset
    low, high = begin if first is None else first, end if following is None else following
    if low < begin or high > end:
        raise RestoreRefused(f"{tp}: offsets {low}–{high - 1} are not all archived; the archive has {begin}–{end - 1}")
    objects = tuple(each for each in every if each.next_offset > low and each.name.first_offset < high)
    return SourceRange(tp, low, high, objects)


def _until(store: Store, whole: SourceRange, until_ms: int) -> SourceRange:
    """Return the part of a range before its first message with a timestamp ≥ `until_ms`."""
    for number, each in enumerate(whole.objects):
        with store.open(each.key) as stream:
            for frame in read_frames(stream, each.key):
                header = frame.header
                if header.next_offset <= whole.first_offset or header.is_control or not header.record_count:
                    continue
                if header.max_timestamp_ms < until_ms:
                    continue
                end = _first_at(frame.data, each.key, whole, until_ms)
                if end is not None:
                    return SourceRange(whole.tp, whole.first_offset, end, whole.objects[: number + 1])
    return whole


def _first_at(batch: memoryview, key: str, whole: SourceRange, until_ms: int) -> int | None:
    """Return the first offset of a batch, within the range, with a timestamp ≥ `until_ms`; None if there is none."""
    import pyarrow.compute as pc

    from waybill.records.batches.decode import decode

    for messages in decode(
        batch, where=key, first_offset=whole.first_offset, next_offset=whole.next_offset, set_aside=True
    ):
        late = pc.greater_equal(messages.column("timestamp").cast("int64"), until_ms * 1000)
        found = pc.index(late, True).as_py()
        if found >= 0:
            return int(messages.column("offset")[found].as_py())
    return None


def _parse_until(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise RestoreRefused(f"until {text!r} is no time such as 2026-11-22T10:00:00Z: {error}") from error
    if at.tzinfo is None:
        raise RestoreRefused(f"until {text!r} has no time zone: 2026-11-22T10:00:00Z, or +01:00 at its end")
    return at.astimezone(UTC)
