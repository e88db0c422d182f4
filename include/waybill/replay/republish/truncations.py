"""Find the messages that an unclean leader election took back: compare the leader epochs of archive and log.

An archived message is in the log exactly if the log's entries of its leader epoch reach beyond its offset: within an
epoch one leader assigns each offset once, and a replica keeps a prefix of what the leader wrote (KIP-101, KIP-320). So
the archived batches are read backwards from the offset at which the archive continues after a truncation, as a follower
does with its own log, until a batch is found that is in the log.

The archive cannot show the loss of messages that were not archived. Only a watch that saw the log become shorter shows
it. After such a loss, the log continues where a later leader epoch begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from waybill.archive.chain import gaps
from waybill.archive.chain.chain import ChainObject
from waybill.archive.chain.gaps import Gap
from waybill.archive.restore.archived import objects_of_range
from waybill.base.errors import RestoreRefused
from waybill.config.names import TopicPartition
from waybill.records.batches.framing import read_frames
from waybill.services.kafka.kafka import EpochEnd, KafkaSource, LogRange
from waybill.services.store import Store


class EpochRun(NamedTuple):
    """Offsets `[first_offset, next_offset)` that were written by the leader of one epoch."""

    first_offset: int
    next_offset: int
    leader_epoch: int
    """-1: unknown, as in a gap marker."""


class SeenEnd(NamedTuple):
    """The log end offset that a watch read before the log became shorter."""

    at_ms: int
    end_offset: int
    committed_offset: int
    """The committed offset at that time."""

    def is_of(self, resume_offset: int, accepted: Gap | None) -> bool:
        """Return whether this is the end of the lost log, if the archive continues at an offset.

        `accepted`: the decision after which the archive continued, if there is one.
        """
        in_time = accepted is None or self.at_ms <= accepted.accepted_at_ms
        return in_time and self.committed_offset <= resume_offset < self.end_offset


@dataclass(frozen=True, slots=True)
class Truncation:
    """The messages that one or more unclean elections took back from a topic-partition, at one place of the chain."""

    tp: TopicPartition
    generation: int
    archived: tuple[EpochRun, ...]
    """Archived offsets that are no longer in the log, in order. They end where the archive continues.

    Empty: the log lost only messages that were not archived.
    """
    resume_offset: int
    """The archive holds the new log from this offset on. Earlier messages of the new log are not archived.

    If no archived message is lost: the first offset that the log lost.
    """
    seen_end: SeenEnd | None
    """The lost log reached at least to this offset when a watch last read it. None: no watch saw offsets that are not
    archived.

    Messages beyond it are unknown: nobody has read them.
    """
    accepted: Gap | None
    """The decision after which ingest continued; None: there is no decision yet, or none was needed."""
    may_begin_later: tuple[int, ...] = ()
    """If no archived message is lost: further offsets at which the loss may begin instead of at `resume_offset`. The
    log still has all offsets before the true one."""

    @property
    def first_offset(self) -> int:
        return self.archived[0].first_offset if self.archived else self.resume_offset

    @property
    def unknown(self) -> tuple[int, int]:
        """Return the offsets `[first, next)` of the lost log that nobody read. The range can be empty."""
        end = self.resume_offset if self.seen_end is None else max(self.resume_offset, self.seen_end.end_offset)
        return self.resume_offset, end


def find_truncations(
    store: Store,
    source: KafkaSource,
    generation: int,
    tp: TopicPartition,
    committed_offset: int,
    drops: Sequence[SeenEnd],
) -> list[Truncation]:
    """Return the truncations of a topic-partition by unclean elections, sorted by offset.

    `drops`: the log ends that a watch read each time before the log became shorter, oldest first.

    Raises `RestoreRefused` for an archive without record batches, `ChainBroken` or `CorruptBatch` when an object cannot
    be read, and `KafkaUnavailable`.
    """
    objects = objects_of_range(store, generation, tp, None, committed_offset)
    log = source.offsets([tp])[tp]
    answers: dict[int, EpochEnd] = {}

    def epoch_end(epoch: int) -> EpochEnd:
        if epoch not in answers:
            answers[epoch] = source.epoch_end(tp, epoch)
        return answers[epoch]

    accepted = {gap.next_offset: gap for gap in _earliest_first(gaps.list_gaps_of_chain(store, generation, tp))}
    found = []
    for resume_offset in sorted({*accepted, committed_offset}):
        gap = accepted.get(resume_offset)
        runs = _runs_backwards(store, objects, resume_offset)
        lost = lost_runs(runs, log, epoch_end, None if gap is None else gap.first_offset)
        if lost:
            seen = [drop for drop in drops if drop.is_of(resume_offset, gap)]
            found.append(Truncation(tp, generation, tuple(lost), resume_offset, seen[-1] if seen else None, gap))
    for number, drop in enumerate(drops):
        if not any(drop.is_of(each.resume_offset, each.accepted) for each in found if each.archived):
            changes = _changes_since(store, objects, committed_offset, drop, epoch_end)
            possible = possible_first_losses(drop, drops[:number], changes)
            if possible:
                found.append(Truncation(tp, generation, (), possible[0], drop, None, tuple(possible[1:])))
    return sorted(found, key=lambda each: each.first_offset)


def check_same_topic(source: KafkaSource, generation: int, tp: TopicPartition, recorded_id: str) -> None:
    """Raise `RestoreRefused` if the topic is not the archived one: then its log cannot be compared with the archive.

    `recorded_id`: the archived topic's id; '' if Kafka did not state one.
    """
    found_id = source.topic(tp.topic).topic_id
    if recorded_id and found_id and recorded_id != found_id:
        raise RestoreRefused(
            f"{tp}: TopicRecreated: topic {tp.topic!r} was deleted and created again (its id was {recorded_id}, now it "
            f"is {found_id}), so its log is not the one that generation {generation} archived. No election took "
            f"messages back. Raise the stream's generation to archive the new topic; to put the old messages into "
            f"Kafka, use `waybill restore run`"
        )


def _changes_since(
    store: Store,
    objects: list[ChainObject],
    committed_offset: int,
    drop: SeenEnd,
    epoch_end: Callable[[int], EpochEnd],
) -> list[int]:
    """Return the offsets at which another leader began, among those that a shorter log may have lost.

    See `leader_changes`.
    """
    archived: list[EpochRun] = []
    for run in _runs_backwards(store, objects, min(committed_offset, drop.end_offset)):
        archived.insert(0, run)
        if run.first_offset < drop.committed_offset:
            break
    return leader_changes(archived, committed_offset, drop, epoch_end)


def leader_changes(
    archived: Sequence[EpochRun],
    committed_offset: int,
    drop: SeenEnd,
    epoch_end: Callable[[int], EpochEnd],
) -> list[int]:
    """Return the offsets at which another leader began, from the archive's end at a drop to the lost log end, in order.

    The shorter log continued at one of them. Offsets of clean elections are included, since Kafka does not distinguish
    them. Empty: the log has lost nothing, so a broker gave the watch an outdated answer.

    `archived`: the archived runs of these offsets, in order, and the run before them. `epoch_end` is called for offsets
    that are not archived.
    """
    known = [run for run in _merged(archived) if run.leader_epoch >= 0]
    found = {before.next_offset for before, run in pairwise(known) if before.leader_epoch != run.leader_epoch}
    is_known_before = bool(known) and known[0].first_offset < drop.committed_offset
    epoch, end = (known[-1].leader_epoch if is_known_before else 0), -1
    is_archived = is_known_before and committed_offset >= drop.end_offset
    while not is_archived and end < drop.end_offset:
        answer = epoch_end(epoch)
        if answer.end_offset < 0:
            break  # no leader has had this epoch, so the previous leader leads now
        if end >= 0:
            found.add(end)
        epoch, end = epoch + 1, answer.end_offset
    return sorted(offset for offset in found if drop.committed_offset <= offset < drop.end_offset)


def possible_first_losses(drop: SeenEnd, earlier: Iterable[SeenEnd], changes: Sequence[int]) -> list[int]:
    """Return the offsets at which a loss of unarchived messages may begin, in order. Empty: no message is lost.

    `changes`: see `leader_changes`. If the log had become shorter before, after the same archived messages, then the
    replica of the earlier log may have become the leader again. Its log does not show the log that replaced it, so any
    message after the archived ones may be lost.
    """
    if any(each.end_offset > drop.committed_offset for each in earlier):
        return sorted({drop.committed_offset, *changes})
    return list(changes)


def _earliest_first(accepted: Iterable[Gap]) -> list[Gap]:
    """Return the truncations, the shortest first: several can end at the same offset."""
    return sorted((gap for gap in accepted if not gap.has_marker), key=lambda gap: -gap.first_offset)


def lost_runs(
    runs: Iterable[EpochRun], log: LogRange, epoch_end: Callable[[int], EpochEnd], lost_from: int | None
) -> list[EpochRun]:
    """Return the archived runs that are not in the log, in order.

    `runs`: the archived runs before an offset, newest first. `lost_from`: all runs from this offset on are lost, also
    if Kafka no longer shows it; None: no such offset is known. Runs before the log start offset are not compared, since
    Kafka has deleted them.
    """
    lost: list[EpochRun] = []
    for run in runs:
        low = _in_log_until(run, log, epoch_end)
        if lost_from is not None:
            low = min(low, max(run.first_offset, lost_from))
        if low < run.next_offset:
            lost.append(run._replace(first_offset=low))
        if low > run.first_offset:
            break
    return _merged(reversed([run for run in lost if run.leader_epoch >= 0]))


def _in_log_until(run: EpochRun, log: LogRange, epoch_end: Callable[[int], EpochEnd]) -> int:
    """Return the first offset of a run that is not in the log; the end of the run if all of it is or was in the log."""
    if run.next_offset <= log.earliest:
        return run.next_offset
    if run.leader_epoch < 0:
        return run.first_offset  # a gap marker: the run before it decides
    answer = epoch_end(run.leader_epoch)
    if answer.leader_epoch != run.leader_epoch:
        return run.first_offset
    return min(max(run.first_offset, answer.end_offset), run.next_offset)


def _merged(runs: Iterable[EpochRun]) -> list[EpochRun]:
    """Return runs in order; adjacent runs of one epoch become one run."""
    merged: list[EpochRun] = []
    for run in runs:
        if merged and merged[-1].leader_epoch == run.leader_epoch and merged[-1].next_offset == run.first_offset:
            merged[-1] = merged[-1]._replace(next_offset=run.next_offset)
        else:
            merged.append(run)
    return merged


def _runs_backwards(store: Store, objects: list[ChainObject], before: int) -> Iterator[EpochRun]:
    """Yield the epochs of archived offsets before an offset, newest first. Reads each object only when it is needed."""
    for each in reversed(objects):
        if each.name.first_offset >= before:
            continue
        runs: list[EpochRun] = []
        with store.open(each.key) as data:
            for frame in read_frames(data, each.key):
                header = frame.header
                low = max(header.base_offset, each.name.first_offset)
                high = min(header.next_offset, each.next_offset, before)
                if low < high:
                    runs.append(EpochRun(low, high, header.leader_epoch))
        yield from reversed(_merged(runs))
