"""Finding what an unclean leader election took back, by comparing leader epochs of the archive with those of the log.

A message of the archive is in the log exactly if the log has its leader epoch up to its offset: within an epoch one
leader gives each offset once, and replicas only ever keep a beginning of what a leader wrote (KIP-101, KIP-320). So the
archived batches are walked back from the offset at which the archive goes on after a truncation, as a follower does
with its own log, until one is found that the log has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from waybill.archive import gaps
from waybill.archive.chain import ChainObject
from waybill.archive.gaps import Gap
from waybill.names import TopicPartition
from waybill.records.framing import read_frames
from waybill.restore.archived import objects_of_range
from waybill.sources.kafka import EpochEnd, KafkaSource, LogRange
from waybill.store import Store

__all__ = ["EpochRun", "SeenEnd", "Truncation", "find_truncations", "lost_runs"]


class EpochRun(NamedTuple):
    """Offsets `[first_offset, next_offset)` that were written by the leader of one epoch."""

    first_offset: int
    next_offset: int
    leader_epoch: int
    """-1: not known, as in a gap marker."""


class SeenEnd(NamedTuple):
    """The end of a log, as a watch saw it before the log became shorter."""

    at_ms: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Truncation:
    """What one or more unclean elections took back of a topic-partition, at one place of the chain."""

    tp: TopicPartition
    generation: int
    archived: tuple[EpochRun, ...]
    """Archived offsets that the log does not have any more, in order. They end where the archive goes on."""
    resume_offset: int
    """The archive holds the new log from this offset on. What the new log has before it is not archived."""
    seen_end: SeenEnd | None
    """The log went on to here, at least, when a watch saw it last. None: no watch saw offsets that are not archived.

    What the log had beyond is not known: nobody has read it.
    """
    accepted: Gap | None
    """The decision with which ingest went on; None: not accepted yet."""

    @property
    def first_offset(self) -> int:
        return self.archived[0].first_offset if self.archived else self.resume_offset

    @property
    def unknown(self) -> tuple[int, int]:
        """Return the offsets `[first, next)` that were in the lost log, and that nobody read. It can be empty."""
        end = self.resume_offset if self.seen_end is None else max(self.resume_offset, self.seen_end.end_offset)
        return self.resume_offset, end


def find_truncations(
    store: Store,
    source: KafkaSource,
    generation: int,
    tp: TopicPartition,
    committed_offset: int,
    seen_end: Callable[[int, int | None], SeenEnd | None],
) -> list[Truncation]:
    """Return what unclean elections took back of a topic-partition, by offset.

    `seen_end` returns the end of the lost log that a watch saw, for the offset at which the archive goes on and the
    time of the decision (epoch ms; None: now).

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
        seen = seen_end(resume_offset, None if gap is None else gap.accepted_at_ms) if lost else None
        if lost:
            found.append(Truncation(tp, generation, tuple(lost), resume_offset, seen, gap))
    return found


def _earliest_first(accepted: Iterable[Gap]) -> list[Gap]:
    """Return the truncations, those with the fewest offsets first: several can end at the same offset."""
    return sorted((gap for gap in accepted if not gap.has_marker), key=lambda gap: -gap.first_offset)


def lost_runs(
    runs: Iterable[EpochRun], log: LogRange, epoch_end: Callable[[int], EpochEnd], lost_from: int | None
) -> list[EpochRun]:
    """Return the archived runs that the log does not have, in order.

    `runs`: what the archive holds before an offset, newest first. `lost_from`: from this offset on they are known to be
    lost, whatever Kafka still knows; None: nothing is known. Runs before the start of the log are not compared: Kafka
    has deleted them since.
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
    """Return the first offset of a run that the log does not have; its end if the log has, or had, all of it."""
    if run.next_offset <= log.earliest:
        return run.next_offset
    if run.leader_epoch < 0:
        return run.first_offset  # a gap marker: what is before it decides
    answer = epoch_end(run.leader_epoch)
    if answer.leader_epoch != run.leader_epoch:
        return run.first_offset
    return min(max(run.first_offset, answer.end_offset), run.next_offset)


def _merged(runs: Iterable[EpochRun]) -> list[EpochRun]:
    """Return runs in order, with neighbours of one epoch as one run."""
    merged: list[EpochRun] = []
    for run in runs:
        if merged and merged[-1].leader_epoch == run.leader_epoch and merged[-1].next_offset == run.first_offset:
            merged[-1] = merged[-1]._replace(next_offset=run.next_offset)
        else:
            merged.append(run)
    return merged


def _runs_backwards(store: Store, objects: list[ChainObject], before: int) -> Iterator[EpochRun]:
    """Yield the epochs of archived offsets before an offset, newest first. Reads an object only when its turn comes."""
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
