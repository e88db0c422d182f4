"""Where a chain begins: the document is read back, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill import names
from waybill.archive.chain import ChainStart
from waybill.errors import ConfigError, GenerationConflict
from waybill.names import Extension

KEY = names.start_key("p", "t", 2, 3)
START = ChainStart(100, "an id", 4, Extension.KAFKA)
STARTS = st.builds(
    ChainStart,
    st.integers(0, names.MAX_OFFSET),
    st.text(max_size=40),
    st.integers(1, 10_000),
    st.sampled_from(Extension),
)


@given(STARTS)
def test_a_start_is_read_back(start: ChainStart) -> None:
    assert ChainStart.from_json(start.to_json(), KEY) == start


def test_its_name_says_of_which_chain_it_is() -> None:
    assert KEY == "p/starts/t/2_3.json"


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"not json", ConfigError, f"{KEY} does not say where a chain starts"),
        (b'{"v": 1}', ConfigError, "KeyError: 'offset'"),
        (START.to_json().replace(b"100", b'"x"'), ConfigError, "invalid literal"),
        (START.to_json().replace(b'"kafka"', b'"exe"'), ConfigError, "'exe' is not a valid Extension"),
        (START.to_json().replace(b'"v": 1', b'"v": 2'), GenerationConflict, "newer Waybill .document version 2"),
    ],
)
def test_what_is_no_start_is_refused(data: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ChainStart.from_json(data, KEY)
