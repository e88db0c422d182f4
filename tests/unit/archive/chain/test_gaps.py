"""Accepted gaps: documents and names survive a round trip, and invalid documents are rejected."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.archive.chain.gaps import Gap, GapKind
from waybill.base import errors
from waybill.base.errors import DocumentDamaged, DocumentTooNew
from waybill.config import names
from waybill.config.names import GapName, TopicPartition

OFFSETS = st.integers(0, names.MAX_OFFSET)
NUMBERS = st.integers(0, 10_000)
TEXTS = st.text(max_size=40)
GAPS = st.builds(
    lambda ends, **fields: Gap(first_offset=min(ends), next_offset=max(ends), **fields),
    st.tuples(OFFSETS, OFFSETS),
    tp=st.builds(TopicPartition, st.from_regex(r"[a-zA-Z0-9_-]{1,50}", fullmatch=True), NUMBERS),
    generation=NUMBERS,
    kind=st.sampled_from(GapKind),
    reason=TEXTS,
    accepted_by=TEXTS,
    accepted_at_ms=st.integers(0, 10**13),
    figures=st.dictionaries(TEXTS, st.integers() | TEXTS, max_size=3),
)


@given(GAPS, st.sampled_from(["", "a", "gaps/gaps"]))
def test_a_gap_survives_a_round_trip_through_its_document_and_name(gap: Gap, prefix: str) -> None:
    key = gap.name.key(prefix)
    assert Gap.from_json(key, gap.to_json()) == gap
    assert GapName.parse(key) == gap.name
    assert key.startswith(names.gap_prefix(prefix, gap.tp.topic, gap.generation, gap.tp.partition))
    assert key.startswith(names.gaps_prefix(prefix))


@given(GAPS, GAPS)
def test_the_name_contains_the_start_of_a_gap_and_for_a_truncation_its_end_too(a: Gap, b: Gap) -> None:
    def identity(gap: Gap) -> tuple[object, ...]:
        return gap.tp, gap.generation, gap.first_offset, None if gap.has_marker else gap.next_offset

    assert (a.name.key("p") == b.name.key("p")) == (identity(a) == identity(b))


GAP = Gap(TopicPartition("t", 3), 1, 100, 250, GapKind.RETENTION, "known outage", "ann@ops", 1_000, {"x": 1})
KEY = GAP.name.key("p")


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"not json", DocumentDamaged, f"{KEY} is not a valid accepted gap"),
        (b'{"v": 1}', DocumentDamaged, "KeyError: 'topic'"),
        (GAP.to_json().replace(b'"v": 1', b'"v": 2'), DocumentTooNew, "newer Waybill .document version 2"),
        (
            GAP.to_json().replace(b'"first_offset": 100', b'"first_offset": 99'),
            DocumentDamaged,
            "does not match its name",
        ),
        (GAP.to_json().replace(b"RetentionGap", b"Whatever"), DocumentDamaged, "'Whatever' is not a valid GapKind"),
    ],
)
def test_an_invalid_document_is_rejected(data: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Gap.from_json(KEY, data)


def test_key_document_and_text_of_a_gap() -> None:
    assert KEY == "p/gaps/t/1_3_00000000000000000100.json"
    document = json.loads(GAP.to_json())
    assert (document["v"], document["kind"], document["reason"]) == (1, "RetentionGap", "known outage")
    assert str(GAP) == "t/3 offsets 100–249 (RetentionGap)"


@pytest.mark.parametrize(
    "stop",
    [
        errors.RetentionGap("t", 3, 100, 250),
        errors.TopicRecreated("t", 3, "a", "b"),
        errors.LogTruncated("t", 3, 100, 90, 7),
        errors.ChainBroken("t/3: x is missing", 100, 250),
        errors.ChainGap("t/3: x is missing"),
    ],
)
def test_a_named_stop_survives_pickling(stop: errors.IngestStopped) -> None:
    copy = pickle.loads(pickle.dumps(stop))
    assert (type(copy), str(copy), vars(copy)) == (type(stop), str(stop), vars(stop))


@pytest.mark.parametrize(
    ("stop", "figure", "remedy"),
    [
        (errors.RetentionGap("t", 3, 100, 250), 150, 'waybill gaps accept t 3 --reason "…"'),
        (errors.LogTruncated("t", 3, 100, 90, 7), 10, 'waybill gaps accept t 3 --reason "…"'),
    ],
)
def test_a_named_stop_states_its_figure_and_its_remedy(stop: errors.IngestStopped, figure: int, remedy: str) -> None:
    assert vars(stop)["messages_at_most"] == figure
    assert remedy in str(stop)
    assert "raise the stream's generation" in str(stop)
