"""Accepted gaps: the document and its name are read back, and nothing else is taken for one."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill import errors, names
from waybill.archive.gaps import Gap, GapKind
from waybill.errors import ConfigError, GenerationConflict
from waybill.names import GapName, TopicPartition

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
def test_a_gap_is_read_back(gap: Gap, prefix: str) -> None:
    key = gap.name.key(prefix)
    assert Gap.from_json(gap.to_json(), key) == gap
    assert GapName.parse(key) == gap.name
    assert key.startswith(names.gap_prefix(prefix, gap.tp.topic, gap.generation, gap.tp.partition))
    assert key.startswith(names.gaps_prefix(prefix))


@given(GAPS, GAPS)
def test_a_hole_is_named_by_its_start_a_truncation_by_both_ends(a: Gap, b: Gap) -> None:
    def chain(gap: Gap) -> tuple[object, ...]:
        return gap.tp, gap.generation, gap.first_offset, None if gap.is_hole else gap.next_offset

    assert (a.name.key("p") == b.name.key("p")) == (chain(a) == chain(b))


GAP = Gap(TopicPartition("t", 3), 1, 100, 250, GapKind.RETENTION, "known outage", "ann@ops", 1_000, {"x": 1})
KEY = GAP.name.key("p")


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"not json", ConfigError, f"{KEY} is no accepted gap"),
        (b'{"v": 1}', ConfigError, "KeyError: 'topic'"),
        (GAP.to_json().replace(b'"v": 1', b'"v": 2'), GenerationConflict, "newer Waybill .document version 2"),
        (GAP.to_json().replace(b'"first_offset": 100', b'"first_offset": 99'), ConfigError, "not what its name says"),
        (GAP.to_json().replace(b"RetentionGap", b"Whatever"), ConfigError, "'Whatever' is not a valid GapKind"),
    ],
)
def test_what_is_no_gap_is_refused(data: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Gap.from_json(data, KEY)


def test_the_document_is_for_people_too() -> None:
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
def test_a_stop_travels_between_processes(stop: errors.IngestStopped) -> None:
    copy = pickle.loads(pickle.dumps(stop))
    assert (type(copy), str(copy), vars(copy)) == (type(stop), str(stop), vars(stop))


@pytest.mark.parametrize(
    ("stop", "figure", "remedy"),
    [
        (errors.RetentionGap("t", 3, 100, 250), 150, 'waybill gaps accept t 3 --reason "…"'),
        (errors.LogTruncated("t", 3, 100, 90, 7), 10, 'waybill gaps accept t 3 --reason "…"'),
    ],
)
def test_a_stop_says_how_much_and_what_to_do(stop: errors.IngestStopped, figure: int, remedy: str) -> None:
    assert vars(stop)["messages_at_most"] == figure
    assert remedy in str(stop)
    assert "raise the stream's generation" in str(stop)
