"""The ledger's figures, compared with an archive and tables that are plain Python data."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.archive.chain.gaps import Gap, GapKind
from waybill.config.names import TopicPartition
from waybill.services.coordination import CommittedOffset, OffsetCounts
from waybill.watch.ledger.archived import Chain, log_terms
from waybill.watch.ledger.balance import Ledger, Line, LogTerms, MessageTerms, RowTerms

TP = TopicPartition("t", 0)


class Kind(StrEnum):
    """What an offset of the log holds."""

    MESSAGE = "message"
    CONTROL = "control"
    ABORTED = "aborted"
    COMPACTED = "compacted"
    GAP = "gap"


class Place(StrEnum):
    """Where a message is."""

    UNIQUE = "unique"
    DUPLICATE = "duplicate"
    UNSWEPT = "unswept"
    QUARANTINE = "quarantine"
    HELD = "held"
    WAITING = "waiting"


@dataclass(frozen=True)
class Archived:
    """One backup object: what each of its offsets holds, and whether a lane has adopted it."""

    offsets: tuple[Kind, ...]
    adopted: bool

    @property
    def is_gap(self) -> bool:
        return self.offsets[0] is Kind.GAP

    def counts(self, first_offset: int) -> OffsetCounts:
        """Return what a lane counts that creates or adopts the object."""
        kinds = Counter(self.offsets)
        if self.is_gap:
            return OffsetCounts(first_offset, gaps=len(self.offsets))
        messages = kinds[Kind.MESSAGE]
        if self.adopted:
            return OffsetCounts(first_offset, messages, unknown=len(self.offsets) - messages)
        return OffsetCounts(first_offset, messages, kinds[Kind.CONTROL], kinds[Kind.ABORTED])


OBJECTS = st.lists(
    st.builds(
        Archived,
        st.one_of(
            st.lists(st.sampled_from([k for k in Kind if k is not Kind.GAP]), min_size=1, max_size=12).map(tuple),
            st.integers(1, 9).map(lambda size: (Kind.GAP,) * size),
        ),
        st.booleans(),
    ),
    max_size=8,
)


def chain_of(objects: Sequence[Archived], start: int, forgotten: int = 0) -> Chain:
    """Return the chain, whose first `forgotten` objects were archived before counts were kept."""
    offset, counts, gaps = start, None, []
    for number, found in enumerate(objects):
        if number >= forgotten:
            of_object = found.counts(offset)
            counts = of_object if counts is None else counts + of_object
        following = offset + len(found.offsets)
        if found.is_gap:
            gaps.append(Gap(TP, 1, offset, following, GapKind.RETENTION, "why", "ann", 0))
        offset = following
    return Chain(TP, start, offset, CommittedOffset(offset, start_offset=start, counts=counts), tuple(gaps))


@given(OBJECTS, st.integers(0, 1000))
def test_log_terms_are_those_of_the_log(objects: list[Archived], start: int) -> None:
    kinds = Counter(kind for found in objects for kind in found.offsets)
    known = Counter(kind for found in objects if not found.adopted for kind in found.offsets)
    log, why, contradictions = log_terms(chain_of(objects, start), None, None)
    assert (why, contradictions, list(log.imbalances(TP))) == (None, [], [])
    assert (log.messages, log.gaps) == (kinds[Kind.MESSAGE], kinds[Kind.GAP])
    assert (log.control, log.aborted) == (known[Kind.CONTROL], known[Kind.ABORTED])
    assert log.unexplained == known[Kind.COMPACTED]
    adopted_others = kinds - known
    assert log.unknown == sum(adopted_others[k] for k in (Kind.CONTROL, Kind.ABORTED, Kind.COMPACTED))


@given(OBJECTS, OBJECTS)
def test_objects_that_no_lane_has_committed_yet_are_part_of_the_chain(
    objects: list[Archived], later: list[Archived]
) -> None:
    """A lane created them and died. Partition runs read them already, and the next lane adopts them."""
    committed, whole = chain_of(objects, 5), chain_of([*objects, *later], 5)
    chain = dataclasses.replace(whole, committed=committed.committed)
    in_later = sum(found.offsets.count(Kind.MESSAGE) for found in later)
    log, why, contradictions = log_terms(chain, None, None, in_later)
    assert (why, contradictions, list(log.imbalances(TP))) == (None, [], [])
    adopted = [dataclasses.replace(found, adopted=True) for found in later]
    assert (log, None, []) == log_terms(chain_of([*objects, *adopted], 5), None, None)


@given(OBJECTS, st.integers(1, 8))
def test_messages_without_counts_are_not_known_until_the_objects_are_read(
    objects: list[Archived], forgotten: int
) -> None:
    chain = chain_of(objects, 0, forgotten)
    log, why, contradictions = log_terms(chain, None, None)
    assert contradictions == []
    if not objects:
        assert (log.messages, why) == (0, None)
        return
    assert log.messages is None
    assert why is not None
    kinds = Counter(kind for found in objects for kind in found.offsets)
    log, why, contradictions = log_terms(chain, None, kinds[Kind.MESSAGE])
    assert (why, contradictions, list(log.imbalances(TP))) == (None, [], [])
    assert log.messages == kinds[Kind.MESSAGE]
    assert log.unknown == sum(kinds[k] for k in (Kind.CONTROL, Kind.ABORTED, Kind.COMPACTED))


@given(OBJECTS, st.integers(0, 50))
def test_objects_that_hold_another_number_than_was_counted_are_named(objects: list[Archived], found: int) -> None:
    chain = chain_of(objects, 0)
    messages = sum(of.offsets.count(Kind.MESSAGE) for of in objects)
    _, _, contradictions = log_terms(chain, None, found)
    expected = [] if found == messages else [f"ingest has counted {messages} messages, and the objects hold {found}"]
    assert [imbalance.what for imbalance in contradictions] == expected


def test_a_gap_marker_without_its_record_is_named() -> None:
    chain = chain_of([Archived((Kind.GAP,) * 5, adopted=False)], 10)
    _, _, (found,) = log_terms(dataclasses.replace(chain, gaps=()), None, None)
    assert str(found) == "t/0 offsets 10–14: gap markers hold 5 offsets, and the records of accepted gaps only 0"


def test_a_lost_object_makes_the_counts_unusable() -> None:
    """It was counted when it was archived, and a person has accepted since that it is lost."""
    chain = chain_of([Archived((Kind.MESSAGE,) * 10, adopted=False)], 0)
    gap = Gap(TP, 1, 2, 5, GapKind.BROKEN, "why", "ann", 0)
    log, why, _ = log_terms(dataclasses.replace(chain, gaps=(gap,)), None, None)
    assert log.messages is None
    assert why == "a backup object was lost after its messages had been counted"
    log, why, contradictions = log_terms(dataclasses.replace(chain, gaps=(gap,)), None, 7)
    assert (log.messages, log.gaps, log.unknown, why, contradictions) == (7, 3, 0, None, [])


def line_of(places: Sequence[Place]) -> Line:
    """Return the line of a chain of messages at these places."""
    of = Counter(places)
    log = LogTerms(0, len(places), None, 0, len(places))
    rows = of[Place.UNIQUE] + of[Place.DUPLICATE] + of[Place.UNSWEPT]
    messages = MessageTerms(rows, of[Place.QUARANTINE], of[Place.HELD], of[Place.WAITING], len(places))
    return Line(TP, log, messages, RowTerms(of[Place.UNIQUE], of[Place.DUPLICATE], of[Place.UNSWEPT]))


@given(st.lists(st.sampled_from(Place)))
def test_messages_that_are_each_at_one_place_balance(places: list[Place]) -> None:
    line = line_of(places)
    assert list(line.imbalances()) == []
    ledger = Ledger("events", 1, 0, [line])
    assert ledger.document()["balanced"]


@given(
    st.lists(st.sampled_from(Place)),
    st.sampled_from(["rows", "quarantine", "held", "waiting", "unique", "duplicates", "unswept", "left_out"]),
    st.integers(-3, 3).filter(bool),
)
def test_a_term_that_is_off_by_any_number_does_not_balance(places: list[Place], term: str, by: int) -> None:
    line = line_of(places)
    part = "messages" if hasattr(line.messages, term) else "rows"
    terms = getattr(line, part)
    changed = dataclasses.replace(terms, **{term: getattr(terms, term) + by})
    found = list(dataclasses.replace(line, **{part: changed}).imbalances())
    assert found
    assert all(imbalance.tp == TP for imbalance in found)


@pytest.mark.parametrize(("rows", "what"), [(7, "3 missing"), (12, "2 too many")])
def test_an_imbalance_names_topic_partition_offsets_and_figures(rows: int, what: str) -> None:
    line = Line(TP, LogTerms(100, 115, None, 0, 15), MessageTerms(rows, 0, 0, 5, 110))
    (found,) = line.imbalances()
    assert str(found) == (
        f"t/0 offsets 100–109: 10 messages were archived that the tables should have, and the tables have {rows}: "
        f"{what}"
    )


def test_more_terms_than_offsets_do_not_balance() -> None:
    (found,) = Line(TP, LogTerms(0, 10, None, 2, 7, control=3, unexplained=-2)).imbalances()
    assert str(found) == ("t/0 offsets 0–9: 10 offsets cannot hold 7 messages, 3 control, 2 accepted gaps: 2 too many")


def test_rows_of_an_object_that_was_lost_later_are_no_imbalance() -> None:
    line = Line(TP, LogTerms(0, 10, None, 3, 7), MessageTerms(10, 0, 0, 0, 10, of_lost_objects=3))
    assert list(line.imbalances()) == []


def test_what_is_not_archived_is_known_with_kafka_alone() -> None:
    log = LogTerms(0, 10, 25, 0, 10)
    assert log.not_archived == 15
    assert dataclasses.replace(log, log_end_offset=None).not_archived is None
    assert dataclasses.replace(log, log_end_offset=4).not_archived == 0, "a log that was truncated"


def test_counts_are_sums_and_a_term_that_is_not_known_everywhere_is_left_out() -> None:
    one = Line(TP, LogTerms(0, 10, 12, 3, 7), MessageTerms(6, 1, 0, 0, 10))
    two = Line(TopicPartition("t", 9), LogTerms(5, 10, 10, 0, 5), MessageTerms(4, 0, 0, 1, 9))
    counts = Ledger("flights", 1, 0, [one, two]).counts
    assert (counts["archived_offsets"], counts["archived_messages"], counts["accepted_gaps"]) == (15, 12, 3)
    assert (counts["rows"], counts["quarantine"], counts["waiting"], counts["not_archived"]) == (10, 1, 1, 2)
    assert "unique" not in counts
    unknown = Line(TP, LogTerms(0, 10, 12, 0, None), None)
    assert "archived_messages" not in Ledger("flights", 1, 0, [one, unknown]).counts
    assert Ledger("flights", 1, 0, []).counts == {}
