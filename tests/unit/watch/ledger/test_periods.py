"""Chains, counts and rows divided at marks, compared with a log whose every offset is known."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from waybill.archive.chain.gaps import Gap, GapKind
from waybill.config.names import TopicPartition
from waybill.services.coordination import CommittedOffset, DayMark, MarkedOffset, OffsetCounts, StreamMark
from waybill.watch.ledger import Imbalance, LedgerPeriod, Line, LogTerms, PeriodLedger, Periods
from waybill.watch.ledger.archived import Chain, log_terms
from waybill.watch.ledger.rows import RowCounts

TP = TopicPartition("flights", 3)
OTHER = TopicPartition("flights", 4)
KINDS = ("messages", "control", "aborted", "unknown", "compacted")


@dataclass(frozen=True)
class Log:
    """A log from `start` on: what each offset holds."""

    start: int
    kinds: tuple[str, ...]

    @property
    def end(self) -> int:
        return self.start + len(self.kinds)

    def counts(self, end: int, start: int | None = None) -> OffsetCounts:
        start = self.start if start is None else start
        found = Counter(self.kinds[start - self.start : end - self.start])
        del found["compacted"]
        return OffsetCounts(start, **found)

    def chain(self, counts: OffsetCounts | None) -> Chain:
        committed = CommittedOffset(self.end, start_offset=self.start, counts=counts)
        return Chain(TP, self.start, self.end, committed, ())


logs = st.builds(Log, st.integers(0, 50), st.lists(st.sampled_from(KINDS), max_size=40).map(tuple))


def mark(at_ms: int, offset: int, counts: OffsetCounts | None) -> StreamMark:
    return StreamMark(at_ms, {TP: MarkedOffset(offset, counts)})


@given(logs, st.lists(st.integers(0, 40), max_size=5))
def test_each_offset_and_each_count_is_in_the_period_in_which_it_was_archived(log: Log, archived: list[int]) -> None:
    offsets = [log.start + min(each, len(log.kinds)) for each in sorted(archived)]
    marks = [mark(at, offset, log.counts(offset)) for at, offset in enumerate(offsets)]
    parts = Periods(marks).divide(log.chain(log.counts(log.end)))
    bounds = [log.start, *offsets, log.end]
    assert [(part.start_offset, part.end_offset) for part in parts] == list(pairwise(bounds))
    for part in parts:
        terms, why, contradictions = log_terms(part, None, None)
        assert (why, contradictions) == (None, [])
        expected = Counter(log.kinds[part.start_offset - log.start : part.end_offset - log.start])
        found = {"messages": terms.messages, "control": terms.control, "aborted": terms.aborted}
        found |= {"unknown": terms.unknown, "compacted": terms.unexplained}
        assert found == {kind: expected[kind] for kind in KINDS}


@given(logs, st.integers(0, 40), st.integers(0, 40))
def test_messages_are_known_of_the_days_after_the_counts_began_again(log: Log, wiped: int, later: int) -> None:
    """ZooKeeper lost its data: ingest counts from there on, and a mark before it has the earlier counts."""
    begin = log.start + min(wiped, len(log.kinds))
    middle = max(begin, log.start + min(later, len(log.kinds)))
    marks = [mark(1, begin, log.counts(begin)), mark(2, middle, log.counts(middle, begin))]
    first, second, third = Periods(marks).divide(log.chain(log.counts(log.end, begin)))
    assert log_terms(first, None, None)[0].messages == log.counts(begin).messages
    assert log_terms(third, None, None)[0].messages == log.counts(log.end, middle).messages
    if begin not in (log.start, middle):
        why = log_terms(second, None, None)[1]
        assert why is not None
        assert "before ZooKeeper lost its data" in why


def test_a_topic_partition_that_a_mark_lacks_has_not_grown_and_a_lower_mark_is_left_out() -> None:
    log = Log(0, ("messages",) * 30)
    marks = [
        StreamMark(1, {}),
        mark(2, 10, log.counts(10)),
        StreamMark(3, {OTHER: MarkedOffset(5)}),
        mark(4, 8, log.counts(8)),  # a person has set the committed offset back
    ]
    parts = Periods(marks).divide(log.chain(log.counts(30)))
    assert [(part.start_offset, part.end_offset) for part in parts] == [(0, 0), (0, 10), (10, 10), (10, 10), (10, 30)]
    assert [log_terms(part, None, None)[0].messages for part in parts] == [0, 10, 0, 0, 20]


def test_a_gap_belongs_to_the_period_in_which_it_begins() -> None:
    gaps = tuple(Gap(TP, 1, first, first + 5, GapKind.RETENTION, "me", "why", 0) for first in (0, 10, 25))
    chain = Chain(TP, 0, 30, CommittedOffset(30, start_offset=0), gaps)
    marks = [mark(1, 10, None), mark(2, 10, None), mark(3, 20, None)]
    parts = Periods(marks).divide(chain)
    assert [[gap.first_offset for gap in part.gaps] for part in parts] == [[0], [], [10], [25]]


@given(st.lists(st.tuples(st.sampled_from([TP, OTHER]), st.integers(0, 30)), max_size=60), st.lists(st.integers(0, 30)))
def test_rows_are_counted_by_period(places: list[tuple[TopicPartition, int]], bounds: list[int]) -> None:
    cuts = {TP: np.array(sorted(bounds), np.int64)}
    counts = RowCounts(1, cuts)
    columns = {
        "topic": [tp.topic for tp, _ in places],
        "partition": pa.array([tp.partition for tp, _ in places], pa.int32()),
        "offset": pa.array([offset for _, offset in places], pa.int64()),
        "generation": pa.array([1] * len(places), pa.int32()),
    }
    counts.add_batches([pa.RecordBatch.from_pydict(columns)] if places else [])
    assert counts.rows == Counter(tp for tp, _ in places)
    for number in range(len(bounds) + 1):
        expected = Counter(
            tp for tp, offset in places if number == (sum(bound <= offset for bound in bounds) if tp == TP else 0)
        )
        assert +counts.of_period(number).rows == expected


@given(st.dictionaries(st.sampled_from([TP, OTHER]), st.integers(0, 1 << 60)), st.booleans())
def test_a_day_mark_is_read_as_it_was_stored(offsets: dict[TopicPartition, int], counted: bool) -> None:
    counts = OffsetCounts(3, 4, 5, 6, 7, 8) if counted else None
    committed = {tp: CommittedOffset(offset, counts=counts) for tp, offset in offsets.items()}
    stored = DayMark.of(1_700_000_000_000, {("flights", 2): committed, ("empty", 1): {}})
    read = DayMark.parse(stored.content(), "the mark")
    assert read == stored
    assert read.of_stream("flights", 2).offsets == {tp: MarkedOffset(offset, counts) for tp, offset in offsets.items()}
    assert read.of_stream("flights", 1).offsets == {}


def test_a_part_of_the_periods_does_not_show_what_is_wrong_in_others() -> None:
    first, second = LedgerPeriod(0, None, 1), LedgerPeriod(1, 1, None)
    lines = [Line(TP, LogTerms(0, 10, None, 0, 10)), Line(TP, LogTerms(10, 20, None, 0, 10))]
    early, late, whole = (Imbalance(TP, *offsets, "wrong") for offsets in ((3, 5), (12, 13), (0, 0)))
    ledger = PeriodLedger("flights", 1, 0, [(first, lines[:1]), (second, lines[1:])], (), [early, late, whole])
    assert ledger.imbalances == [whole, early, late]
    assert ledger.within([second]).imbalances == [whole, late]
    assert ledger.within([first]).imbalances == [whole, early]
