"""Committed offsets set by hand: from the chain, to where nothing tears, or taken over from another tool.

Each write names the version that was read, under the topic-partition's lock: a lane that is at work is not disturbed,
and nothing is written over what somebody else has committed since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from waybill.archive import chain
from waybill.archive.chain import ChainStart, committed_from_chain, find_start, record_start
from waybill.archive.gaps import Decision
from waybill.config import Stream
from waybill.coordination import Committed, Coordinator
from waybill.errors import ChainBroken, ConfigError, GapRefused, GenerationConflict, IngestStopped, LockHeld
from waybill.ingest.services import Services
from waybill.ingest.turn import Clock
from waybill.names import TopicPartition
from waybill.sources.kafka import LogRange
from waybill.store import Store

__all__ = ["Proposal", "Rebuilt", "Verdict", "propose", "rebuild", "set_offset", "take_over"]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What the chain of a topic-partition says, and what became of its committed offset."""

    tp: TopicPartition
    before: int | None
    """None: ZooKeeper had none."""
    after: int | None
    """Where the chain ends; None if that cannot be told."""
    written: bool
    trouble: str = ""

    @property
    def is_open(self) -> bool:
        """Whether ZooKeeper does not say what the chain says."""
        return not self.written and self.before != self.after


def rebuild(
    store: Store, coordinator: Coordinator, generation: int, tp: TopicPartition, *, move: bool, by: str
) -> Rebuilt:
    """Write the committed offset as the chain says, where there is none; with `move` also where it says otherwise."""
    before: int | None = None
    try:
        with coordinator.lock(tp):
            found = coordinator.read_committed(tp)
            before = None if found is None else found.committed_offset
            from_chain = committed_from_chain(store, generation, tp, Clock().now_ms())
            if from_chain is None:
                return Rebuilt(tp, before, before, written=False, trouble="there is no chain")
            after = from_chain.committed_offset
            if before == after or (found is not None and not move):
                return Rebuilt(tp, before, after, written=False)
            if found is not None:
                note = _note(f"rebuilt from the chain, from {before}", by)
                from_chain = replace(from_chain, start_offset=found.start_offset, set_by_hand=note)
            coordinator.write_committed(tp, from_chain, -1 if found is None else found.version)
            return Rebuilt(tp, before, after, written=True)
    except (ChainBroken, ConfigError, GenerationConflict, LockHeld) as error:
        return Rebuilt(tp, before, None, written=False, trouble=str(error))


def set_offset(services: Services, stream: Stream, tp: TopicPartition, offset: int, decision: Decision) -> Committed:
    """Set the committed offset where it tears no chain: to the chain's end, or anywhere if there is no chain yet.

    Raises `GapRefused` where it would, `LockHeld` when a lane is at work.
    """
    store, coordinator, generation = services.store, services.coordinator, stream.generation
    with coordinator.lock(tp):
        found = coordinator.read_committed(tp)
        from_chain = committed_from_chain(store, generation, tp, Clock().now_ms())
        if from_chain is None:
            wanted = _start(services, stream, tp, offset, decision)
        elif from_chain.committed_offset == offset:
            start = from_chain.start_offset if found is None else found.start_offset
            wanted = replace(from_chain, start_offset=start, set_by_hand=_note(decision.reason, decision.by))
        else:
            raise GapRefused(_torn(tp, offset, from_chain.committed_offset, generation))
        written = coordinator.write_committed(tp, wanted, -1 if found is None else found.version)
        coordinator.clear_stop(tp)
        return written


def _torn(tp: TopicPartition, offset: int, end: int, generation: int) -> str:
    if offset < end:
        what = f"offsets {offset}–{end - 1} would be archived twice"
        remedy = "Raise the stream's generation to archive them anew"
    else:
        what = f"offsets {end}–{offset - 1} would be in no object"
        remedy = f'Gaps are accepted by `waybill gaps accept {tp.topic} {tp.partition} --reason "…"`'
    torn = f"the chain of generation {generation} ends at {end}, and {offset} would tear it"
    return f"{tp}: {torn}: {what}. {remedy}"


def _start(services: Services, stream: Stream, tp: TopicPartition, offset: int, decision: Decision) -> Committed:
    """The committed offset of a chain that is still to begin, at `offset`."""
    held, topic = services.source.offsets([tp])[tp], services.source.topic(tp.topic)
    if not _holds(held, offset):
        raise GapRefused(f"{tp}: Kafka holds offsets {held.earliest} to {held.end}: a chain cannot begin at {offset}")
    wanted = ChainStart(offset, topic.topic_id, len(topic.partitions), stream.format.extension)
    begun = record_start(services.store, stream.generation, tp, wanted)
    if begun.offset != offset:
        raise GapRefused(
            f"{tp}: its chain in generation {stream.generation} begins at {begun.offset}, as was decided before, "
            f"though it has no object yet. Raise the stream's generation to begin anywhere else"
        )
    return Committed(
        offset,
        topic_id=begun.topic_id,
        committed_at_ms=Clock().now_ms(),
        start_offset=offset,
        set_by_hand=_note(decision.reason, decision.by),
        extension=begun.extension,
    )


def _holds(held: LogRange, offset: int) -> bool:
    return held.earliest <= offset <= held.end


def _note(what: str, by: str) -> str:
    return f"{what} (by {by}, {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ})"


# --- taking over ------------------------------------------------------------------------------------------------------


class Verdict(StrEnum):
    """What becomes of another tool's offset."""

    IMPORT = "import"
    HAS_CHAIN = "not imported: there is a chain already"
    HAS_OFFSET = "not imported: a chain was begun already"
    OUTSIDE = "not imported: Kafka does not hold it"
    NO_OFFSET = "not imported: the other has none"
    NOT_IN_KAFKA = "not imported: Kafka has no such topic-partition"


@dataclass(frozen=True, slots=True)
class Proposal:
    """One topic-partition of a stream, and what another tool says of it."""

    tp: TopicPartition
    offset: int | None
    """The next offset that the other tool would read."""
    held: LogRange | None
    verdict: Verdict


def propose(services: Services, stream: Stream, offsets: Mapping[TopicPartition, int]) -> list[Proposal]:
    """Look at every topic-partition that Kafka or the other tool has of the stream's topics, sorted."""
    in_kafka = services.source.topic_partitions(stream)
    held = services.source.offsets(in_kafka)
    committed = services.coordinator.list_committed()
    return [
        Proposal(tp, offsets.get(tp), held.get(tp), _verdict(services, stream, tp, offsets, held, committed))
        for tp in sorted({*in_kafka, *offsets})
    ]


def _verdict(
    services: Services,
    stream: Stream,
    tp: TopicPartition,
    offsets: Mapping[TopicPartition, int],
    held: Mapping[TopicPartition, LogRange],
    committed: Mapping[TopicPartition, Committed],
) -> Verdict:
    if tp not in held:
        return Verdict.NOT_IN_KAFKA
    if tp not in offsets:
        return Verdict.NO_OFFSET
    if chain.last(services.store, stream.generation, tp) is not None:
        return Verdict.HAS_CHAIN
    if tp in committed or find_start(services.store, stream.generation, tp) is not None:
        return Verdict.HAS_OFFSET
    return Verdict.IMPORT if _holds(held[tp], offsets[tp]) else Verdict.OUTSIDE


def take_over(
    services: Services, stream: Stream, proposals: Iterable[Proposal], decision: Decision
) -> Iterator[tuple[Proposal, str]]:
    """Begin the chains of those that are to be imported. With each, what went wrong, or ''."""
    for proposal in proposals:
        if proposal.verdict is not Verdict.IMPORT or proposal.offset is None:
            continue
        try:
            with services.coordinator.lock(proposal.tp):
                begun = _start(services, stream, proposal.tp, proposal.offset, decision)
                services.coordinator.write_committed(proposal.tp, begun, version=-1)
        except (GapRefused, IngestStopped, LockHeld) as error:
            yield proposal, str(error)
        else:
            yield proposal, ""
