"""The parts of a generation's diff, which generation a name means, and the stored documents, without servers."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.base.errors import BackfillRefused, DocumentDamaged
from waybill.config.models import Config
from waybill.config.names import TopicPartition
from waybill.tables.backfill import diff
from waybill.tables.backfill.generation_build import _parts
from waybill.tables.backfill.generation_planning import find_stream
from waybill.tables.backfill.generation_request import BackfillSource, BuiltGeneration, GenerationRequest
from waybill.tables.backfill.ranges import OffsetRanges

_RANGE = st.tuples(st.integers(0, 500), st.integers(1, 300)).map(lambda each: (each[0], each[0] + each[1]))
_TPS = st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 2))


@given(st.dictionaries(_TPS, _RANGE, max_size=6))
def test_parts_have_each_offset_of_the_ranges_once_and_are_bounded(by_tp: dict[TopicPartition, Any]) -> None:
    ranges = OffsetRanges(by_tp)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diff, "WINDOW_OFFSETS", 16)
        parts = list(_parts(ranges))
    offsets = Counter((tp, offset) for part in parts for tp, (first, end) in part for offset in range(first, end))
    assert offsets == Counter((tp, offset) for tp, (first, end) in ranges for offset in range(first, end))
    assert all(part.offsets <= 16 * diff.WINDOWS_OF_PART for part in parts)


def config(**generations: int) -> Config:
    stream = {"parser": {"event_time": {"field": "at"}, "message_id": "id"}, "table": "analytics.flights"}
    streams = {name: {**stream, "topics": ["flights"], "generation": n} for name, n in generations.items()}
    other = {**stream, "topics": ["trains"], "table": "analytics.trains", "generation": 7}
    return Config.model_validate(
        {"version": 1, "storage": {"bucket": "archive"}, "streams": {**streams, "trains": other}}
    )


def test_a_generation_is_found_among_the_streams_of_the_table() -> None:
    both = config(flights=1, next=2)
    assert find_stream(both, "flights", None) == "flights"
    assert find_stream(both, "flights", 2) == "next"
    assert find_stream(both, "next", 1) == "flights"
    with pytest.raises(BackfillRefused, match=r"it has: 1 \(stream flights\), 2 \(stream next\)"):
        find_stream(both, "flights", 7)


REQUEST = GenerationRequest(
    id="20261122_7f3a",
    stream="next",
    generation=2,
    live=1,
    by="anna",
    reason="another format",
    token="run-1",
    at=datetime(2026, 11, 22, tzinfo=UTC),
    table_uuid="uuid",
    source=BackfillSource.KAFKA,
    ranges=OffsetRanges({TopicPartition("flights", 0): (10, 20)}),
    compared=OffsetRanges({TopicPartition("flights", 0): (0, 20)}),
)
BUILT = BuiltGeneration(main=1, quarantine=None, branch=2, quarantine_branch=None, rows=9, quarantined=0)


def test_documents_are_read_as_they_were_written() -> None:
    assert GenerationRequest.from_json("key", REQUEST.to_json()) == REQUEST
    assert BuiltGeneration.from_json("key", BUILT.to_json()) == BUILT


@pytest.mark.parametrize("content", [b"", b"{}", b'{"v": 1}', b'{"v": 1, "id": 1, "at": 5}', b"[]"])
def test_damaged_documents_are_named(content: bytes) -> None:
    for parse in (GenerationRequest.from_json, BuiltGeneration.from_json):
        with pytest.raises(DocumentDamaged, match="some/key"):
            parse("some/key", content)
