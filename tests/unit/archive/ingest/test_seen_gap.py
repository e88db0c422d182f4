"""What a person has seen of a gap, and the gap that is there when the decision arrives."""

from __future__ import annotations

import pytest

from waybill.archive.chain.gaps import Gap, GapKind
from waybill.archive.ingest.gap_acceptance import SeenGap
from waybill.base.errors import GapRefused
from waybill.config.names import TopicPartition


def gap(first_offset: int, next_offset: int) -> Gap:
    return Gap(TopicPartition("flights", 3), 1, first_offset, next_offset, GapKind.RETENTION, "why", "ada", 1)


@pytest.mark.parametrize(("first", "following"), [(100, 200), (120, 200), (100, 150)])
def test_a_gap_within_what_was_seen_is_accepted(first: int, following: int) -> None:
    SeenGap.parse("100-199").check(gap(first, following))


@pytest.mark.parametrize(("first", "following"), [(100, 201), (99, 200), (500, 600)])
def test_a_gap_that_has_grown_or_is_another_is_refused_with_what_would_be_lost(first: int, following: int) -> None:
    with pytest.raises(GapRefused, match=rf"flights/3: offsets {first}–{following - 1} would be lost now.*100–199"):
        SeenGap.parse("100-199").check(gap(first, following))


@pytest.mark.parametrize("text", ["", "100", "100-", "-100", "a-b", "200-100", "1 - 2"])
def test_what_is_no_range_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(GapRefused, match="FIRST-LAST, such as 100-199"):
        SeenGap.parse(text)
