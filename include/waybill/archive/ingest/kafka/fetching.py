"""Steps 4 and 5 of the commit protocol: fetch record batches, check each CRC, and cut backup objects.

An object is cut at `upload.max_bytes`, or when its oldest message is `upload.max_age` old. Control batches are not
archived, and under `read_committed` neither are the batches of aborted transactions.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing

from waybill.archive.chain.backup_object import BackupObject
from waybill.archive.ingest.cut_object import CutObject, is_due, max_age_ms
from waybill.archive.ingest.kafka.backlog import estimate_bytes
from waybill.archive.ingest.lane_report import Outcome
from waybill.archive.ingest.position import Position
from waybill.archive.ingest.target import ArchiveTarget
from waybill.base import failpoints
from waybill.base.errors import RetentionGap, TopicRecreated
from waybill.records.batches import framing
from waybill.services.kafka.partition_reader import Chunk


class ObjectFetch:
    """One pass from a committed offset to the end of the log, or to the end of the time slice."""

    def __init__(self, target: ArchiveTarget, position: Position) -> None:
        self._target = target
        self._position = position
        self._policy = target.stream.upload_for(target.tp.topic)
        self._max_bytes = int(self._policy.max_bytes)
        self._object: BackupObject
        self._begin_object(position.committed.committed_offset)
        self.outcome = Outcome.OUT_OF_TIME
        """The outcome, once `objects` has ended."""

    def objects(self) -> Generator[CutObject, None, None]:
        """Fetch batches, and yield each object that is due. The caller completes it before it takes the next one.

        Ending the generator early (`close`) aborts the object that is being written.

        Raises the errors of `KafkaSource.read`.
        """
        try:
            reached_end = yield from self._full_objects()
            rest = self._object
            due = rest.is_begun and is_due(self._policy, rest, self._target.clock.now_ms())
            if due:
                yield self._cut()
            if reached_end:
                self.outcome = Outcome.WAITING if rest.is_begun and not due else Outcome.UP_TO_DATE
        except (RetentionGap, TopicRecreated):
            # Kafka no longer has the next offsets, so the object cannot grow any more.
            if self._object.is_begun:
                yield self._cut()
            raise
        finally:
            self._object.abort()

    def _full_objects(self) -> Generator[CutObject, None, bool]:
        """Yield full objects. Return whether the end of the log was reached; False if the time slice ended first."""
        coordinator, end = self._target.services.coordinator, self._position.log_range.end
        with closing(_read(self._target, self._position)) as chunks:
            while self._target.wait_for_rate_limit():
                chunk = next(chunks, None)
                if chunk is None:
                    return True
                has_cut = yield from self._take(chunk)
                failpoints.reach("ingest.fetched")
                coordinator.check_session()
                if chunk.next_offset >= end:
                    return True
                if self._is_time_over(has_cut=has_cut):
                    return False
        return False

    def _take(self, chunk: Chunk) -> Generator[CutObject, None, bool]:
        """Add a chunk's batches to the object. Yield each object that gets full; return whether there was one."""
        self._target.spend_rate_limit(chunk.size_bytes)
        has_cut = False
        current, max_bytes = self._object, self._max_bytes
        current.begin_chunk(chunk.data)
        for frame, archived in self._batches(chunk):
            if current.is_full(frame, max_bytes):
                yield self._cut()
                self._begin_object(current.next_offset)
                current = self._object
                current.begin_chunk(chunk.data)
                has_cut = True
            current.take(frame, archived)
        current.flush()
        return has_cut

    def _batches(self, chunk: Chunk) -> Iterator[tuple[framing.Frame, bool]]:
        """Check the CRCs of the chunk's batches. Yield each batch in its stored form, and whether it is archived."""
        recompressor = self._target.recompressor
        return _checked(chunk) if recompressor is None else recompressor.batches(_checked(chunk))

    def _is_time_over(self, *, has_cut: bool) -> bool:
        now, time_slice = self._target.clock.monotonic(), self._target.time_slice
        if has_cut and now >= time_slice.yields_at:
            # An object was just completed, so little was fetched after it. Discard it, so that the other
            # topic-partitions get their time.
            self._object.abort()
            self._begin_object(self._object.name.first_offset)
            return True
        return now >= time_slice.deadline

    def _begin_object(self, first_offset: int) -> None:
        self._object = self._target.new_object(first_offset, self._position.topic_id)
        self._began_at = self._target.clock.monotonic()

    def _cut(self) -> CutObject:
        return CutObject(self._object, self._target.clock.monotonic() - self._began_at)


def must_wait_for_more(target: ArchiveTarget, position: Position) -> bool:
    """Return whether a fetch would not complete an object: there are too few bytes, and no message is old enough.

    The first batch shows the age. Reading it is a small fetch.
    """
    policy = target.stream.upload_for(target.tp.topic)
    committed = position.committed
    if not max_age_ms(policy) or not committed.object_messages:
        return False
    if estimate_bytes(position.log_range, committed) >= int(policy.max_bytes):
        return False
    with closing(_read(target, position, first_batch_only=True)) as chunks:
        chunk = next(chunks, None)
    if chunk is None:
        return False
    probe = target.new_object(committed.committed_offset, position.topic_id)
    probe.take(chunk.frames[0], archived=False)
    return not is_due(policy, probe, target.clock.now_ms())


def select_archived(chunk: Chunk) -> Iterator[tuple[framing.Frame, bool]]:
    """Yield each batch of a chunk, and whether it is archived.

    The rule is that of Kafka's own consumer (`CompletedFetch` in its Java client). A transaction of the chunk's list of
    aborted transactions is open from its first offset to its producer id's abort marker, and the transactional batches
    of that producer id in between are left out. The list belongs to this fetch response, so no state is kept for the
    next chunk.
    """
    if not chunk.aborted:
        for frame in chunk.frames:
            yield frame, not frame.header.is_control
        return
    transactions, position, aborting = chunk.aborted, 0, set[int]()
    for frame in chunk.frames:
        header = frame.header
        while position < len(transactions) and transactions[position].first_offset < header.next_offset:
            aborting.add(transactions[position].producer_id)
            position += 1
        if header.is_control:
            if framing.is_abort_marker(frame, chunk.where):
                aborting.discard(header.producer_id)
            yield frame, False
        else:
            yield frame, not (header.is_transactional and header.producer_id in aborting)


def _checked(chunk: Chunk) -> Iterator[tuple[framing.Frame, bool]]:
    for frame, archived in select_archived(chunk):
        framing.check_crc(frame, chunk.where)
        yield frame, archived


def _read(target: ArchiveTarget, position: Position, *, first_batch_only: bool = False) -> Generator[Chunk, None, None]:
    committed = position.committed
    return target.services.kafka.read(
        target.tp,
        committed.committed_offset,
        position.log_range.end,
        leader_epoch=-1 if position.skips_epoch_check else committed.leader_epoch,
        topic_id=committed.topic_id or position.topic_id,
        first_batch_only=first_batch_only,
    )
