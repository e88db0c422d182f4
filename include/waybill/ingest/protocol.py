"""Which record batches are archived: no control batches, and under `read_committed` none of an aborted transaction.

The commit protocol (docs/protocol.md) for one topic-partition: from the lock to the committed offset.

What it relies on: S3's create-if-absent and ZooKeeper's versioned write, and nothing else. The lock saves work.
Whatever a lane believes, an object of a name is created once, and the committed offset only moves from the version that
was read.

What it survives: being killed at any point, a rival that does the same at the same time, a session that ended
unnoticed, an answer that got lost. In each case the next pass finds what is there, adopts it, and goes on from its end.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import replace

from waybill import failpoints
from waybill.archive import chain, gaps
from waybill.archive.backup_object import BackupObject, new_backup_object
from waybill.archive.chain import find_uncommitted, removable
from waybill.archive.gaps import Gap, fill
from waybill.config import Stream
from waybill.coordination import Committed
from waybill.errors import (
    CommitConflict,
    GenerationConflict,
    IngestStopped,
    KafkaUnavailable,
    LockHeld,
    LogTruncated,
    ObjectAlreadyThere,
    RetentionGap,
    TopicRecreated,
    WaybillError,
)
from waybill.ingest.committed_offset import check_log, find_committed
from waybill.ingest.plan import estimate_bytes
from waybill.ingest.report import ArchivedObject, Failure, Outcome, PartitionReport
from waybill.ingest.services import Services
from waybill.ingest.turn import Clock, Turn
from waybill.names import BackupName, Extension, TopicPartition
from waybill.records import framing
from waybill.sources.cluster import Topic
from waybill.sources.kafka import Chunk, LogRange

__all__ = ["PartitionRun", "archived_frames"]


def archived_frames(chunk: Chunk) -> Iterator[tuple[framing.Frame, bool]]:
    """Each batch of a chunk, and whether it is archived.

    As Kafka's own consumer decides (`CompletedFetch` in its Java client): a transaction of the chunk's list is open
    from its first offset until its producer id's abort marker; transactional batches of that producer id in between are
    left out. The list is that of this fetch response, so nothing is carried over to the next.
    """
    if not chunk.aborted:
        for frame in chunk.frames:
            yield frame, not frame.header.is_control
        return
    ahead, position, aborting = chunk.aborted, 0, set[int]()
    for frame in chunk.frames:
        header = frame.header
        while position < len(ahead) and ahead[position].first_offset < header.next_offset:
            aborting.add(ahead[position].producer_id)
            position += 1
        if header.is_control:
            if framing.is_abort_marker(frame, chunk.where):
                aborting.discard(header.producer_id)
            yield frame, False
        else:
            yield frame, not (header.is_transactional and header.producer_id in aborting)


logger = logging.getLogger(__name__)

_ROUNDS = 3


class _Adopted(Exception):
    """No error: an object was there already, and the pass begins again behind it."""


class PartitionRun:
    """One run over one topic-partition: archives what is there when it begins, for as long as `turn` allows."""

    def __init__(
        self,
        services: Services,
        stream: Stream,
        tp: TopicPartition,
        *,
        turn: Turn | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.tp = tp
        self._services = services
        self._source, self._store, self._coordinator = services.source, services.store, services.coordinator
        self._stream = stream
        self._turn = turn or Turn(deadline=math.inf)
        self._seen = self._turn.seen
        self._clock = clock or Clock()
        upload = stream.upload_for(tp.topic)
        self._max_bytes, self._max_age_ms = int(upload.max_bytes), int(upload.max_age.total_seconds() * 1000)
        self._archived: list[ArchivedObject] = []
        self._committed: Committed | None = None
        self._end: int | None = None
        self._topic_id = ""
        self._object: BackupObject | None = None
        self._object_started = 0.0
        self._log_changed = False
        """Whether the log is another than the one that the last object is of, which was accepted."""

    def run(self) -> PartitionReport:
        """Do it. Errors of this topic-partition are in the report: they are not the lane's."""
        started = self._clock.monotonic()
        failed: WaybillError | None = None
        try:
            outcome = self._rounds()
        except LockHeld as held:
            logger.info("%s", held)
            outcome = Outcome.LOCKED
        except IngestStopped as stop:
            outcome, failed = Outcome.STOPPED, stop
            self._journal(stop)
        except WaybillError as error:
            outcome, failed = Outcome.FAILED, error
            logger.warning("%s: %s: %s", self.tp, type(error).__name__, error)
        return PartitionReport(
            topic=self.tp.topic,
            partition=self.tp.partition,
            outcome=outcome,
            objects=tuple(self._archived),
            committed_offset=None if self._committed is None else self._committed.committed_offset,
            end_offset=self._end,
            seconds=self._clock.monotonic() - started,
            failure=None if failed is None else _failure(failed),
        )

    def _rounds(self) -> Outcome:
        """Steps 1 to 7, again from step 1 when a rival committed in between."""
        if self._turn.conflict is not None:
            raise self._turn.conflict
        for left in reversed(range(_ROUNDS)):
            try:
                with self._coordinator.lock(self.tp):
                    failpoints.reach("ingest.locked")
                    return self._locked()
            except CommitConflict as conflict:
                self._committed = None
                if not left:
                    raise
                logger.warning("%s; beginning again from what it committed", conflict)
        raise AssertionError("unreachable")

    def settle(self) -> tuple[Committed, LogRange]:
        """Steps 1 to 3 alone: the committed offset, behind accepted holes, and what Kafka holds; no stop is journaled.

        Raises the named stop that there is, `LockHeld` or `CommitConflict`, or what a service raises.
        """
        with self._coordinator.lock(self.tp):
            settled = self._settled()
            self._coordinator.clear_stop(self.tp)
            return settled

    def _locked(self) -> Outcome:
        committed, held = self._settled()
        failpoints.reach("ingest.log_checked")
        if self._turn.has_stop and self._coordinator.clear_stop(self.tp):
            logger.info("%s: its stop is resolved", self.tp)
        if committed.committed_offset >= held.end:
            waits_for_log = self._log_changed and committed.committed_offset > held.end
            return Outcome.WAITING if waits_for_log else Outcome.UP_TO_DATE
        if self._waits(committed, held):
            return Outcome.WAITING
        while True:
            try:
                self._check_chain_end()
                return self._archive(held.end)
            except _Adopted:
                continue

    def _settled(self) -> tuple[Committed, LogRange]:
        """Steps 2 and 3."""
        seen, self._seen = self._seen, None  # once: another round begins with new figures
        held, topic = (seen.held, seen.topic) if seen else self._look()
        self._end, self._topic_id = held.end, topic.topic_id
        committed = self._committed = find_committed(self._services, self._stream, self.tp, held, topic, self._clock)
        self._check_format(committed.extension)
        failpoints.reach("ingest.committed_read")
        if not _bears_out(committed, held, topic):
            # What was seen of the log may be behind what a rival has done since: no reason for a stop.
            held, topic = self._look()
            self._end, self._topic_id = held.end, topic.topic_id
        return self._check_log(committed, held), held

    def _look(self) -> tuple[LogRange, Topic]:
        return self._source.offsets([self.tp])[self.tp], self._source.topic(self.tp.topic)

    def _journal(self, stop: IngestStopped) -> None:
        logger.error("%s", stop)
        try:
            self._coordinator.record_stop(self.tp, stop)
        except WaybillError as error:
            logger.warning("%s: the stop could not be journaled: %s", self.tp, error)

    # --- step 3: is it the same log, and does it still hold the next offset? ---

    def _check_format(self, found: Extension) -> None:
        """A chain has one format: two objects of one start, with different names, would both be created."""
        wanted = self._stream.format
        if found is not wanted.extension:
            raise GenerationConflict(
                f"{self.tp}: the chain of generation {self._stream.generation} holds .{found} objects, and the config "
                f"says format {wanted.name} (.{wanted.extension}). Raise the stream's generation to archive in another "
                f"format, or set the format back"
            )

    def _check_log(self, committed: Committed, held: LogRange) -> Committed:
        """Raises the named stop, unless it was accepted. Returns the committed offset, behind an accepted hole."""
        generation, offset = self._stream.generation, committed.committed_offset
        self._log_changed = False
        try:
            check_log(self._source, self.tp, committed, held, self._topic_id)
        except RetentionGap:
            if not self._go_over(gaps.find(self._store, generation, self.tp, offset)):
                raise
            return self._check_log(self._known(), held)
        except LogTruncated as stop:
            if gaps.truncation(self._store, generation, self.tp, stop.end_offset, offset) is None:
                raise
            self._log_changed = True
        return committed

    def _go_over(self, gap: Gap | None) -> bool:
        """Go on behind whatever object starts at the committed offset; first put one there for an accepted hole.

        False: there is neither.
        """
        with suppress(_Adopted):
            self._check_chain_end()
            if gap is None:
                return False
            logger.warning("going over an accepted gap: %s", gap)
            hole = self._fill(gap)
            self._adopt(hole.name, hole.key)
        found = self._archived[-1]
        if gap is not None and (found.messages or found.next_offset != gap.next_offset):
            # Somebody, asleep since before the decision, was first and put messages there. So much is no gap.
            gaps.withdraw(self._store, gap)
        return True

    def _fill(self, gap: Gap) -> BackupObject:
        """Put the object that stands for an accepted hole into the chain, unless there is one of that name."""
        hole = self._new_object(gap.first_offset, {gaps.MARK: gap.kind})
        with suppress(ObjectAlreadyThere):
            fill(hole, gap)
        return hole

    def fill_hole(self, gap: Gap, committed: Committed) -> None:
        """Put the object that stands for an accepted hole in the middle of a chain there. The caller holds the lock."""
        self._check_format(committed.extension)
        self._committed, self._topic_id = committed, committed.topic_id
        self._fill(gap)

    def _check_chain_end(self) -> None:
        """Once before something is archived: is the last object there, and no other beyond it?

        Raises `ChainBroken` if not, and `_Adopted` when an object was found that nobody had committed.
        """
        found = find_uncommitted(self._store, self._stream.generation, self.tp, self._known())
        if found is not None:
            self._adopt(found.name, found.key)
            raise _Adopted

    def _waits(self, committed: Committed, held: LogRange) -> bool:
        """Whether a full fetch would be in vain: too little for an object by size, and nothing old enough for one.

        The first batch tells the age; it is a small fetch.
        """
        if not self._max_age_ms or not committed.object_messages:
            return False
        if estimate_bytes(held, committed) >= self._max_bytes:
            return False
        with closing(self._read(committed, held.end, first_batch_only=True)) as chunks:
            first = next(chunks, None)
        if first is None:
            return False
        probe = self._new_object(committed.committed_offset)
        probe.take(first.frames[0], archived=False)
        return not self._is_due(probe)

    # --- steps 4 and 5: fetch, check, cut ---

    def _archive(self, end: int) -> Outcome:
        """One pass from the committed offset to `end`."""
        committed = self._known()
        self._begin_object(committed.committed_offset)
        try:
            return self._finish(reached_end=self._drain(committed, end))
        except (RetentionGap, TopicRecreated):
            # What was fetched before is all that there will ever be of it.
            if self._object is not None and self._object.is_begun:
                self._commit_object()
            raise
        except LogTruncated as truncated:
            # What was fetched is not archived yet: a stop only if something archived is gone, too.
            self._check_log(self._known(), self._source.offsets([self.tp])[self.tp])
            raise KafkaUnavailable(f"{self.tp}: the log was truncated while it was read ({truncated})") from truncated
        finally:
            self._drop_object()

    def _drain(self, committed: Committed, end: int) -> bool:
        """Take what there is up to `end`, cutting full objects. False if the turn ended first."""
        with closing(self._read(committed, end)) as chunks:
            while self._may_fetch():
                chunk = next(chunks, None)
                if chunk is None:
                    return True
                objects = len(self._archived)
                self._take(chunk)
                failpoints.reach("ingest.fetched")
                self._coordinator.check_session()
                if chunk.next_offset >= end:
                    return True
                if self._is_over(has_cut=len(self._archived) > objects):
                    return False
        return False

    def _may_fetch(self) -> bool:
        """Wait until the lane's rate limit allows it. False: the turn ends before."""
        limit = self._turn.limit
        return limit is None or limit.wait(self._turn.deadline, self._coordinator.check_session)

    def _is_over(self, *, has_cut: bool) -> bool:
        """Whether the turn is. Where an object was just cut, what has been fetched beyond it is little: drop that."""
        now = self._clock.monotonic()
        if has_cut and now >= self._turn.yields_at:
            self._begin_object(self._known().committed_offset)
            return True
        return now >= self._turn.deadline

    def _take(self, chunk: Chunk) -> None:
        if self._turn.limit is not None:
            self._turn.limit.spend(chunk.size_bytes)
        current, max_bytes = self._current(), self._max_bytes
        current.begin_chunk(chunk.data)
        for frame, archived in self._stored(chunk):
            if current.is_full(frame, max_bytes):
                self._commit_object()
                current = self._current()
                current.begin_chunk(chunk.data)
            current.take(frame, archived)
        current.flush()

    def _stored(self, chunk: Chunk) -> Iterator[tuple[framing.Frame, bool]]:
        """The chunk's batches, checked, as they are stored, and whether they are archived."""
        recompressor = self._turn.recompressor
        return _checked(chunk) if recompressor is None else recompressor.batches(_checked(chunk))

    def _finish(self, *, reached_end: bool) -> Outcome:
        """Complete what is left, if the policy allows it."""
        left = self._current()
        due = left.is_begun and self._is_due(left)
        if due:
            self._commit_object()
        if not reached_end:
            return Outcome.OUT_OF_TIME
        return Outcome.WAITING if left.is_begun and not due else Outcome.UP_TO_DATE

    def _is_due(self, left: BackupObject) -> bool:
        """Whether the oldest message came `max_age` ago. One without a time, or with one to come, is due as well."""
        if not self._max_age_ms or left.oldest_ms is None or left.oldest_ms < 0:
            return True
        age_ms = self._clock.now_ms() - left.oldest_ms
        return age_ms < 0 or age_ms >= self._max_age_ms

    def _read(self, committed: Committed, end: int, *, first_batch_only: bool = False) -> Generator[Chunk, None, None]:
        return self._source.read(
            self.tp,
            committed.committed_offset,
            end,
            leader_epoch=-1 if self._log_changed else committed.leader_epoch,
            topic_id=committed.topic_id or self._topic_id,
            first_batch_only=first_batch_only,
        )

    # --- steps 6 and 7: create, or adopt; commit ---

    def _commit_object(self) -> None:
        """Complete the current object, or adopt the one that is there, and move the committed offset behind it.

        Raises `CommitConflict` if somebody else moved it, and `_Adopted` after an adoption.
        """
        current, seconds = self._current(), self._clock.monotonic() - self._object_started
        failpoints.reach("ingest.object_cut")
        try:
            current.complete()
        except ObjectAlreadyThere:
            failpoints.reach("ingest.object_refused")
            self._adopt(current.name, current.key)
            raise _Adopted from None
        failpoints.reach("ingest.object_created")
        done = ArchivedObject(
            key=current.key,
            first_offset=current.name.first_offset,
            next_offset=current.next_offset,
            messages=current.messages,
            size_bytes=current.size_bytes,
            seconds=seconds,
        )
        self._commit(done, current.leader_epoch)
        self._begin_object(current.next_offset)

    def _adopt(self, name: BackupName, key: str) -> None:
        """Go on from the end of the object that is there: a dead task's that was not committed, or a rival's.

        It is read whole: it must be sound before the committed offset moves behind it. Raises `ChainBroken` if not.
        """
        self._check_format(name.extension)
        with removable(key, name.first_offset):
            contents = chain.inspect(self._store, name, key)
        failpoints.reach("ingest.object_inspected")
        done = ArchivedObject(
            key=key,
            first_offset=name.first_offset,
            next_offset=contents.next_offset,
            messages=contents.messages,
            size_bytes=contents.size_bytes,
            seconds=0.0,
            adopted=True,
        )
        self._commit(done, contents.leader_epoch)

    def _commit(self, done: ArchivedObject, leader_epoch: int) -> None:
        known = self._known()
        moved = replace(
            known,
            committed_offset=done.next_offset,
            topic_id=known.topic_id or self._topic_id,
            leader_epoch=leader_epoch,
            committed_at_ms=self._clock.now_ms(),
            last_object_offset=done.first_offset,
        )
        if done.messages:  # an object without any says nothing about their mean size
            moved = replace(moved, object_bytes=done.size_bytes, object_messages=done.messages)
        self._archived.append(done)  # it is there, even if a rival has adopted and committed it meanwhile
        self._committed = self._coordinator.write_committed(self.tp, moved, known.version)
        failpoints.reach("ingest.offset_committed")
        self._log_changed = False
        logger.info(
            "%s %s [%d, %d) %s messages %.1f MB in %.1f s, lag %d",
            *("adopted" if done.adopted else "archived", self.tp, done.first_offset, done.next_offset),
            *(f"{done.messages:,}", done.size_bytes / 1e6, done.seconds, max(0, (self._end or 0) - done.next_offset)),
        )

    # --- the object in the making ---

    def _begin_object(self, first_offset: int) -> None:
        self._drop_object()
        self._object = self._new_object(first_offset)
        self._object_started = self._clock.monotonic()

    def _new_object(self, first_offset: int, metadata: dict[str, str] | None = None) -> BackupObject:
        kind = self._stream.format
        name = BackupName(self.tp.topic, self._stream.generation, self.tp.partition, first_offset, kind.extension)
        return new_backup_object(self._store, name, self._topic_id, kind, metadata)

    def _drop_object(self) -> None:
        if self._object is not None:
            self._object.abort()
            self._object = None

    def _current(self) -> BackupObject:
        assert self._object is not None
        return self._object

    def _known(self) -> Committed:
        assert self._committed is not None
        return self._committed


def _checked(chunk: Chunk) -> Iterator[tuple[framing.Frame, bool]]:
    for frame, archived in archived_frames(chunk):
        framing.check_crc(frame, chunk.where)
        yield frame, archived


def _bears_out(committed: Committed, held: LogRange, topic: Topic) -> bool:
    """Whether nothing in what was seen contradicts the committed offset."""
    same_topic = not committed.topic_id or not topic.topic_id or committed.topic_id == topic.topic_id
    return same_topic and held.earliest <= committed.committed_offset <= held.end


def _failure(error: WaybillError) -> Failure:
    return Failure(error=type(error).__name__, message=str(error), retriable=error.retriable)
