"""Committed offsets set by hand: rebuilt from the chain, set to an offset that keeps the chain contiguous, or imported.

Each write is made under the topic-partition's lock and names the version that was read. So a running lane is not
disturbed, and a commit of another task is never overwritten.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from waybill.archive.chain import chain
from waybill.archive.chain.chain import ChainStart, committed_from_chain, find_chain_start, record_chain_start
from waybill.archive.ingest.target import IngestServices
from waybill.archive.ingest.time_slice import Clock
from waybill.base.decision import Decision
from waybill.base.errors import (
    ChainBroken,
    ConfigError,
    DocumentDamaged,
    GapRefused,
    GenerationConflict,
    IngestStopped,
    LockHeld,
    expected,
)
from waybill.config.models import Stream
from waybill.config.names import TopicPartition
from waybill.services.coordination import CommittedOffset, Coordinator
from waybill.services.kafka.kafka import LogRange
from waybill.services.store import Store

logger = logging.getLogger(__name__)


# --- rebuild ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RebuildResult:
    """A topic-partition's committed offset compared with its chain, and whether it was written."""

    tp: TopicPartition
    before: int | None
    """None if ZooKeeper had no committed offset."""
    after: int | None
    """Where the chain ends; None if its end cannot be read."""
    written: bool
    trouble: str = ""
    """Why there is no result; '' if there is one."""

    @property
    def differs(self) -> bool:
        """Whether ZooKeeper still has another offset than the chain."""
        return not self.written and self.before != self.after


def rebuild_committed_offset(
    store: Store, coordinator: Coordinator, generation: int, tp: TopicPartition, *, move: bool, by: str
) -> RebuildResult:
    """Write the committed offset that follows from the chain, if ZooKeeper has none; with `move` also if it differs."""
    before: int | None = None
    try:
        with coordinator.lock(tp):
            committed = coordinator.read_committed(tp)
            before = None if committed is None else committed.committed_offset
            from_chain = committed_from_chain(store, generation, tp, Clock().now_ms())
            if from_chain is None:
                return RebuildResult(tp, before, before, written=False, trouble="there is no chain")
            after = from_chain.committed_offset
            if before == after or (committed is not None and not move):
                return RebuildResult(tp, before, after, written=False)
            if committed is not None:
                note = _note(f"rebuilt from the chain, from {before}", by)
                from_chain = replace(from_chain, start_offset=committed.start_offset, set_by_hand=note)
            coordinator.write_committed(tp, from_chain, -1 if committed is None else committed.version)
            return RebuildResult(tp, before, after, written=True)
    except (ChainBroken, ConfigError, DocumentDamaged, GenerationConflict, LockHeld) as error:
        return RebuildResult(tp, before, None, written=False, trouble=str(error))


# --- set --------------------------------------------------------------------------------------------------------------


def set_committed_offset(
    services: IngestServices, stream: Stream, tp: TopicPartition, offset: int, decision: Decision
) -> CommittedOffset:
    """Set the committed offset to the chain's end, or to any offset of the log if there is no chain yet.

    Raises `GapRefused` for an offset that would leave a gap or an overlap, `LockHeld` when a lane is running.
    """
    store, coordinator, generation = services.store, services.coordinator, stream.generation
    with coordinator.lock(tp):
        committed = coordinator.read_committed(tp)
        from_chain = committed_from_chain(store, generation, tp, Clock().now_ms())
        if from_chain is None:
            wanted = _start_chain(services, stream, tp, offset, decision)
        elif from_chain.committed_offset == offset:
            start = from_chain.start_offset if committed is None else committed.start_offset
            wanted = replace(from_chain, start_offset=start, set_by_hand=_note(decision.reason, decision.by))
        else:
            raise GapRefused(_torn_chain(tp, offset, from_chain.committed_offset, generation))
        written = coordinator.write_committed(tp, wanted, -1 if committed is None else committed.version)
        coordinator.clear_stop(tp)
        return written


def _torn_chain(tp: TopicPartition, offset: int, end: int, generation: int) -> str:
    if offset < end:
        consequence = f"offsets {offset}–{end - 1} would be archived twice"
        remedy = "To archive them again, raise the stream's generation"
    else:
        consequence = f"offsets {end}–{offset - 1} would be in no object"
        remedy = f'Gaps are accepted by `waybill gaps accept {tp.topic} {tp.partition} --reason "…"`'
    torn = f"the chain of generation {generation} ends at {end}, and {offset} would tear it"
    return f"{tp}: {torn}: {consequence}. {remedy}"


def _start_chain(
    services: IngestServices, stream: Stream, tp: TopicPartition, offset: int, decision: Decision
) -> CommittedOffset:
    """Record that a chain without objects starts at `offset`, and return its committed offset.

    Raises `GapRefused` if the log does not hold the offset, or if another start is recorded.
    """
    log_range, topic = services.source.offsets([tp])[tp], services.source.topic(tp.topic)
    if not _holds(log_range, offset):
        raise GapRefused(
            f"{tp}: Kafka holds offsets {log_range.earliest} to {log_range.end}: a chain cannot start at {offset}"
        )
    wanted = ChainStart(offset, topic.topic_id, len(topic.partitions), stream.format.extension)
    start = record_chain_start(services.store, stream.generation, tp, wanted)
    if start.offset != offset:
        raise GapRefused(
            f"{tp}: the recorded start of its chain in generation {stream.generation} is {start.offset}, though it has "
            f"no object yet. Raise the stream's generation to start at another offset"
        )
    return CommittedOffset(
        offset,
        topic_id=start.topic_id,
        committed_at_ms=Clock().now_ms(),
        start_offset=offset,
        set_by_hand=_note(decision.reason, decision.by),
        extension=start.extension,
    )


def _holds(log_range: LogRange, offset: int) -> bool:
    return log_range.earliest <= offset <= log_range.end


def _note(reason: str, by: str) -> str:
    return f"{reason} (by {by}, {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ})"


# --- import -----------------------------------------------------------------------------------------------------------


class ImportCheck(StrEnum):
    """Whether another tool's offset can be imported, and why not."""

    IMPORT = "import"
    HAS_CHAIN = "not imported: a chain exists already"
    HAS_OFFSET = "not imported: a chain was started already"
    OUTSIDE = "not imported: Kafka does not hold it"
    NO_OFFSET = "not imported: the other tool has none"
    NOT_IN_KAFKA = "not imported: Kafka has no such topic-partition"


@dataclass(frozen=True, slots=True)
class ImportProposal:
    """One topic-partition of a stream, and another tool's offset of it."""

    tp: TopicPartition
    offset: int | None
    """The next offset that the other tool would read; None if it has none."""
    log_range: LogRange | None
    """None if Kafka has no such topic-partition."""
    check: ImportCheck


def propose_imports(
    services: IngestServices, stream: Stream, offsets: Mapping[TopicPartition, int]
) -> list[ImportProposal]:
    """Return a proposal for every topic-partition of the stream that Kafka or the other tool has, sorted."""
    in_kafka = services.source.topic_partitions(stream)
    log_ranges = services.source.offsets(in_kafka)
    committed = services.coordinator.list_committed()
    return [
        ImportProposal(
            tp, offsets.get(tp), log_ranges.get(tp), _check(services, stream, tp, offsets, log_ranges, committed)
        )
        for tp in sorted({*in_kafka, *offsets})
    ]


def _check(
    services: IngestServices,
    stream: Stream,
    tp: TopicPartition,
    offsets: Mapping[TopicPartition, int],
    log_ranges: Mapping[TopicPartition, LogRange],
    committed: Mapping[TopicPartition, CommittedOffset],
) -> ImportCheck:
    if tp not in log_ranges:
        return ImportCheck.NOT_IN_KAFKA
    if tp not in offsets:
        return ImportCheck.NO_OFFSET
    if chain.find_last_object(services.store, stream.generation, tp) is not None:
        return ImportCheck.HAS_CHAIN
    if tp in committed or find_chain_start(services.store, stream.generation, tp) is not None:
        return ImportCheck.HAS_OFFSET
    return ImportCheck.IMPORT if _holds(log_ranges[tp], offsets[tp]) else ImportCheck.OUTSIDE


def import_offsets(
    services: IngestServices, stream: Stream, proposals: Iterable[ImportProposal], decision: Decision
) -> Iterator[tuple[ImportProposal, str]]:
    """Start the chains of the proposals that can be imported. Yield each with its error message, or ''."""
    for proposal in proposals:
        if proposal.check is not ImportCheck.IMPORT or proposal.offset is None:
            continue
        try:
            with services.coordinator.lock(proposal.tp):
                committed = _start_chain(services, stream, proposal.tp, proposal.offset, decision)
                services.coordinator.write_committed(proposal.tp, committed, version=-1)
        except (GapRefused, IngestStopped, LockHeld) as error:
            yield proposal, str(error)
        except Exception as error:
            failure = expected(f"the import of {proposal.tp}", error)
            if failure is error:
                raise
            logger.exception("%s", failure)
            yield proposal, str(failure)
        else:
            yield proposal, ""
