"""The commit protocol (docs/protocol.md) for one topic-partition, from the lock to the committed offset.

What it relies on: S3's conditional create and ZooKeeper's versioned write, and nothing else. The lock only avoids
duplicate work. Even if a lane wrongly believes that it holds the lock, S3 creates an object of a name once, and
ZooKeeper moves the committed offset only from the version that the lane has read.

What it survives: a kill at any point, a rival that archives the same offsets at the same time, a session that ended
unnoticed, a lost answer. In each case the next pass finds the existing object, adopts it, and continues from its end.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NoReturn

from waybill.archive.chain import gaps, object_reader
from waybill.archive.chain.chain import add_restore_remedy, find_uncommitted_object
from waybill.archive.chain.gaps import Gap
from waybill.archive.chain.object_reader import ObjectSummary
from waybill.archive.ingest.committed_offset import find_committed_offset, is_consistent
from waybill.archive.ingest.cut_object import CutObject
from waybill.archive.ingest.lane_report import ArchivedObject, Failure, Outcome, TopicPartitionReport
from waybill.archive.ingest.position import Position
from waybill.archive.ingest.target import ArchiveTarget
from waybill.base import failpoints
from waybill.base.errors import (
    CommitConflict,
    IngestStopped,
    KafkaUnavailable,
    LockHeld,
    LogTruncated,
    ObjectExists,
    RetentionGap,
    UnexpectedFailure,
    WaybillError,
)
from waybill.config.names import BackupName
from waybill.records.shards.checkpoint import Checkpoint
from waybill.services.coordination import CommittedOffset, OffsetCounts
from waybill.services.kafka.kafka import PartitionState

logger = logging.getLogger(__name__)

_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class _ObjectInChain:
    """An object that exists, created or adopted, at which the committed offset must be moved."""

    archived: ArchivedObject
    leader_epoch: int
    """The leader epoch of its last batch."""
    counts: OffsetCounts
    checkpoint: Checkpoint | None = None
    """The checkpoint at its end, for a slot."""


def archive_topic_partition(target: ArchiveTarget) -> TopicPartitionReport:
    """Archive the log up to its end at the start of the call, within the time slice.

    Errors of this topic-partition are in the report, since the lane continues with the others. Unexpected exceptions
    are in the report too. They are also stored in the journal, to alert a person, since the next runs will raise them
    again.
    """
    started = target.clock.monotonic()
    error: WaybillError | None = None
    try:
        outcome = _run_rounds(target)
    except LockHeld as held:
        logger.info("%s", held)
        outcome = Outcome.LOCKED
    except IngestStopped as stop:
        outcome, error = Outcome.STOPPED, stop
        _record_stop(target, stop)
    except WaybillError as failure:
        outcome, error = Outcome.FAILED, failure
        logger.warning("%s: %s: %s", target.tp, type(error).__name__, error)
    except Exception as fault:
        error = UnexpectedFailure(str(target.tp), fault)
        outcome = Outcome.FAILED
        logger.exception("the stack trace of the next line")
        _record_stop(target, error)
    seconds = target.clock.monotonic() - started
    return target.draft.to_report(target.tp, outcome, seconds, None if error is None else _failure(error))


def _run_rounds(target: ArchiveTarget) -> Outcome:
    """Run the protocol, again from step 1 if a rival moved the committed offset in between."""
    if target.conflict is not None:
        raise target.conflict
    described = target.described
    for rounds_left in reversed(range(_ROUNDS)):
        try:
            return _run_protocol(target, described)
        except CommitConflict as conflict:
            target.draft.committed_offset = None
            if not rounds_left:
                raise
            logger.warning("%s; starting again from the offset that it committed", conflict)
            described = None  # the description is older than the rival's commit
    raise AssertionError("unreachable")


def _run_protocol(target: ArchiveTarget, described: PartitionState | None) -> Outcome:
    """Archive a topic-partition by steps 1 to 7 of docs/protocol.md."""
    with target.services.coordinator.lock(target.tp):  # 1. Take the lock.
        failpoints.reach("ingest.locked")
        described = described or target.source.describe(target.tp)
        committed = read_committed_offset(target, described)  # 2. Read the committed offset, or rebuild it.
        position = check_log(target, committed, described)  # 3. Check that the log continues from it.
        failpoints.reach("ingest.log_checked")
        _clear_named_stop(target)
        if (outcome := target.source.outcome_without_fetch(target, position)) is not None:
            _clear_unexpected_failure(target)
            return outcome
        while True:
            position = _adopt_uncommitted_objects(target, position)
            fetch = target.source.open_fetch(target, position)
            with closing(fetch.objects()) as objects:
                try:
                    for cut in objects:  # 4. Fetch record batches. 5. Cut an object by the upload policy.
                        found = _complete_or_adopt(target, cut)  # 6. Create the object, or adopt the one that exists.
                        position = _write_committed_offset(target, position, found)  # 7. Move the committed offset.
                        if found.archived.adopted:
                            break  # The adopted object may end at another offset than ours: fetch again from its end.
                    else:
                        _clear_unexpected_failure(target)
                        return fetch.outcome
                except LogTruncated as truncated:
                    _raise_truncated_while_reading(target, position, truncated)


# --- step 2: the committed offset -------------------------------------------------------------------------------------


def read_committed_offset(target: ArchiveTarget, described: PartitionState) -> CommittedOffset:
    """Return the committed offset from ZooKeeper, else from the chain, else where the chain starts.

    Raises `GenerationConflict` when the chain has another format, and the errors of `find_committed_offset`.
    """
    target.draft.end_offset = target.source.end_offset(described)
    committed = find_committed_offset(target, described)
    target.draft.committed_offset = committed.committed_offset
    target.check_format(committed.extension)
    failpoints.reach("ingest.committed_read")
    return committed


# --- step 3: does the log continue where the chain ends? --------------------------------------------------------------


def check_log(target: ArchiveTarget, committed: CommittedOffset, described: PartitionState) -> Position:
    """Return the position from which to fetch: at the committed offset, or after an accepted gap.

    Raises the named stop of `Source.check_log`, unless it was accepted.
    """
    if not is_consistent(committed, described):
        # The description may be older than a rival's last commit: then there is no reason for a stop, so request it
        # again.
        described = target.source.describe(target.tp)
        target.draft.end_offset = target.source.end_offset(described)
    return _check_position(target, Position(committed, described.log_range, described.topic.topic_id))


def _check_position(target: ArchiveTarget, position: Position) -> Position:
    store, generation, offset = target.services.store, target.stream.generation, position.committed.committed_offset
    position = replace(position, skips_epoch_check=False)
    try:
        target.source.check_log(target, position)
    except RetentionGap as stop:
        gap = gaps.find_gap(store, generation, target.tp, offset)
        advanced = _advance_past_gap(target, position, gap, stop)
        if advanced is None:
            raise
        return _check_position(target, advanced)
    except LogTruncated as stop:
        if gaps.find_truncation(store, generation, target.tp, stop.end_offset, offset) is None:
            raise
        return replace(position, skips_epoch_check=True)
    return position


def _advance_past_gap(
    target: ArchiveTarget, position: Position, gap: Gap | None, stop: RetentionGap
) -> Position | None:
    """Return the position after the object at the committed offset; None if there is neither an object nor a gap.

    For an accepted gap without an object, put the gap marker there first.
    """
    store = target.services.store
    stored = find_uncommitted_object(store, target.stream.generation, target.tp, position.committed)
    if stored is not None:
        found = _adopt(target, stored.name, stored.key)
    elif gap is not None:
        logger.warning("going over an accepted gap: %s", gap)
        found = _adopt(target, *target.source.put_gap_marker(target, position, gap, stop))
    else:
        return None
    position = _write_committed_offset(target, position, found)
    if gap is not None and (found.archived.messages or found.archived.next_offset != gap.next_offset):
        # A lane that was frozen before the decision created its object first. Its messages are not missing, so the
        # decision has no effect. Offsets that are missing after this object are another gap.
        gaps.withdraw_gap(store, gap)
    return position


def _raise_truncated_while_reading(target: ArchiveTarget, position: Position, truncated: LogTruncated) -> NoReturn:
    """Raise the named stop if archived messages were truncated, else a retriable error.

    The messages of the unfinished object are not archived yet, so their truncation is no reason for a stop.
    """
    log_range = target.source.offsets([target.tp])[target.tp]
    _check_position(target, replace(position, log_range=log_range))
    raise KafkaUnavailable(f"{target.tp}: the log was truncated while it was read ({truncated})") from truncated


# --- before step 4 ----------------------------------------------------------------------------------------------------


def _adopt_uncommitted_objects(target: ArchiveTarget, position: Position) -> Position:
    """Adopt objects that dead lanes created and did not commit. Return the position after the last of them.

    Also checks the chain's end: raises `ChainBroken` if the last committed object is missing, or if an object exists
    after the committed offset and none at it.
    """
    store, generation = target.services.store, target.stream.generation
    while (stored := find_uncommitted_object(store, generation, target.tp, position.committed)) is not None:
        position = _write_committed_offset(target, position, _adopt(target, stored.name, stored.key))
    return position


# --- step 6: create the object, or adopt the one that exists ----------------------------------------------------------


def _complete_or_adopt(target: ArchiveTarget, cut: CutObject) -> _ObjectInChain:
    """Create the object in S3. If another task has created one of this name, adopt that one."""
    ours = cut.backup_object
    failpoints.reach("ingest.object_cut")
    try:
        ours.complete()
    except ObjectExists:
        failpoints.reach("ingest.object_refused")
        return _adopt(target, ours.name, ours.key)
    failpoints.reach("ingest.object_created")
    archived = ArchivedObject(
        key=ours.key,
        first_offset=ours.name.first_offset,
        next_offset=ours.next_offset,
        messages=ours.messages,
        size_bytes=ours.size_bytes,
        seconds=cut.seconds,
    )
    counts = OffsetCounts(ours.name.first_offset, ours.messages, ours.control_offsets, ours.aborted_offsets)
    return _ObjectInChain(archived, ours.leader_epoch, counts, ours.checkpoint)


def _adopt(target: ArchiveTarget, name: BackupName, key: str) -> _ObjectInChain:
    """Read the object that another task created: one that died before it could commit, or a rival.

    The whole object is read and checked before the committed offset may move to its end. Raises `ChainBroken` if it is
    damaged.
    """
    target.check_format(name.extension)
    with add_restore_remedy(key, name.first_offset):
        summary = object_reader.inspect_object(target.services.store, name, key)
    failpoints.reach("ingest.object_inspected")
    checkpoint = target.source.adopted_checkpoint(target.tp, name, summary)
    archived = ArchivedObject(
        key=key,
        first_offset=name.first_offset,
        next_offset=summary.next_offset,
        messages=summary.messages,
        size_bytes=summary.size_bytes,
        seconds=0.0,
        adopted=True,
    )
    return _ObjectInChain(archived, summary.leader_epoch, _counts_of_adopted(name, summary), checkpoint)


def _counts_of_adopted(name: BackupName, summary: ObjectSummary) -> OffsetCounts:
    offsets = summary.next_offset - name.first_offset
    if summary.is_gap_marker:
        return OffsetCounts(name.first_offset, gaps=offsets)
    if summary.slot_state is not None:
        return OffsetCounts(name.first_offset, summary.messages, control=offsets - summary.messages)
    return OffsetCounts(name.first_offset, summary.messages, unknown=offsets - summary.messages)


# --- step 7: move the committed offset --------------------------------------------------------------------------------


def _write_committed_offset(target: ArchiveTarget, position: Position, found: _ObjectInChain) -> Position:
    """Move the committed offset to the object's end, and return the new position.

    Raises `CommitConflict` if another task has moved it since it was read.
    """
    before, archived = position.committed, found.archived
    after = replace(
        before,
        committed_offset=archived.next_offset,
        topic_id=before.topic_id or position.topic_id,
        leader_epoch=found.leader_epoch,
        committed_at_ms=target.clock.now_ms(),
        last_object_offset=archived.first_offset,
        counts=found.counts if before.counts is None else before.counts + found.counts,
        checkpoint=before.checkpoint if found.checkpoint is None else found.checkpoint,
    )
    if archived.messages:  # an object without messages has no mean message size
        after = replace(after, object_bytes=archived.size_bytes, object_messages=archived.messages)
    # The object exists, even if a rival has adopted and committed it in the meantime. So report it before the write.
    target.draft.objects.append(archived)
    written = target.services.coordinator.write_committed(target.tp, after, before.version)
    target.draft.committed_offset = written.committed_offset
    failpoints.reach("ingest.offset_committed")
    logger.info(
        "%s %s [%d, %d) %s messages %.1f MB in %.1f s, lag %d",
        *("adopted" if archived.adopted else "archived", target.tp, archived.first_offset, archived.next_offset),
        *(f"{archived.messages:,}", archived.size_bytes / 1e6, archived.seconds),
        max(0, (target.draft.end_offset or 0) - archived.next_offset),
    )
    return replace(position, committed=written, skips_epoch_check=False)


# --- the journal of stops, and the report -----------------------------------------------------------------------------


def _clear_named_stop(target: ArchiveTarget) -> None:
    if target.may_have_stop and target.services.coordinator.clear_stop(target.tp, unexpected=False):
        logger.info("%s: its stop is resolved", target.tp)


def _clear_unexpected_failure(target: ArchiveTarget) -> None:
    """Remove an unexpected failure from the journal after a complete run of the protocol.

    The check of the log alone is not enough.
    """
    if target.may_have_stop and target.services.coordinator.clear_stop(target.tp, named=False):
        logger.info("%s: archived again after an unexpected failure", target.tp)


def _record_stop(target: ArchiveTarget, stop: IngestStopped | UnexpectedFailure) -> None:
    """Write the stop to the journal. The report has the stop in any case, so any error is only logged."""
    logger.error("%s", stop)
    try:
        target.services.coordinator.record_stop(target.tp, stop)
    except WaybillError as error:
        logger.warning("%s: the stop could not be journaled: %s", target.tp, error)
    except Exception:
        logger.exception("%s: the stop could not be journaled", target.tp)


def _failure(error: WaybillError) -> Failure:
    name = error.stop_name if isinstance(error, IngestStopped) else type(error).__name__
    return Failure(error=name, message=str(error), retriable=error.retriable)
