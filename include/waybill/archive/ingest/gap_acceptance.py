"""Accept gaps: store a person's decision and, if offsets are missing, a gap marker.

The record comes first, and is created if absent. Then this call, or the next lane that finds the record, puts the gap
marker into the chain and moves the committed offset to its end, by the steps of the commit protocol. So after a crash
in between, the next lane completes the decision, and the chain never has a gap without a decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from waybill.archive.chain import chain, gaps, object_reader
from waybill.archive.chain.gaps import Gap, GapKind
from waybill.archive.ingest.position import Position
from waybill.archive.ingest.protocol import check_log, read_committed_offset
from waybill.archive.ingest.target import ArchiveTarget, IngestServices
from waybill.archive.ingest.time_slice import Clock
from waybill.base.decision import Decision
from waybill.base.errors import ChainBroken, GapRefused, IngestStopped, LogTruncated, RetentionGap, TopicRecreated
from waybill.config.models import Stream
from waybill.config.models.quantities import whole_number
from waybill.config.names import LAST_OFFSET, TopicPartition
from waybill.services.coordination import CommittedOffset
from waybill.services.store import StoredObject

_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class AcceptedGaps:
    """The gaps that a call accepted, and the offset at which ingest continues."""

    gaps: tuple[Gap, ...]
    committed_offset: int
    end_offset: int
    """The current end of the log."""
    is_new: bool = True
    """False if the same gap was accepted before, and nothing was left to do."""


@dataclass(frozen=True, slots=True)
class SeenGap:
    """The lost offsets that a person has seen: `[first_offset, next_offset)`."""

    first_offset: int
    next_offset: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the offsets of `FIRST-LAST`, both included. Raises `GapRefused` for another text."""
        first, dash, last = text.partition("-")
        first_offset, last_offset = whole_number(first, LAST_OFFSET), whole_number(last, LAST_OFFSET)
        if not dash or first_offset is None or last_offset is None or first_offset > last_offset:
            raise GapRefused(f"{text[:80]!r} is no range of offsets: give FIRST-LAST, such as 100-199")
        return cls(first_offset, last_offset + 1)

    def __str__(self) -> str:
        return f"{self.first_offset}-{self.next_offset - 1}"

    def check(self, gap: Gap) -> None:
        """Raise `GapRefused` if a gap has offsets that the person has not seen."""
        if self.first_offset <= gap.first_offset and gap.next_offset <= self.next_offset:
            return
        raise GapRefused(
            f"{gap.tp}: offsets {gap.first_offset}–{gap.next_offset - 1} would be lost now, and the decision is about "
            f"{self.first_offset}–{self.next_offset - 1}. Nothing was accepted. Look again (`waybill gaps ls`), and "
            f"decide about what is lost now"
        )


# --- a gap at the end of the chain, as Kafka's log shows it -----------------------------------------------------------


def accept_gap(
    services: IngestServices,
    stream: Stream,
    tp: TopicPartition,
    decision: Decision,
    *,
    seen: SeenGap | None = None,
    clock: Clock | None = None,
) -> AcceptedGaps:
    """Accept the gap at which ingest of a topic-partition would stop now; the journal of stops is not used.

    `seen`: the offsets that the person has seen; a gap that is not within them is refused. A gap of an unclean election
    shrinks while producers write, and one of retention grows.

    Raises `GapRefused` when there is no gap, or it cannot be accepted; `LockHeld` when a lane is running; `ChainBroken`
    when the chain itself is damaged.
    """
    target = ArchiveTarget(services, stream, tp, clock or Clock())
    if (
        services.coordinator.read_committed(tp) is None
        and chain.find_last_object(services.store, stream.generation, tp) is None
    ):
        raise GapRefused(f"{tp}: generation {stream.generation} has no archived offset yet, so there is no gap")
    accepted: list[Gap] = []
    for _ in range(_ROUNDS):
        try:
            position = _find_position(target)
        except (RetentionGap, LogTruncated) as stop:
            gap = _gap_of_stop(target, stop, decision)
            if seen is not None:
                seen.check(gap)
            accepted.append(gaps.record_gap(services.store, gap))
            continue
        except TopicRecreated as stop:
            raise GapRefused(f"{stop} There is no gap to accept.") from stop
        if accepted:
            return AcceptedGaps(tuple(accepted), position.committed.committed_offset, position.log_range.end)
        return _accepted_before(target, position)
    raise GapRefused(f"{tp}: Kafka deletes offsets faster than the gap can be recorded: try again")


def _find_position(target: ArchiveTarget) -> Position:
    """Run steps 1 to 3 of the commit protocol: return the position after all accepted gaps, and clear the stop.

    Raises the named stop, unless it was accepted, `LockHeld`, `CommitConflict`, or the error of a service.
    """
    coordinator = target.services.coordinator
    with coordinator.lock(target.tp):
        described = target.source.describe(target.tp)
        committed = read_committed_offset(target, described)
        position = check_log(target, committed, described)
        coordinator.clear_stop(target.tp)
        return position


def _gap_of_stop(target: ArchiveTarget, stop: RetentionGap | LogTruncated, decision: Decision) -> Gap:
    if isinstance(stop, RetentionGap):
        kind, first_offset, next_offset = GapKind.RETENTION, stop.committed_offset, stop.earliest_offset
    else:
        kind, first_offset, next_offset = GapKind.TRUNCATED, stop.end_offset, stop.committed_offset
    return _new_gap(target, first_offset, next_offset, kind, decision, stop)


def _new_gap(
    target: ArchiveTarget,
    first_offset: int,
    next_offset: int,
    kind: GapKind,
    decision: Decision,
    stop: IngestStopped,
) -> Gap:
    return Gap(
        tp=target.tp,
        generation=target.stream.generation,
        first_offset=first_offset,
        next_offset=next_offset,
        kind=kind,
        reason=decision.reason,
        accepted_by=decision.by,
        accepted_at_ms=target.clock.now_ms(),
        figures=stop.figures,
    )


def _accepted_before(target: ArchiveTarget, position: Position) -> AcceptedGaps:
    """Return the accepted gaps that end at the committed offset. Raises `GapRefused` if there is none."""
    offset = position.committed.committed_offset
    accepted = gaps.list_gaps_of_chain(target.services.store, target.stream.generation, target.tp)
    ending_here = [gap for gap in accepted if gap.next_offset == offset]
    if ending_here:
        return AcceptedGaps(tuple(ending_here), offset, position.log_range.end, is_new=False)
    raise GapRefused(
        f"{target.tp}: there is no gap to accept: Kafka's log continues where the archive ends, at {offset}. If an "
        f"object of the chain is lost, `waybill verify` prints its offsets: give them with --from and --to"
    )


# --- a gap in the middle of the chain ---------------------------------------------------------------------------------


def accept_lost_offsets(
    services: IngestServices,
    stream: Stream,
    tp: TopicPartition,
    first_offset: int,
    next_offset: int,
    decision: Decision,
    *,
    clock: Clock | None = None,
) -> AcceptedGaps:
    """Accept that offsets `[first_offset, next_offset)` in the middle of a chain are lost from the archive.

    The range must be exactly the range that is missing between two sound objects, or between the chain's known start
    and its first object. Raises `GapRefused` if it is not, `LockHeld` when a lane is running.
    """
    target = ArchiveTarget(services, stream, tp, clock or Clock())
    store, generation = services.store, stream.generation
    with services.coordinator.lock(tp):
        committed = services.coordinator.read_committed(tp)
        if committed is None:
            raise GapRefused(f"{tp}: ZooKeeper has no committed offset. First run `waybill offsets rebuild`")
        end = services.source.offsets([tp])[tp].end
        objects = list(store.list_chain(tp.topic, generation, tp.partition))
        gap = gaps.find_gap(store, generation, tp, first_offset)
        if gap is not None and gap.next_offset != next_offset:
            raise GapRefused(f"another gap was accepted there: {gap}, by {gap.accepted_by}: {gap.reason}")
        if gap is not None and any(stored.name.first_offset == first_offset for stored in objects):
            return AcceptedGaps((gap,), committed.committed_offset, end, is_new=False)
        stop = _MissingRange(target, committed, objects).check(first_offset, next_offset)
        gap = _new_gap(target, first_offset, next_offset, GapKind.BROKEN, decision, stop)
        gap = gaps.record_gap(store, gap)
        target.check_format(committed.extension)
        target.put_gap_marker(committed.topic_id, gap)
        services.coordinator.clear_stop(tp)
    return AcceptedGaps((gap,), committed.committed_offset, end)


@dataclass(frozen=True, slots=True)
class _MissingRange:
    """Checks that a range of offsets is exactly the range that a chain lacks."""

    target: ArchiveTarget
    committed: CommittedOffset
    objects: Sequence[StoredObject]

    def check(self, first_offset: int, next_offset: int) -> ChainBroken:
        """Return the named stop that describes the range. Raises `GapRefused` if another range is missing."""
        tp = self.target.tp
        if not 0 <= first_offset < next_offset:
            raise GapRefused(f"{tp}: {first_offset} to {next_offset - 1} is no range of offsets")
        before = [stored for stored in self.objects if stored.name.first_offset < first_offset]
        within = [stored for stored in self.objects if first_offset <= stored.name.first_offset < next_offset]
        after = [stored for stored in self.objects if stored.name.first_offset >= next_offset]
        for stored in within:
            self._refuse_for_object(stored)
        self._check_object_before(before[-1] if before else None, first_offset)
        self._check_object_after(after[0] if after else None, first_offset, next_offset)
        return ChainBroken(f"{tp}: no object holds {first_offset}–{next_offset - 1}", first_offset, next_offset)

    def _refuse_for_object(self, stored: StoredObject) -> None:
        first_offset = stored.name.first_offset
        try:
            summary = object_reader.inspect_object(self.target.services.store, stored.name, stored.key)
        except ChainBroken as error:
            raise GapRefused(
                f"{error}. Waybill never removes a backup object: move {stored.key} away by hand, keep it, and run "
                f"this again; `waybill verify` then prints which offsets are missing"
            ) from error
        raise GapRefused(
            f"{self.target.tp}: offsets {first_offset}–{summary.next_offset - 1} are not lost: {stored.key} holds "
            f"them, and is sound"
        )

    def _check_object_before(self, stored: StoredObject | None, first_offset: int) -> None:
        tp = self.target.tp
        if stored is None:
            start = self.committed.start_offset
            if start != first_offset:
                known = "is not known" if start is None else f"is {start}"
                raise GapRefused(f"{tp}: there is no object before {first_offset}, and the chain's start {known}")
            return
        try:
            end = object_reader.read_next_offset(self.target.services.store, stored)
        except ChainBroken as error:
            raise GapRefused(
                f"{error}. So its end is unknown: move {stored.key} away by hand, keep it, and accept the gap from "
                f"{stored.name.first_offset} on"
            ) from error
        if end != first_offset:
            raise GapRefused(
                f"{tp}: {stored.key} ends at {end - 1}: the gap starts at {end}, and not at {first_offset}"
            )

    def _check_object_after(self, stored: StoredObject | None, first_offset: int, next_offset: int) -> None:
        tp = self.target.tp
        if stored is None:
            raise GapRefused(
                f"{tp}: there is no object after offset {next_offset - 1}: that is the chain's end, and Kafka may "
                f"still have what is lost. `waybill offsets rebuild --topic {tp.topic} --yes` goes back to "
                f"{first_offset}, and the next run archives it again; what Kafka no longer has is then a RetentionGap"
            )
        if stored.name.first_offset != next_offset:
            raise GapRefused(
                f"{tp}: the next object starts at {stored.name.first_offset}: the gap ends at "
                f"{stored.name.first_offset - 1}, and not at {next_offset - 1}"
            )
