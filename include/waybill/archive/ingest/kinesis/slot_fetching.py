"""Steps 4 and 5 of the commit protocol for a Kinesis slot: read its shards, and cut backup objects.

An object is cut at `upload.max_bytes`, or when its oldest record is `upload.max_age` old, as for Kafka. It is also cut
when a shard has ended, because its children may start only when its end is committed; and when the committed checkpoint
becomes too old to prove that retention has deleted no record.

The shards with the oldest positions are read first, so that each shard advances even if time slices are short.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import timedelta

from waybill.archive.ingest.cut_object import CutObject, is_due
from waybill.archive.ingest.kinesis.slot_object import SlotObject, new_slot_object
from waybill.archive.ingest.kinesis.slot_reader import SlotAnswer, SlotReader
from waybill.archive.ingest.lane_report import Outcome
from waybill.archive.ingest.position import Position
from waybill.archive.ingest.target import ArchiveTarget
from waybill.base import failpoints
from waybill.base.errors import WaybillError
from waybill.records.shards.checkpoint import Checkpoint, ShardPosition
from waybill.services.coordination import SlotRead

logger = logging.getLogger(__name__)

_PROOF_PARTS = 4
"""The checkpoint is committed again, without a record, when this part of the retention has passed."""


class SlotFetch:
    """One pass over the shards of a slot, up to their tips, or to the end of the time slice."""

    def __init__(
        self,
        target: ArchiveTarget,
        position: Position,
        reader: SlotReader,
        shards: Mapping[str, ShardPosition],
        *,
        assigned: int,
        forgotten: Collection[str] = (),
    ) -> None:
        """`shards`: the shards to read, and where each continues.

        `assigned`: the number of shards of the slot, including ended ones.

        `forgotten`: shards that the next checkpoint leaves out.
        """
        assert position.committed.checkpoint is not None
        self._target, self._reader, self._shards, self._assigned = target, reader, shards, assigned
        self._topic_id = position.committed.topic_id or position.topic_id
        self._policy = target.stream.upload_for(target.tp.topic)
        self._max_bytes = int(self._policy.max_bytes)
        self._object: SlotObject
        self._begin_object(position.committed.committed_offset, position.committed.checkpoint)
        self._object.checkpoint = self._object.checkpoint.without(forgotten)
        self.outcome = Outcome.OUT_OF_TIME
        """The outcome, once `objects` has ended."""

    def objects(self) -> Generator[CutObject, None, None]:
        """Read shards, and yield each object that is due. The caller completes it before it takes the next one.

        Ending the generator early (`close`) aborts the object that is being written.

        Raises the errors of `SlotReader.read`.
        """
        try:
            reached_tips = yield from self._full_objects()
            self._target.draft.end_offset = self._object.next_offset
            is_due = self._is_due()
            if is_due:
                yield self._cut()
            slot_read = self._find_slot_read(is_due=is_due)
            if reached_tips:
                self.outcome = Outcome.WAITING if self._object.messages and not is_due else Outcome.UP_TO_DATE
        finally:
            self._object.abort()
        if slot_read is not None:
            self._record_slot_read(slot_read)

    def _record_slot_read(self, slot_read: SlotRead) -> None:
        """Store the time up to which the slot is read. No commit depends on it, so an error is only logged."""
        try:
            self._target.services.coordinator.record_slot_read(self._target.tp, slot_read)
        except WaybillError as error:
            logger.warning("%s", error)

    def _find_slot_read(self, *, is_due: bool) -> SlotRead | None:
        """Return the time up to which the slot is read; None if a shard was never read, or all have ended."""
        current = self._object.checkpoint
        positions = [current.position(each) or start for each, start in self._shards.items()]
        times = [each.caught_up_ms for each in positions if not each.is_ended]
        if not is_due and self._object.oldest_ms is not None:
            times.append(self._object.oldest_ms)
        lowest = min(times, default=-1)
        return SlotRead(lowest, self._assigned) if lowest >= 0 else None

    def _full_objects(self) -> Generator[CutObject, None, bool]:
        """Yield full objects. Return whether all shards were read to their tips before the time slice ended."""
        for shard_id in sorted(self._shards, key=lambda each: (self._shards[each].caught_up_ms, each)):
            reached_tip = yield from self._read_shard(shard_id)
            if not reached_tip:
                return False
        return True

    def _read_shard(self, shard_id: str) -> Generator[CutObject, None, bool]:
        with closing(self._reader.read(shard_id, self._shards[shard_id])) as answers:
            while self._target.wait_for_rate_limit():
                answer = next(answers, None)
                if answer is None:
                    return True
                has_cut = yield from self._take(shard_id, answer)
                failpoints.reach("ingest.fetched")
                self._target.services.coordinator.check_session()
                if self._is_time_over(has_cut=has_cut):
                    return False
        return False

    def _take(self, shard_id: str, answer: SlotAnswer) -> Generator[CutObject, None, bool]:
        """Add an answer to the object. If the object would be too large, yield it before, and return True.

        All batches of an answer are in one object, since a checkpoint cannot stand for a part of an answer.
        """
        self._target.spend_rate_limit(answer.size_bytes)
        has_cut = self._object.messages > 0 and self._object.size_bytes + len(answer.batches) > self._max_bytes
        if has_cut:
            current = self._object
            yield self._cut()
            self._begin_object(current.next_offset, current.checkpoint)
        if answer.batches:
            self._object.append(answer.batches)
        self._object.checkpoint = self._object.checkpoint.moved(shard_id, self._proven(shard_id, answer.position))
        return has_cut

    def _proven(self, shard_id: str, position: ShardPosition) -> ShardPosition:
        """Return a position. At a shard's end, it has the last time at which the shard was known to be open.

        The shard's children began after that time. So it shows whether retention may have deleted their first records.
        """
        if not position.is_ended:
            return position
        before = self._object.before.position(shard_id) or self._shards[shard_id]
        return replace(position, caught_up_ms=before.caught_up_ms)

    def _is_due(self) -> bool:
        """Return whether to complete the object now."""
        now_ms = self._target.clock.now_ms()
        current = self._object
        if current.messages and is_due(self._policy, current, now_ms):
            return True
        return current.has_ended_shards or self._is_proof_old(now_ms)

    def _is_proof_old(self, now_ms: int) -> bool:
        """Return whether a shard's committed checkpoint is older than its read position by a part of the retention."""
        limit_ms = now_ms - self._reader.retention // timedelta(milliseconds=1) // _PROOF_PARTS
        before, after = self._object.before, self._object.checkpoint
        for shard_id, position in after.positions.items():
            proven = before.position(shard_id) or self._shards.get(shard_id)
            if proven is not None and proven.caught_up_ms < limit_ms and proven.caught_up_ms < position.caught_up_ms:
                return True
        return False

    def _is_time_over(self, *, has_cut: bool) -> bool:
        now, time_slice = self._target.clock.monotonic(), self._target.time_slice
        return now >= time_slice.deadline or (has_cut and now >= time_slice.yields_at)

    def _begin_object(self, first_offset: int, before: Checkpoint) -> None:
        self._object = new_slot_object(self._target, first_offset, self._topic_id, before)
        self._began_at = self._target.clock.monotonic()

    def _cut(self) -> CutObject:
        return CutObject(self._object, self._target.clock.monotonic() - self._began_at)
