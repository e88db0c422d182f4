"""Periods of the ledger: each chain, and the counts that are stored with its committed offset, divided at marks.

A period lasts from one mark to the next. An offset belongs to the period in which it was archived, whatever the
timestamp of its message is: so the periods of a chain follow each other, and each offset is in one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from waybill.config.names import TopicPartition, day_of
from waybill.services.coordination import CommittedOffset, MarkedOffset, OffsetCounts, StreamMark
from waybill.watch.ledger.archived import Chain
from waybill.watch.ledger.balance import Imbalance, Line, sorted_imbalances
from waybill.watch.ledger.rows import Cuts


@dataclass(frozen=True, slots=True)
class LedgerPeriod:
    """The time from one mark to the next."""

    number: int
    from_ms: int | None
    """Epoch ms of its mark; None: from the start of the chains."""
    until_ms: int | None
    """Epoch ms of the next mark; None: until now."""

    @property
    def is_last(self) -> bool:
        return self.until_ms is None

    def __str__(self) -> str:
        """Return the UTC day of its mark, to which the first watch of the day belongs."""
        if self.from_ms is not None:
            return str(day_of(self.from_ms))
        return "the beginning" if self.until_ms is None else f"before {day_of(self.until_ms)}"


@dataclass(frozen=True, slots=True)
class PeriodLedger:
    """The ledger of one stream's generation by period."""

    stream: str
    generation: int
    made_at_ms: int
    """When its figures were read. Epoch ms."""
    periods: Sequence[tuple[LedgerPeriod, Sequence[Line]]]
    """Oldest first, each with a line for each topic-partition. A line without offsets belongs to a chain that did not
    grow, or did not exist."""
    notes: Sequence[str] = ()
    """Parts that were left out, and why."""
    further: Sequence[Imbalance] = ()
    """Imbalances that belong to no line, such as rows without a chain."""

    def within(self, periods: Collection[LedgerPeriod]) -> PeriodLedger:
        """Return the ledger of some of the periods, without the imbalances of the other periods."""
        kept = [(period, lines) for period, lines in self.periods if period in periods]
        left_out = [line for period, lines in self.periods if period not in periods for line in lines]
        further = [each for each in self.further if not any(_is_of(each, line) for line in left_out)]
        return replace(self, periods=kept, further=further)

    @property
    def imbalances(self) -> list[Imbalance]:
        """The imbalances, by topic-partition."""
        return sorted_imbalances([line for _, lines in self.periods for line in lines], self.further)

    def document(self) -> dict[str, Any]:
        """Return the ledger for a JSON document: numbers are integers, times are epoch ms."""
        imbalances = self.imbalances
        return {
            "v": 1,
            "stream": self.stream,
            "generation": self.generation,
            "made_at": self.made_at_ms,
            "periods": [
                {
                    "period": str(period),
                    "from": period.from_ms,
                    "until": period.until_ms,
                    "topic_partitions": [
                        line.document() for line in lines if line.log.offsets or line.log.not_archived
                    ],
                }
                for period, lines in self.periods
            ],
            "imbalances": [found.document() for found in imbalances],
            "notes": list(self.notes),
            "balanced": not imbalances,
        }


class Periods:
    """The periods before, between and after marks, oldest first."""

    def __init__(self, marks: Sequence[StreamMark]) -> None:
        """`marks`: oldest first."""
        self._marks = marks
        self._offsets = _filled(marks)
        self.cuts: Cuts = {
            tp: np.array([each.offset for each in offsets], np.int64) for tp, offsets in self._offsets.items()
        }

    def __iter__(self) -> Iterator[LedgerPeriod]:
        times = [None, *(mark.at_ms for mark in self._marks), None]
        for number, (from_ms, until_ms) in enumerate(pairwise(times)):
            yield LedgerPeriod(number, from_ms, until_ms)

    def divide(self, chain: Chain) -> list[Chain]:
        """Return the part of a chain that was archived in each period. A part may be empty.

        The counts of a part are the counts at its end minus the counts at its start. They are None if they cannot be
        compared: ingest did not count, or has counted from a later offset since ZooKeeper lost its data.
        """
        start, end = chain.start_offset, chain.committed_offset
        known = self._offsets.get(chain.tp) or [MarkedOffset(start)] * len(self._marks)
        marked = [_within(each, start, end) for each in known]
        last = MarkedOffset(end, None if chain.committed is None else chain.committed.counts)
        bounds = [MarkedOffset(start), *marked, last]
        parts = []
        for first, following in pairwise(bounds):
            counts = _difference(chain, first, following)
            committed = CommittedOffset(following.offset, start_offset=first.offset, counts=counts)
            parts.append(Chain(chain.tp, first.offset, following.offset, committed, ()))
        parts[-1] = replace(
            parts[-1],
            end_offset=chain.end_offset,
            committed=None
            if chain.committed is None
            else replace(chain.committed, start_offset=bounds[-2].offset, counts=counts),
            uncommitted=chain.uncommitted,
        )
        return _with_gaps(chain, parts)


def _is_of(imbalance: Imbalance, line: Line) -> bool:
    """Return whether an imbalance lies within the offsets of a line.

    An imbalance without offsets concerns the whole stream.
    """
    first, following = imbalance.first_offset, imbalance.next_offset
    return imbalance.tp == line.tp and first < following and line.log.start_offset <= first < line.log.end_offset


def _filled(marks: Sequence[StreamMark]) -> Mapping[TopicPartition, list[MarkedOffset]]:
    """Return an offset for each mark and topic-partition. An offset that a mark lacks is that of the previous mark."""
    filled: dict[TopicPartition, list[MarkedOffset]] = {}
    for tp in sorted({tp for mark in marks for tp in mark.offsets}):
        offsets = filled[tp] = []
        for mark in marks:
            before = offsets[-1] if offsets else MarkedOffset(0)
            found = mark.offsets.get(tp, before)
            # A person has set the committed offset back: the period between the two marks is empty.
            offsets.append(found if found.offset >= before.offset else before)
    return filled


def _within(marked: MarkedOffset, start: int, end: int) -> MarkedOffset:
    """Limit the offset to the range of the chain. If it was outside, the counts do not belong to the chain."""
    return marked if start <= marked.offset <= end else MarkedOffset(min(max(marked.offset, start), end))


def _difference(chain: Chain, first: MarkedOffset, following: MarkedOffset) -> OffsetCounts | None:
    end = following.counts
    if end is None:
        return None
    begin = OffsetCounts(chain.start_offset) if first.offset == chain.start_offset else first.counts
    if begin is None or begin.from_offset != end.from_offset:
        return None
    return OffsetCounts(
        first.offset,
        end.messages - begin.messages,
        end.control - begin.control,
        end.aborted - begin.aborted,
        end.gaps - begin.gaps,
        end.unknown - begin.unknown,
    )


def _with_gaps(chain: Chain, parts: Sequence[Chain]) -> list[Chain]:
    """Return the parts, with each accepted gap in the part in which it begins."""
    starts = [part.start_offset for part in parts]
    numbers = [max(int(np.searchsorted(starts, gap.first_offset, side="right")) - 1, 0) for gap in chain.gaps]
    return [
        replace(part, gaps=tuple(gap for gap, number in zip(chain.gaps, numbers, strict=True) if number == at))
        for at, part in enumerate(parts)
    ]
