"""Execute a restore: send record batches from the archive to the target, each message once.

The main path is `restore`: it takes a batch of every topic-partition in turn, rewrites its header (`records.produced`)
and passes it to the producer (`batch_producer`).

The target holds the progress. The end of its log shows how many messages it has, and by the sequence numbers of the
batches its leader refuses every message that it already has. So a restore that was killed continues at the target's log
end, and two processes that execute the same restore do not repeat a message.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from waybill.archive.restore.archived import ArchivedBatch, message_runs, objects_of_range, read_batches
from waybill.archive.restore.offset_map import MapBuilder, RestorePlace, find_place
from waybill.archive.restore.progress import check_target, read_progress
from waybill.archive.restore.refusal import explain
from waybill.archive.restore.restore_plan import PartitionPlan, RestorePlan
from waybill.base import failpoints
from waybill.base.errors import (
    CorruptBatch,
    IngestStopped,
    RestoreStopped,
    StoreUnavailable,
    UnexpectedFailure,
    WaybillError,
)
from waybill.config.names import TopicPartition
from waybill.records.batches.produced import stamp
from waybill.services.kafka.batch_producer import Batches, BatchRefused, OutOfSequence
from waybill.services.kafka.target import TargetCluster
from waybill.services.store import Store

logger = logging.getLogger(__name__)

_IN_TURN = 8
"""How many topic-partitions are restored at the same time."""
_CHUNK_BYTES = 128 << 10
"""About how many bytes are read and prepared before the answers to batches in flight are checked."""
_COLLECT_AFTER = 50_000
"""The number of new Python objects between two garbage collections: with Python's default of 700, collections take 15 %
of the CPU time."""
_PART_MESSAGES = 1_000_000
_PART_SECONDS = 30.0
_MAX_REPOSITIONS = 20


@dataclass(slots=True)
class PartitionResult:
    """The results of a run for one topic-partition."""

    plan: PartitionPlan
    resumed_at: int | None = None
    """The target offset at which this run began to produce."""
    target_end: int | None = None
    """The target offset after the last message that is known to be there."""
    next_offset: int | None = None
    """The archived offset from which messages are still missing in the target."""
    messages: int = 0
    """How many messages this run produced."""
    encoded_batches: int = 0
    """How many batches had to be encoded again before they were sent."""
    batches: int = 0
    is_complete: bool = False
    error: WaybillError | None = field(default=None)


def restore(
    store: Store,
    target: TargetCluster,
    plan: RestorePlan,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    report: Callable[[PartitionResult], None] = lambda _: None,
) -> list[PartitionResult]:
    """Produce the messages of a plan that the target lacks, and return a result for each topic-partition.

    An error of one topic-partition does not affect the others. `should_stop` is called between batches; if it returns
    True, the restore waits for acknowledgements, and the results hold its progress. `report` is called from time to
    time.

    Raises `KafkaUnavailable`, `StoreUnavailable` or `ConfigError` when no topic-partition can be restored, and
    `RestoreStopped` when a topic of the target is not the one that the restore began with.
    """
    check_target(target, plan)
    with _rare_collections():
        return _restore(store, target, plan, should_stop, report)


@contextmanager
def _rare_collections() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.set_threshold(_COLLECT_AFTER, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def _restore(
    store: Store,
    target: TargetCluster,
    plan: RestorePlan,
    should_stop: Callable[[], bool],
    report: Callable[[PartitionResult], None],
) -> list[PartitionResult]:
    waiting = [_Partition(store, target, plan, each) for each in plan.partitions]
    results = [each.result for each in waiting]
    active: dict[TopicPartition, _Partition] = {}
    while (waiting or active) and not should_stop():
        while waiting and len(active) < _IN_TURN:
            partition = waiting.pop(0)
            active[partition.plan.target] = partition
        tp = target.producer.wait_for_room(active.keys())
        partition = active.pop(tp)
        if partition.advance():
            active[tp] = partition  # move it to the end of the dict, so that the others have their turn first
        report(partition.result)
    for partition in active.values():
        partition.stop()
        report(partition.result)
    return results


class _Partition:
    """The restore of one topic-partition, chunk by chunk."""

    def __init__(self, store: Store, target: TargetCluster, plan: RestorePlan, partition: PartitionPlan) -> None:
        self._store, self._target, self._restore = store, target, plan
        self.plan = partition
        self.result = PartitionResult(partition)
        self._batches: Iterator[ArchivedBatch] | None = None
        self._map: MapBuilder | None = None
        self._place = RestorePlace(partition.first_offset, partition.target_offset)
        """The next archived offset to read, and the target offset that its next message gets."""
        self._part_begun = 0.0
        self._repositions = 0

    def advance(self) -> bool:
        """Send the next chunk. Return whether there is more to do."""
        try:
            return self._advance()
        except OutOfSequence as error:
            return self._begin_again(error)
        except WaybillError as error:
            self._fail(error)
            return False
        except Exception as error:
            failure = UnexpectedFailure(f"the restore of {self.plan.source}", error)
            logger.exception("%s", failure)
            self._fail(failure)
            return False

    def stop(self) -> None:
        """Wait for acknowledgements, and record the messages in the offset map."""
        try:
            if self._batches is not None:
                self._flush()
        except (OutOfSequence, WaybillError) as error:
            logger.info("%s: %s", self.plan.target, error)
        except Exception as error:
            failure = UnexpectedFailure(f"the end of the restore of {self.plan.source}", error)
            logger.exception("%s", failure)
            self.result.error = failure
        self._close()

    def _advance(self) -> bool:
        try:
            return self._advance_by_chunk()
        except BatchRefused as error:
            raise explain(self._store, self._target, self._restore, self.plan, error) from error

    def _advance_by_chunk(self) -> bool:
        if self._batches is None:
            self._begin()
        self._target.producer.check(self.plan.target)
        if self._send_chunk():
            if self._is_part_due():
                self._flush()
            return True
        self._flush()
        self._close()
        self.result.is_complete = True
        logger.info("restored %s to %s, %d messages", self.plan.source, self.plan.target, self.result.messages)
        return False

    def _begin(self) -> None:
        """Read the end of the target's log, and open the archive at the corresponding offset."""
        plan, source = self.plan, self.plan.source
        self._target.producer.begin(plan.target)
        end = read_progress(self._target, self._restore, plan)
        start = RestorePlace(plan.first_offset, plan.target_offset)
        place = find_place(self._store, self._restore.id, source, end, start)
        if self.result.resumed_at is None:
            self.result.resumed_at = end
        self.result.target_end = end
        objects = objects_of_range(self._store, self._restore.generation, source, place.offset, plan.next_offset)
        self._map = MapBuilder(self._store, self._restore.id, source, plan.target_topic, place)
        self._place = place
        self._batches = read_batches(self._store, source, objects, place.offset, plan.next_offset)
        self._part_begun = time.monotonic()
        failpoints.reach("restore.position_read")
        self._skip_to(end)

    def _skip_to(self, end: int) -> None:
        """Skip the batches that the target already has."""
        while self._place.target_offset < end:
            batch = next(self._batches or iter(()), None)
            if batch is None:
                raise RestoreStopped(
                    f"{self.plan.target}: the target has {end - self.plan.target_offset:,} messages, but the archive "
                    f"has only {self._place.target_offset - self.plan.target_offset:,} in the range: another producer "
                    f"wrote to the topic. Delete it, and restore into another one"
                )
            self._pass(batch)
        if self._place.target_offset > end:
            raise RestoreStopped(
                f"{self.plan.target}: the target's log ends at offset {end}, within a batch of this restore: another "
                f"producer wrote to the topic. Delete it, and restore into another one"
            )

    def _pass(self, batch: ArchivedBatch) -> int:
        """Count a batch as sent, and return its number of messages."""
        assert self._map is not None
        messages = 0 if batch.frame is None else batch.frame.header.record_count
        if batch.frame is not None:
            for offset, count in message_runs(batch, self._place.offset, self.plan.next_offset):
                self._map.add(offset, count)
        self._place = RestorePlace(batch.next_offset, self._place.target_offset + messages)
        return messages

    def _send_chunk(self) -> bool:
        """Send the next batches. Return False at the end of the range."""
        assert self._batches is not None
        first = self._place.target_offset
        data: list[tuple[bytes, int]] = []
        size = 0
        try:
            for batch in self._batches:
                if batch.frame is not None:
                    index = self._place.target_offset - self.plan.target_offset
                    stamped = stamp(batch.frame, self._restore.producer, index)
                    data.append((stamped, batch.frame.header.record_count))
                    size += len(stamped)
                    self.result.batches += 1
                    self.result.encoded_batches += batch.frame is not batch.archived
                self.result.messages += self._pass(batch)
                if size >= _CHUNK_BYTES:
                    return True
        finally:
            if data:  # also before an error of the archive: the batches read until then are sound
                self._target.producer.send(self.plan.target, Batches(first, data))
                failpoints.reach("restore.sent")
        return False

    def _is_part_due(self) -> bool:
        assert self._map is not None
        return self._map.messages >= _PART_MESSAGES or time.monotonic() - self._part_begun >= _PART_SECONDS

    def _flush(self) -> None:
        """Wait until the target has acknowledged all messages, then write a part of the offset map."""
        assert self._map is not None
        self._target.producer.check(self.plan.target, flush=True)
        self.result.target_end, self.result.next_offset = self._place.target_offset, self._place.offset
        failpoints.reach("restore.acknowledged")
        self._map.write(self._place.offset)
        failpoints.reach("restore.mapped")
        self._part_begun = time.monotonic()

    def _begin_again(self, error: OutOfSequence) -> bool:
        """Start from the end of the target's log, after its leader refused a sequence number.

        That happens when a rival has produced the same messages, and after an unclean election of the target.
        """
        self._target.producer.forget(self.plan.target)
        self._close()
        self._repositions += 1
        logger.info("%s; continuing at the end of the target's log", error)
        if self._repositions > _MAX_REPOSITIONS:
            self._fail(
                RestoreStopped(
                    f"{error}, {self._repositions} times. Another process carries out this restore: wait for its end, "
                    f"or end it, and run the restore again"
                )
            )
            return False
        time.sleep(0.1 * self._repositions)
        return True

    def _fail(self, error: WaybillError) -> None:
        if isinstance(error, CorruptBatch | IngestStopped | StoreUnavailable) and self._batches is not None:
            self.stop()  # an error of the archive: the messages sent before it are sound
        self._target.producer.forget(self.plan.target)
        self._close()
        self.result.error = error

    def _close(self) -> None:
        if self._batches is not None:
            self._batches.close()  # type: ignore[attr-defined]
        self._batches = None
