"""The counts beside a committed offset: they survive a round trip, and earlier documents have none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.base.errors import DocumentDamaged
from waybill.services.coordination import CommittedOffset, OffsetCounts

COUNTS = st.builds(OffsetCounts, *[st.integers(0, 1 << 62)] * 6)


@given(COUNTS | st.none())
def test_counts_survive_a_round_trip(counts: OffsetCounts | None) -> None:
    written = CommittedOffset(10, counts=counts)
    assert CommittedOffset.from_document(written.to_document(), -1, "/node") == written


def test_a_document_of_an_earlier_waybill_has_no_counts() -> None:
    document = json.loads(CommittedOffset(10).to_document())
    assert document.pop("counts", None) is None
    assert CommittedOffset.from_document(json.dumps(document).encode(), -1, "/node").counts is None


def test_counts_of_a_newer_waybill_are_not_used() -> None:
    """It counts another reason apart, so the rest would be taken for compaction."""
    document = json.loads(CommittedOffset(10, counts=OffsetCounts(0, 8)).to_document())
    document["counts"]["another_reason"] = 2
    assert CommittedOffset.from_document(json.dumps(document).encode(), -1, "/node").counts is None


@pytest.mark.parametrize("counts", [{"from_offset": "x"}, {"from_offset": None}, [1], 7])
def test_damaged_counts_are_refused(counts: object) -> None:
    document = json.loads(CommittedOffset(10).to_document()) | {"counts": counts}
    with pytest.raises(DocumentDamaged, match="/node"):
        CommittedOffset.from_document(json.dumps(document).encode(), -1, "/node")


@given(COUNTS, COUNTS)
def test_counts_of_two_ranges_add_up(first: OffsetCounts, later: OffsetCounts) -> None:
    both = first + later
    assert both.from_offset == first.from_offset
    assert both.messages == first.messages + later.messages
    assert both.control + both.aborted == first.control + first.aborted + later.control + later.aborted
    assert both.gaps + both.unknown == first.gaps + first.unknown + later.gaps + later.unknown
