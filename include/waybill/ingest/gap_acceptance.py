"""Accepting gaps: a person's decision becomes a record, and where it leaves a hole, the object that stands for it.

The record comes first, and is created if absent. Whoever comes upon it next, this call or a lane, puts the hole's
object into the chain and moves the committed offset behind it, by the commit protocol's own steps. So a crash in
between leaves a decision that is carried out by the next run, and never a hole without a decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from waybill.archive import chain, gaps
from waybill.archive.gaps import Decision, Gap, GapKind
from waybill.config import Stream
from waybill.coordination import Committed
from waybill.errors import ChainBroken, GapRefused, IngestStopped, LogTruncated, RetentionGap, TopicRecreated
from waybill.ingest.protocol import PartitionRun
from waybill.ingest.services import Services
from waybill.ingest.turn import Clock
from waybill.names import TopicPartition
from waybill.store import StoredObject

__all__ = ["Accepted", "accept", "accept_lost"]

_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Accepted:
    """What was accepted, and where ingest goes on."""

    gaps: tuple[Gap, ...]
    committed_offset: int
    end_offset: int
    """Where the log ends now."""
    is_new: bool = True
    """False: the same was accepted before, and nothing was left to do."""


def accept(
    services: Services, stream: Stream, tp: TopicPartition, decision: Decision, *, clock: Clock | None = None
) -> Accepted:
    """Accept what Kafka's log makes ingest of a topic-partition stop for now, whatever the journal says.

    Raises `GapRefused` when there is nothing to accept, or it cannot be accepted; `LockHeld` when a lane is at work;
    `ChainBroken` when the chain itself is not whole.
    """
    clock = clock or Clock()
    if services.coordinator.read_committed(tp) is None and chain.last(services.store, stream.generation, tp) is None:
        raise GapRefused(f"{tp}: nothing of it was archived yet in generation {stream.generation}: nothing to accept")
    new: list[Gap] = []
    for _ in range(_ROUNDS):
        try:
            committed, held = PartitionRun(services, stream, tp, clock=clock).settle()
        except (RetentionGap, LogTruncated) as stop:
            new.append(gaps.record(services.store, _gap(stream, tp, stop, decision, clock)))
            continue
        except TopicRecreated as stop:
            raise GapRefused(f"{stop} There is no gap to accept.") from stop
        if new:
            return Accepted(tuple(new), committed.committed_offset, held.end)
        return _accepted_before(services, stream, tp, committed, held.end)
    raise GapRefused(f"{tp}: Kafka deletes faster than this can be written down: try again")


def _gap(
    stream: Stream, tp: TopicPartition, stop: RetentionGap | LogTruncated, decision: Decision, clock: Clock
) -> Gap:
    if isinstance(stop, RetentionGap):
        kind, first, following = GapKind.RETENTION, stop.committed_offset, stop.earliest_offset
    else:
        kind, first, following = GapKind.TRUNCATED, stop.end_offset, stop.committed_offset
    return _decided(stream, tp, first, following, kind, decision, clock, stop)


def _decided(
    stream: Stream,
    tp: TopicPartition,
    first_offset: int,
    next_offset: int,
    kind: GapKind,
    decision: Decision,
    clock: Clock,
    stop: IngestStopped,
) -> Gap:
    return Gap(
        tp=tp,
        generation=stream.generation,
        first_offset=first_offset,
        next_offset=next_offset,
        kind=kind,
        reason=decision.reason,
        accepted_by=decision.by,
        accepted_at_ms=clock.now_ms(),
        figures=stop.figures,
    )


def _accepted_before(
    services: Services, stream: Stream, tp: TopicPartition, committed: Committed, end_offset: int
) -> Accepted:
    here = [
        gap
        for gap in gaps.of_chain(services.store, stream.generation, tp)
        if gap.next_offset == committed.committed_offset
    ]
    if here:
        return Accepted(tuple(here), committed.committed_offset, end_offset, is_new=False)
    raise GapRefused(
        f"{tp}: there is nothing to accept: Kafka's log goes on where the archive ends, at "
        f"{committed.committed_offset}. If an object of the chain is lost, `waybill verify` prints its offsets: give "
        f"them with --from and --to"
    )


def accept_lost(
    services: Services,
    stream: Stream,
    tp: TopicPartition,
    first_offset: int,
    next_offset: int,
    decision: Decision,
    *,
    clock: Clock | None = None,
) -> Accepted:
    """Accept that offsets `[first_offset, next_offset)` in the middle of a chain are lost from the archive.

    The range must be exactly what is missing between two sound objects, or between the chain's known start and its
    first object. Raises `GapRefused` if it is not, `LockHeld` when a lane is at work.
    """
    clock, store, generation = clock or Clock(), services.store, stream.generation
    run = PartitionRun(services, stream, tp, clock=clock)
    with services.coordinator.lock(tp):
        committed = services.coordinator.read_committed(tp)
        if committed is None:
            raise GapRefused(f"{tp}: ZooKeeper has no committed offset: first `waybill offsets rebuild`")
        end = services.source.offsets([tp])[tp].end
        objects = list(store.list_chain(tp.topic, generation, tp.partition))
        known = gaps.find(store, generation, tp, first_offset)
        if known is not None and known.next_offset != next_offset:
            raise GapRefused(f"another gap was accepted there: {known}, by {known.accepted_by}: {known.reason}")
        if known is not None and any(stored.name.first_offset == first_offset for stored in objects):
            return Accepted((known,), committed.committed_offset, end, is_new=False)
        stop = _Missing(services, stream, tp, committed, objects).check(first_offset, next_offset)
        gap = _decided(stream, tp, first_offset, next_offset, GapKind.BROKEN, decision, clock, stop)
        gap = gaps.record(store, gap)
        run.fill_hole(gap, committed)
        services.coordinator.clear_stop(tp)
    return Accepted((gap,), committed.committed_offset, end)


@dataclass(frozen=True, slots=True)
class _Missing:
    """Finds out whether a range is exactly what a chain lacks."""

    services: Services
    stream: Stream
    tp: TopicPartition
    committed: Committed
    objects: Sequence[StoredObject]

    def check(self, first_offset: int, next_offset: int) -> ChainBroken:
        if not 0 <= first_offset < next_offset:
            raise GapRefused(f"{self.tp}: {first_offset} to {next_offset - 1} is no range of offsets")
        before = [stored for stored in self.objects if stored.name.first_offset < first_offset]
        within = [stored for stored in self.objects if first_offset <= stored.name.first_offset < next_offset]
        after = [stored for stored in self.objects if stored.name.first_offset >= next_offset]
        for stored in within:
            self._refuse(stored)
        self._check_before(before[-1] if before else None, first_offset)
        self._check_after(after[0] if after else None, first_offset, next_offset)
        return ChainBroken(f"{self.tp}: no object holds {first_offset}–{next_offset - 1}", first_offset, next_offset)

    def _refuse(self, stored: StoredObject) -> None:
        first = stored.name.first_offset
        try:
            contents = chain.inspect(self.services.store, stored.name, stored.key)
        except ChainBroken as error:
            raise GapRefused(
                f"{error}. Waybill never removes a backup object: move {stored.key} away by hand, keep it, and run "
                f"this again; `waybill verify` then prints which offsets are missing"
            ) from error
        raise GapRefused(
            f"{self.tp}: offsets {first}–{contents.next_offset - 1} are not lost: {stored.key} holds them, and is sound"
        )

    def _check_before(self, stored: StoredObject | None, first_offset: int) -> None:
        if stored is None:
            start = self.committed.start_offset
            if start != first_offset:
                known = "is not known" if start is None else f"is {start}"
                raise GapRefused(f"{self.tp}: no object lies before {first_offset}, and the chain's start {known}")
            return
        try:
            end = chain.next_offset(self.services.store, stored)
        except ChainBroken as error:
            raise GapRefused(
                f"{error}. Nobody can tell where it ends: move {stored.key} away by hand, keep it, and accept the gap "
                f"from {stored.name.first_offset} on"
            ) from error
        if end != first_offset:
            raise GapRefused(
                f"{self.tp}: {stored.key} ends at {end - 1}: the gap starts at {end}, and not at {first_offset}"
            )

    def _check_after(self, stored: StoredObject | None, first_offset: int, next_offset: int) -> None:
        if stored is None:
            raise GapRefused(
                f"{self.tp}: no object follows on offset {next_offset - 1}: that is the chain's end, and Kafka may "
                f"still have what is lost. `waybill offsets rebuild --topic {self.tp.topic} --yes` goes back to "
                f"{first_offset}, and the next run archives it again; what Kafka no longer has is then a RetentionGap"
            )
        if stored.name.first_offset != next_offset:
            raise GapRefused(
                f"{self.tp}: the next object starts at {stored.name.first_offset}: the gap ends at "
                f"{stored.name.first_offset - 1}, and not at {next_offset - 1}"
            )
