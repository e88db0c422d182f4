"""The archive's side of the ledger: how many offsets of each chain hold a message, and why the others hold none.

Ingest counts while it archives, and stores the counts with the committed offset, in one write
(`waybill.services.coordination.OffsetCounts`). So the counts of a whole chain need no additional request. There are no
counts for offsets that were archived before ZooKeeper lost its data, or by earlier versions of Waybill. Then
`read_objects` counts the messages in the backup objects: all their bytes are fetched, and records are decoded only
where compaction has removed some.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from waybill.archive.chain.chain import ChainObject, find_chain_start, read_chain_end, walk_chain
from waybill.archive.chain.gaps import Gap, GapKind
from waybill.archive.chain.object_reader import read_offsets
from waybill.config.names import TopicPartition
from waybill.services.coordination import CommittedOffset, OffsetCounts
from waybill.services.store import Store
from waybill.watch.ledger.balance import Imbalance, LogTerms

_READERS = 4
"""Objects that are read at the same time. Each reader needs memory for a chunk and one record batch."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The facts about one chain that are known without reading its objects."""

    tp: TopicPartition
    start_offset: int
    end_offset: int
    """Where the last object ends. That is the committed offset, or after it if a lane has not committed its object."""
    committed: CommittedOffset | None
    gaps: Sequence[Gap]
    uncommitted: Sequence[ChainObject] = ()
    """The objects after the committed offset, which the next lane adopts. Partition runs read them already."""

    @property
    def committed_offset(self) -> int:
        """The committed offset; without one in ZooKeeper, where the last object ends."""
        return self.end_offset if self.committed is None else self.committed.committed_offset


def find_chain(
    store: Store, generation: int, tp: TopicPartition, committed: CommittedOffset | None, gaps: Iterable[Gap]
) -> Chain | None:
    """Return the chain of a topic-partition; None if it has neither a committed offset nor an object.

    `committed` must have been read before. Makes one call to S3, and reads an object after the committed offset for its
    end. Raises `ChainBroken` when that cannot be read, or when the chain does not continue at the committed offset.
    """
    uncommitted: tuple[ChainObject, ...] = ()
    if committed is None:
        end = read_chain_end(store, generation, tp)
        if end is None:
            return None
    else:
        end = committed.committed_offset
        uncommitted = tuple(walk_chain(store, generation, tp, from_offset=end, committed_offset=end))
        end = uncommitted[-1].next_offset if uncommitted else end
    start = None if committed is None else committed.start_offset
    if start is None:
        recorded = find_chain_start(store, generation, tp)
        start = None if recorded is None else recorded.offset
    if start is None:
        first = next(store.list_chain(tp.topic, generation, tp.partition), None)
        start = end if first is None else min(first.name.first_offset, end)
    return Chain(tp, start, end, committed, tuple(gap for gap in gaps if gap.tp == tp), uncommitted)


def lost_ranges(chain: Chain) -> list[tuple[int, int]]:
    """Return the offsets `[first, next)` of accepted gaps whose messages had been archived: lost backup objects."""
    return [(gap.first_offset, gap.next_offset) for gap in chain.gaps if gap.kind is GapKind.BROKEN]


def log_terms(
    chain: Chain, log_end_offset: int | None, in_objects: int | None, in_uncommitted: int = 0
) -> tuple[LogTerms, str | None, list[Imbalance]]:
    """Return the terms of a chain, why its messages are unknown (None: known), and contradictions in the counts.

    `in_objects`: the messages in its objects, if they were read. `in_uncommitted`: those after the committed offset.
    """
    start, end, committed = chain.start_offset, chain.end_offset, chain.committed_offset
    gaps, counted_gaps = _gap_offsets(chain, end), _gap_offsets(chain, committed)
    counts = None if chain.committed is None else chain.committed.counts
    why = _why_unusable(chain, counted_gaps)
    found: list[Imbalance] = []
    if counts is not None and counts.gaps > counted_gaps:
        what = f"gap markers hold {counts.gaps:,} offsets, and the records of accepted gaps only {counted_gaps:,}"
        found.append(Imbalance(chain.tp, start, end, what))
    if why is None:
        # A chain without a committed object has no counts. Later objects are counted like those that a lane will adopt.
        counts = counts or OffsetCounts(start)
        messages = counts.messages + in_uncommitted
        unknown = counts.unknown + (end - committed) - in_uncommitted - (gaps - counted_gaps)
        if in_objects is not None and in_objects != messages:
            what = f"ingest has counted {messages:,} messages, and the objects hold {in_objects:,}"
            found.append(Imbalance(chain.tp, start, end, what))
        rest = end - start - messages - counts.control - counts.aborted - unknown - gaps
        terms = LogTerms(
            start, end, log_end_offset, gaps, messages, counts.control, counts.aborted, unknown, unexplained=rest
        )
        return terms, None, found
    if in_objects is None:
        return LogTerms(start, end, log_end_offset, gaps, None), why, found
    unknown = end - start - in_objects - gaps
    terms = LogTerms(start, end, log_end_offset, gaps, in_objects, unknown=max(unknown, 0), unexplained=min(unknown, 0))
    return terms, None, found


def _gap_offsets(chain: Chain, end_offset: int) -> int:
    """Return the offsets of the chain in gap markers below `end_offset`."""
    return sum(gap.messages_at_most for gap in chain.gaps if gap.has_marker and gap.first_offset < end_offset)


def _why_unusable(chain: Chain, counted_gaps: int) -> str | None:
    """Return why the stored counts do not cover the whole chain; None if they do."""
    if chain.start_offset == chain.committed_offset and chain.committed is not None:
        return None
    counts = None if chain.committed is None else chain.committed.counts
    counted_from = chain.committed_offset if counts is None else counts.from_offset
    if counted_from != chain.start_offset:
        return (
            f"offsets {chain.start_offset}–{counted_from - 1} were archived by an earlier Waybill, or before ZooKeeper "
            f"lost its data"
        )
    if counts is not None and counts.gaps < counted_gaps:
        return "a backup object was lost after its messages had been counted"
    return None


def count_messages(
    store: Store, generation: int, chain: Chain, first_offset: int, split_offset: int
) -> tuple[int, int]:
    """Return how many messages the objects have in `[first_offset, split_offset)` and from there to the chain's end.

    Reads the objects from the one that holds `first_offset`. Nothing is read if there are no offsets.

    Raises `ChainBroken`, or `CorruptBatch` for a damaged object.
    """
    if first_offset >= chain.end_offset:
        return 0, 0
    committed = None if chain.committed is None else chain.committed_offset
    listed = walk_chain(store, generation, chain.tp, from_offset=first_offset, committed_offset=committed)
    objects = [found for found in listed if found.name.first_offset < chain.end_offset]

    def count(found: ChainObject) -> tuple[int, int]:
        before = after = 0
        first = max(first_offset, found.name.first_offset)
        next_offset = min(found.next_offset, chain.end_offset)
        for offsets in read_offsets(store, found.key, first_offset=first, next_offset=next_offset):
            at = int(np.searchsorted(offsets, split_offset))
            before, after = before + at, after + len(offsets) - at
        return before, after

    with ThreadPoolExecutor(_READERS, thread_name_prefix="waybill-ledger") as pool:
        counts = list(pool.map(count, objects))
    return sum(before for before, _ in counts), sum(after for _, after in counts)
