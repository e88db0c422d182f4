"""The commit protocol (docs/protocol.md) for one topic-partition: from the lock to the committed offset.

What it relies on: S3's create-if-absent and ZooKeeper's versioned write, and nothing else. The lock saves work.
Whatever a lane believes, an object of a name is created once, and the committed offset only moves from the version that
was read.

What it survives: being killed at any point, a rival that does the same at the same time, a session that ended
unnoticed, an answer that got lost. In each case the next pass finds what is there, adopts it, and goes on from its end.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime

from waybill import chain, failpoints
from waybill.config.enums import StartPosition
from waybill.config.models import Stream
from waybill.coordination import Committed
from waybill.errors import (
    CommitConflict,
    IngestStopped,
    KafkaUnavailable,
    LockHeld,
    LogTruncated,
    ObjectAlreadyThere,
    RetentionGap,
    TopicRecreated,
    WaybillError,
)
from waybill.ingest.backup_object import BackupObject
from waybill.ingest.clock import Clock
from waybill.ingest.plan import estimate_bytes
from waybill.ingest.report import ArchivedObject, Failure, Outcome, PartitionReport
from waybill.ingest.services import Services
from waybill.ingest.transactions import archived_frames
from waybill.ingest.turn import Turn
from waybill.log import framing
from waybill.names import BackupName, TopicPartition
from waybill.sources.cluster import Topic
from waybill.sources.kafka import Chunk, LogRange, Sight

__all__ = ["PartitionRun"]

log = logging.getLogger(__name__)

_ROUNDS = 3


class _Adopted(Exception):
    """No error: an object was there already, and the pass begins again behind it."""


class PartitionRun:
    """One run over one topic-partition: archives what is there when it begins, for as long as `turn` allows."""

    def __init__(
        self, services: Services, stream: Stream, tp: TopicPartition, *, turn: Turn, clock: Clock | None = None
    ) -> None:
        self.tp = tp
        self._source, self._store, self._coordinator = services.source, services.store, services.coordinator
        self._stream = stream
        self._turn, self._seen = turn, turn.seen
        self._clock = clock or Clock()
        upload = stream.upload_for(tp.topic)
        self._max_bytes, self._max_age_ms = int(upload.max_bytes), int(upload.max_age.total_seconds() * 1000)
        self._archived: list[ArchivedObject] = []
        self._committed: Committed | None = None
        self._end: int | None = None
        self._topic_id = ""
        self._object: BackupObject | None = None
        self._object_started = 0.0

    def run(self) -> PartitionReport:
        """Do it. Errors of this topic-partition are in the report: they are not the lane's."""
        started = self._clock.monotonic()
        failed: WaybillError | None = None
        try:
            outcome = self._rounds()
        except LockHeld as held:
            log.info("%s", held)
            outcome = Outcome.LOCKED
        except IngestStopped as stop:
            outcome, failed = Outcome.STOPPED, stop
            self._journal(stop)
        except WaybillError as error:
            outcome, failed = Outcome.FAILED, error
            log.warning("%s: %s: %s", self.tp, type(error).__name__, error)
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
        for left in reversed(range(_ROUNDS)):
            try:
                with self._coordinator.lock(self.tp):
                    failpoints.reach("ingest.locked")
                    return self._locked()
            except CommitConflict as conflict:
                self._committed = None
                if not left:
                    raise
                log.warning("%s; beginning again from what it committed", conflict)
        raise AssertionError("unreachable")

    def _locked(self) -> Outcome:
        seen, self._seen = self._seen, None  # once: another round begins with new figures
        held, topic = (seen.held, seen.topic) if seen else self._look()
        self._end, self._topic_id = held.end, topic.topic_id
        committed = self._committed = self._read_committed(held, topic)
        failpoints.reach("ingest.committed_read")
        if seen and not _bears_out(committed, seen):
            # What the lane saw when it began may be behind what a rival has done since: no reason for a stop.
            held, topic = self._look()
            self._end, self._topic_id = held.end, topic.topic_id
        self._check_log(committed, held)
        failpoints.reach("ingest.log_checked")
        if self._turn.has_stop and self._coordinator.clear_stop(self.tp):
            log.info("%s: its stop is resolved", self.tp)
        if committed.committed_offset >= held.end:
            return Outcome.UP_TO_DATE
        if self._waits(committed, held):
            return Outcome.WAITING
        while True:
            try:
                return self._archive(held.end)
            except _Adopted:
                continue

    def _look(self) -> tuple[LogRange, Topic]:
        return self._source.offsets([self.tp])[self.tp], self._source.topic(self.tp.topic)

    def _journal(self, stop: IngestStopped) -> None:
        log.error("%s", stop)
        try:
            self._coordinator.record_stop(self.tp, stop)
        except WaybillError as error:
            log.warning("%s: the stop could not be journaled: %s", self.tp, error)

    # --- step 2: where to start ---

    def _read_committed(self, held: LogRange, topic: Topic) -> Committed:
        found = self._coordinator.read_committed(self.tp)
        if found is not None:
            return found
        rebuilt = self._rebuilt() or self._start(held, topic)
        return self._coordinator.write_committed(self.tp, rebuilt, version=-1)

    def _rebuilt(self) -> Committed | None:
        """The committed offset as the chain says; None without a chain."""
        stored = chain.last(self._store, self._stream.generation, self.tp)
        if stored is None:
            return None
        contents = chain.inspect(self._store, stored.name, stored.key)
        log.warning("%s: committed offset %d rebuilt from %s", self.tp, contents.next_offset, stored.key)
        return Committed(
            committed_offset=contents.next_offset,
            topic_id=self._store.metadata(stored.key).get("topic-id", ""),
            leader_epoch=contents.leader_epoch,
            object_bytes=contents.size_bytes,
            object_messages=contents.messages,
            committed_at_ms=self._clock.now_ms(),
        )

    def _start(self, held: LogRange, topic: Topic) -> Committed:
        """The configured start. It is written down before anything is archived: `latest` moves from run to run.

        A partition that was added to a topic that we archive starts with its first message, whatever is configured.
        """
        start = self._stream.start
        added = self.tp.partition >= self._coordinator.first_partitions(self.tp.topic, len(topic.partitions))
        if start is StartPosition.EARLIEST or added:
            offset = held.earliest
        elif isinstance(start, datetime):
            at = self._source.offset_at(self.tp, int(start.timestamp() * 1000))
            offset = held.end if at is None else at
        else:
            offset = held.end
        log.info("%s: a new chain starts at offset %d", self.tp, offset)
        return Committed(offset, topic_id=self._topic_id, committed_at_ms=self._clock.now_ms())

    # --- step 3: is it the same log, and does it still hold the next offset? ---

    def _check_log(self, committed: Committed, held: LogRange) -> None:
        topic, partition, offset = self.tp.topic, self.tp.partition, committed.committed_offset
        if committed.topic_id and self._topic_id and committed.topic_id != self._topic_id:
            raise TopicRecreated(topic, partition, committed.topic_id, self._topic_id)
        if held.earliest > offset:
            raise RetentionGap(topic, partition, offset, held.earliest)
        if committed.leader_epoch < 0:
            if held.end < offset:
                raise LogTruncated(topic, partition, offset, held.end, committed.leader_epoch)
            return
        end = self._source.epoch_end(self.tp, committed.leader_epoch)
        if end.end_offset < offset or end.leader_epoch < committed.leader_epoch:
            known = held.end if end.end_offset < 0 else end.end_offset
            raise LogTruncated(topic, partition, offset, min(known, offset), committed.leader_epoch)

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
        except RetentionGap:
            # What was fetched before the gap is all that there will ever be of it.
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
            for chunk in self._paced(chunks):
                objects = len(self._archived)
                self._take(chunk)
                failpoints.reach("ingest.fetched")
                self._coordinator.check_session()
                if chunk.next_offset < end and self._is_over(has_cut=len(self._archived) > objects):
                    return False
        return True

    def _paced(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """Chunk by chunk, each after the lane's rate limit allows it. At the deadline it is too late to wait."""
        limit = self._turn.limit
        while True:
            if limit is not None:
                limit.wait(self._turn.deadline, self._coordinator.check_session)
            chunk = next(chunks, None)
            if chunk is None:
                return
            if limit is not None:
                limit.spend(chunk.size_bytes)
            yield chunk

    def _is_over(self, *, has_cut: bool) -> bool:
        """Whether the turn is. Where an object was just cut, what has been fetched beyond it is little: drop that."""
        now = self._clock.monotonic()
        if has_cut and now >= self._turn.yields_at:
            self._begin_object(self._known().committed_offset)
            return True
        return now >= self._turn.deadline

    def _take(self, chunk: Chunk) -> None:
        current, max_bytes = self._current(), self._max_bytes
        current.begin_chunk(chunk.data)
        for frame, archived in archived_frames(chunk):
            framing.check_crc(frame, chunk.where)
            if current.size_bytes + len(frame.data) > max_bytes and current.messages:
                self._commit_object()
                current = self._current()
                current.begin_chunk(chunk.data)
            current.take(frame, archived)
        current.flush()

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
            leader_epoch=committed.leader_epoch,
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
            self._adopt(current)
            raise _Adopted from None
        failpoints.reach("ingest.object_created")
        self._commit(current.next_offset, current.leader_epoch, current.size_bytes, current.messages)
        self._note(current.next_offset, current.size_bytes, current.messages, seconds, adopted=False)
        self._begin_object(current.next_offset)

    def _adopt(self, current: BackupObject) -> None:
        """Go on from the end of the object that is there: a dead task's that was not committed, or a rival's.

        It is read whole: it must be sound before the committed offset moves behind it. Raises `ChainBroken` if not.
        """
        contents = chain.inspect(self._store, current.name, current.key)
        failpoints.reach("ingest.object_inspected")
        self._commit(contents.next_offset, contents.leader_epoch, contents.size_bytes, contents.messages)
        self._note(contents.next_offset, contents.size_bytes, contents.messages, 0.0, adopted=True)

    def _commit(self, next_offset: int, leader_epoch: int, size_bytes: int, messages: int) -> None:
        known = self._known()
        moved = replace(
            known,
            committed_offset=next_offset,
            topic_id=known.topic_id or self._topic_id,
            leader_epoch=leader_epoch,
            committed_at_ms=self._clock.now_ms(),
        )
        if messages:  # an object without any says nothing about their mean size
            moved = replace(moved, object_bytes=size_bytes, object_messages=messages)
        self._committed = self._coordinator.write_committed(self.tp, moved, known.version)
        failpoints.reach("ingest.offset_committed")

    def _note(self, next_offset: int, size_bytes: int, messages: int, seconds: float, *, adopted: bool) -> None:
        current = self._current()
        self._archived.append(
            ArchivedObject(
                key=current.key,
                first_offset=current.name.first_offset,
                next_offset=next_offset,
                messages=messages,
                size_bytes=size_bytes,
                seconds=seconds,
                adopted=adopted,
            )
        )
        log.info(
            "%s %s [%d, %d) %s messages %.1f MB in %.1f s, lag %d",
            *("adopted" if adopted else "archived", self.tp, current.name.first_offset, next_offset),
            *(f"{messages:,}", size_bytes / 1e6, seconds, max(0, (self._end or 0) - next_offset)),
        )

    # --- the object in the making ---

    def _begin_object(self, first_offset: int) -> None:
        self._drop_object()
        self._object = self._new_object(first_offset)
        self._object_started = self._clock.monotonic()

    def _new_object(self, first_offset: int) -> BackupObject:
        name = BackupName(self.tp.topic, self._stream.generation, self.tp.partition, first_offset)
        return BackupObject(self._store, name, self._topic_id)

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


def _bears_out(committed: Committed, seen: Sight) -> bool:
    """Whether nothing in what was seen contradicts the committed offset."""
    same_topic = not committed.topic_id or not seen.topic.topic_id or committed.topic_id == seen.topic.topic_id
    return same_topic and seen.held.earliest <= committed.committed_offset <= seen.held.end


def _failure(error: WaybillError) -> Failure:
    return Failure(error=type(error).__name__, message=str(error), retriable=error.retriable)
