"""Chain starts: documents survive a round trip, and invalid documents are rejected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.archive.chain.chain import ChainStart
from waybill.base.errors import DocumentDamaged, DocumentTooNew
from waybill.config import names
from waybill.config.names import Extension

KEY = names.chain_start_key("p", "t", 2, 3)
START = ChainStart(100, "an id", 4, Extension.KAFKA)
STARTS = st.builds(
    ChainStart,
    st.integers(0, names.MAX_OFFSET),
    st.text(max_size=40),
    st.integers(1, 10_000),
    st.sampled_from(Extension),
)


@given(STARTS)
def test_a_chain_start_survives_a_round_trip(start: ChainStart) -> None:
    assert ChainStart.from_json(KEY, start.to_json()) == start


def test_the_key_contains_topic_generation_and_partition() -> None:
    assert KEY == "p/starts/t/2_3.json"


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"not json", DocumentDamaged, f"{KEY} is not a valid chain start"),
        (b'{"v": 1}', DocumentDamaged, "KeyError: 'offset'"),
        (START.to_json().replace(b"100", b'"x"'), DocumentDamaged, "invalid literal"),
        (START.to_json().replace(b'"kafka"', b'"exe"'), DocumentDamaged, "'exe' is not a valid Extension"),
        (START.to_json().replace(b'"v": 1', b'"v": 2'), DocumentTooNew, "newer Waybill .document version 2"),
    ],
)
def test_an_invalid_document_is_rejected(data: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ChainStart.from_json(KEY, data)
